"""Words, counts and an order of names: what a person reads must be right in its small things, too."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lastgood.text import counted, natural_order


def test_one_is_counted_in_the_singular() -> None:
    """`1 ranks` makes a reader wonder what else nobody looked at."""
    assert [counted(count, "rank") for count in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]
    assert [counted(count, "family", "families") for count in (1, 3)] == ["1 family", "3 families"]


@given(st.lists(st.text(st.sampled_from("a-0²19١/"), max_size=8)))
def test_any_names_are_ordered(names: list[str]) -> None:
    """A name from a strange tree must not end the listing of all the others."""
    assert sorted(sorted(names, key=natural_order)) == sorted(names)


def test_numbers_in_names_are_ordered_as_numbers() -> None:
    """Steps are, and names that hold none are ordered as text."""
    names = ["step-10", "b", "step-9", "10", "9", "step-9-b", "a", f"n{9 * '1'}", f"n{5000 * '1'}"]
    ordered = ["9", "10", "a", "b", f"n{9 * '1'}", f"n{5000 * '1'}", "step-9", "step-9-b", "step-10"]
    assert sorted(names, key=natural_order) == ordered
