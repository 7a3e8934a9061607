"""The damage catalogue: each entry damages exactly one thing, and names the one reason code that must be raised.

Whoever builds on lastgood can damage a copy of a family and see whether the gate is awake:

    scene = Scene(root=copy, family="llm-7b", generation=newest, stranger="llm-13b")
    offender = CATALOGUE["byte_flipped"].apply(scene)

Rules: an entry leaves everything else as healthy as it was, so a checker that raises nothing, or more than the reason,
is the one that is broken; where a program with a mistake in it would have published the fault, the entry re-signs what
that program would have signed. Entries need a local file system and no torch.

- `scene`: what an entry works on. `catalogue`: what an entry is.
- `markers`, `manifests`: commit markers and manifests, torn, edited, replaced.
- `artifacts`: files missing, changed, exchanged, left over.
- `claims`: manifests that are lawful and yet claim what may not be resumed.
- `families`: pointers, names, decisions.

Source: the boundary faults that any recovery gate must refuse; faults that people reported in public trackers, by kind.
"""

from __future__ import annotations

from lastgood.testing.damage import artifacts, claims, families, manifests, markers
from lastgood.testing.damage.catalogue import CATALOGUE, Damage, Judge
from lastgood.testing.damage.scene import Scene

__all__ = ["CATALOGUE", "Damage", "Judge", "Scene", "artifacts", "claims", "families", "manifests", "markers"]
