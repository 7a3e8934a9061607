"""From what is stated and found of a foreign checkpoint to what training can do with it.

Decides the class and says why. Leaves finding to the readers and to `integrity`. Rules: every class carries its
reasons; nothing is resumable by default, it is reached when a model and an optimizer are there and nothing speaks
against them; what a framework never saves lowers no class, what it should have saved does; what is more than anybody
here reads is unknown, neither damaged nor missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from lastgood.documents import Document
from lastgood.formats.description import Description, Framework, Restorability
from lastgood.formats.readers.wording import shown
from lastgood.manifest import Component
from lastgood.reasons import Reason
from lastgood.verdict import Finding

__all__ = ["Classification", "classify"]

_BESIDE_STATE = frozenset({Component.MODEL, Component.EMA, Component.CONFIG, Component.TOPOLOGY, Component.OTHER})
"""What a weights-only export may hold."""


class Classification(Document, frozen=True, kw_only=True):
    """What training can do with a checkpoint, and why; the reasons are never empty."""

    restorability: Restorability
    reasons: tuple[str, ...]


def classify(
    description: Description, findings: Iterable[Finding] = (), untold: Iterable[str] = (), *, is_empty: bool = False
) -> Classification:
    """Class a checkpoint.

    Args:
        description: By its reader.
        findings: Of reading its files, beside those of the description.
        untold: Files that are more than is read here, beside those of the description.
        is_empty: It is a directory in which nothing lies.
    """
    found = (*description.findings, *findings)
    if description.framework is Framework.UNKNOWN:
        return _of(Restorability.UNKNOWN, "an empty directory" if is_empty else "no reader recognises it")
    if not description.framework.is_judged:
        return _of(Restorability.UNKNOWN, f"{description.framework}: recognised by name, not judged")
    if unfinished := _told(found, {Reason.SAVE_UNFINISHED}):
        return _of(Restorability.IN_PROGRESS, *unfinished)
    if damage := _told(found, set(Reason) - {Reason.COMPONENT_MISSING, Reason.PURPOSE_NOT_RESUMABLE}):
        return _of(Restorability.DAMAGED, *damage)
    if limits := tuple(dict.fromkeys((*description.untold, *untold))):
        return _of(Restorability.UNKNOWN, *limits)
    found_class = _of_what_is_held(description, found)
    if description.unread and found_class.restorability is not Restorability.RESUMABLE:
        # What seems to be missing may lie in there.
        why = f"more than is looked into at once: {shown(description.unread)}: {'; '.join(found_class.reasons)}"
        return _of(Restorability.UNKNOWN, why)
    return found_class


def _of_what_is_held(description: Description, found: Iterable[Finding]) -> Classification:
    held = {component.component for component in description.components}
    if Component.MODEL in held and held <= _BESIDE_STATE:
        return _of(Restorability.WEIGHTS_ONLY, "holds a model and no state of training")
    if export := _told(found, {Reason.PURPOSE_NOT_RESUMABLE}):
        return _of(Restorability.WEIGHTS_ONLY, *export)
    if missing := _told(found, {Reason.COMPONENT_MISSING}):
        return _of(Restorability.PARTIAL, *missing)
    if absent := sorted({Component.MODEL, Component.OPTIMIZER} - held):
        return _of(Restorability.PARTIAL, f"without {' and '.join(absent)} no step goes on where it stopped")
    return _of(Restorability.RESUMABLE, f"holds {', '.join(sorted(held))}; nothing found against it")


def _told(findings: Iterable[Finding], reasons: set[Reason]) -> tuple[str, ...]:
    return tuple(finding.message for finding in findings if finding.reason in reasons)


def _of(restorability: Restorability, *reasons: str) -> Classification:
    return Classification(restorability=restorability, reasons=reasons)
