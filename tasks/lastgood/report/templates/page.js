// A page that nobody rewrites goes on saying that all is well; this says how old it is.
const made = document.getElementById("made");
const hours = (Date.now() - Date.parse(made.dateTime)) / 3600000;
if (hours > Number(made.dataset.staleHours)) {
  document.getElementById("old").textContent = Math.floor(hours) + " hours";
  document.documentElement.classList.add("is-old");
}
