"""What was promised of a component after a resume, and whether two values keep that promise.

Decides when two observed values count as the same. Rules: tolerances come from the manifest, written before anything
was compared, never from what was found; `exact` means equal, `tolerance` bounds the relative difference of numbers,
`none` turns a difference into a note; of several components the weakest promise counts. Source: docs/architecture.md
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from lastgood.manifest import Component, Determinism, Manifest

__all__ = ["EXACT", "Agreement", "Promise", "agreement", "promise_of", "weakest"]

NUMERIC_COMPONENTS = (
    Component.MODEL,
    Component.OPTIMIZER,
    Component.SCALER,
    Component.SCHEDULER,
    Component.ACCUMULATION,
    Component.RNG,
    Component.DATA,
)
"""What a loss depends on; whichever of them promises least decides how closely losses must agree."""

_STRENGTH = {Determinism.NONE: 0, Determinism.TOLERANCE: 1, Determinism.EXACT: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """How closely values must agree.

    Args:
        determinism: `exact`, `tolerance` or `none`.
        tolerance: Largest relative difference; only with `tolerance`.
        reason: Why not exact.
    """

    determinism: Determinism
    tolerance: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.determinism is Determinism.TOLERANCE:
            return f"relative difference at most {self.tolerance:g}"
        return "equal" if self.determinism is Determinism.EXACT else f"nothing promised: {self.reason}"


EXACT = Promise(determinism=Determinism.EXACT)


class Agreement(Enum):
    """`same`: as promised; `unpromised`: another value, of which nothing is promised; `diverged`: promise broken."""

    SAME = "same"
    UNPROMISED = "unpromised"
    DIVERGED = "diverged"


def promise_of(manifest: Manifest, component: Component) -> Promise:
    """What the manifest promises of one component; a component without a promise promises nothing."""
    for promise in manifest.job.promises:
        if promise.component is component:
            return Promise(
                determinism=promise.determinism, tolerance=promise.tolerance, reason=promise.reason or "no reason given"
            )
    return Promise(determinism=Determinism.NONE, reason=f"the manifest makes no promise about {component}")


def weakest(manifest: Manifest, components: Sequence[Component] = NUMERIC_COMPONENTS) -> Promise:
    """The weakest promise among components that are not absent on purpose; the widest of several tolerances."""
    absent = {entry.component for entry in manifest.job.absent}
    promises = [promise_of(manifest, component) for component in components if component not in absent]
    return min(
        promises,
        key=lambda promise: (_STRENGTH[promise.determinism], -(promise.tolerance or 0.0)),
        default=Promise(determinism=Determinism.NONE, reason="every component is absent"),
    )


def agreement(expected: object, found: object, promise: Promise) -> Agreement:
    """Compare two values of one kind: numbers, text, or sequences and mappings of them.

    Only real numbers have a tolerance: ids, digests and integers (counters) agree when they are equal.
    """
    if _close(expected, found, promise.tolerance):
        return Agreement.SAME
    return Agreement.UNPROMISED if promise.determinism is Determinism.NONE else Agreement.DIVERGED


def _close(expected: object, found: object, tolerance: float | None) -> bool:
    if isinstance(expected, float | int) and isinstance(found, float | int) and not isinstance(expected, str):
        return expected == found or (
            tolerance is not None
            and (isinstance(expected, float) or isinstance(found, float))
            and math.isfinite(expected)
            and math.isfinite(found)
            and abs(expected - found) <= tolerance * max(abs(expected), abs(found))
        )
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return expected.keys() == found.keys() and all(
            _close(value, found[key], tolerance) for key, value in expected.items()
        )
    if isinstance(expected, tuple | list) and isinstance(found, tuple | list):
        return len(expected) == len(found) and all(
            _close(one, other, tolerance) for one, other in zip(expected, found, strict=True)
        )
    return expected == found
