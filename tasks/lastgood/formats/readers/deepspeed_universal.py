"""DeepSpeed's universal layout: a directory for each parameter, converted from a checkpoint of any topology.

Decides whether every parameter has what the others have. Rule: which states an optimizer keeps is what lies under most
parameters; which parameters there must be is what the model states list. Source: DeepSpeed's `ds_to_universal` and
`universal_checkpoint`.
"""

from __future__ import annotations

import re
from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Iterator, Mapping

from lastgood.formats.description import Certainty, Description, Framework, HeldComponent, Layout, NeverSaved
from lastgood.formats.readers.contents import Contents, count_in
from lastgood.formats.readers.pointers import choose_by_pointer
from lastgood.formats.readers.wording import component_missing, file_missing, settled
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source
from lastgood.manifest import Component, Counter, CounterMeaning
from lastgood.verdict import Finding

__all__ = ["DeepSpeedUniversalReader"]

_STATE = re.compile(r"zero/(?P<parameter>.+)/(?P<state>[a-z0-9_]+)\.pt")
_MODEL = re.compile(r"(?:zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt")
_TAG = re.compile(r"global_step(\d{1,18})_universal")
_OPTIMIZER = "zero/optimizer_state.pt"


class DeepSpeedUniversalReader:
    """Directories made by `ds_to_universal`, commonly `<tag>_universal`."""

    def recognises(self, source: Source) -> bool:
        return any(path.startswith("zero/") and _STATE.fullmatch(path) is not None for path in source.files)

    def describe(self, source: Source) -> Description:
        states: dict[str, set[str]] = defaultdict(set)
        for path in source.matching(prefix="zero/"):
            if match := _STATE.fullmatch(path):
                states[match["parameter"]].add(match["state"])
        models = tuple(path for path in source.matching() if _MODEL.fullmatch(path))
        contents = Contents(source)
        steps: int | None = None
        shapes: set[str] = set()
        for path in models:
            with contents.torch(path) as content:
                if content is not None and isinstance(content.value, dict):
                    steps = count_in(content.value, "global_steps") if steps is None else steps
                    shapes |= set(_parameters(content.value.get("param_shapes")))
        return Description(
            framework=Framework.DEEPSPEED_UNIVERSAL,
            layout_name="universal",
            step=steps,
            counters=(Counter(name="global_steps", value=steps, names=CounterMeaning.COMPLETED),) if steps else (),
            layout=Layout(
                world_size=None, certainty=Certainty.UNKNOWN, why="the universal layout belongs to no topology"
            ),
            components=_components(states, models),
            never_saved=(
                NeverSaved(component=Component.RNG, reason="DeepSpeed saves no random state"),
                NeverSaved(component=Component.DATA, reason="DeepSpeed saves the place in the data with no converter"),
            ),
            findings=settled(
                source,
                contents.findings,
                _missing(source, states, models, shapes),
            ),
            unknowable=("whether the checkpoint that it was converted from was whole", *contents.unknowable),
            unread=contents.unread,
            untold=contents.untold,
        )

    def choose(self, root: Root) -> Choice | None:
        return choose_by_pointer(
            root,
            pointer="latest_universal",
            pattern=_TAG,
            rule="with load_universal, the directory that the file `latest_universal` names",
            without_pointer="warns, loads nothing and trains from step zero",
        )


def _parameters(shapes: object) -> Iterator[str]:
    for group in shapes if isinstance(shapes, list) else [shapes]:
        if isinstance(group, dict):
            yield from (name for name in group if isinstance(name, str))


def _missing(
    source: Source, states: Mapping[str, set[str]], models: tuple[str, ...], shapes: set[str]
) -> Iterator[Finding]:
    tally = Tally(state for found in states.values() for state in found)
    for parameter in sorted(shapes - set(states)):
        yield file_missing(f"zero/{parameter}/fp32.pt", "the model states list this parameter")
    for parameter, found in sorted(states.items()):
        for state in sorted({"fp32"} - found):
            yield file_missing(f"zero/{parameter}/{state}.pt", "every parameter has its weights")
        # A frozen parameter has weights alone.
        for state in sorted(set(tally) - found - {"fp32"}) if found > {"fp32"} or "fp32" not in found else ():
            if 2 * tally[state] > len(states):
                yield file_missing(f"zero/{parameter}/{state}.pt", f"{tally[state]} parameters have it")
    if not source.holds(_OPTIMIZER):
        yield file_missing(_OPTIMIZER, "it holds the groups of the optimizer and its counters")
    if not models:
        yield file_missing("mp_rank_00_model_states.pt", "it holds the step, the scheduler and the names of parameters")
    if not any(found - {"fp32"} for found in states.values()):
        yield component_missing("optimizer", "no parameter has anything but its weights")


def _components(states: Mapping[str, set[str]], models: tuple[str, ...]) -> tuple[HeldComponent, ...]:
    weights = tuple(sorted(f"zero/{name}/fp32.pt" for name, found in states.items() if "fp32" in found))
    others = tuple(
        sorted(f"zero/{name}/{state}.pt" for name, found in states.items() for state in found if state != "fp32")
    )
    held = [HeldComponent(component=Component.MODEL, paths=weights)] if weights else []
    if others:
        held.append(HeldComponent(component=Component.OPTIMIZER, paths=others))
    if models:
        held.append(HeldComponent(component=Component.SCHEDULER, paths=models, within="lr_scheduler"))
    return tuple(held)
