"""Tier 1: what storage holds, against what manifests, markers and pointers claim.

- `reading`: documents and listings, brought to where they can be judged.
- `checks`: pure judgements over a manifest and a listing.
- `lineage`: what the family around it says of a generation.
- `origins`: whose bytes the wrong ones are.
- `inspection`: the quick look by which `latest` and every start choose.
- `generation`: the whole of one generation, byte for byte.
- `pointers`: the documents of a family that are only caches, and their repair.
- `rendering`: verdicts as text and as JSON.
"""

from __future__ import annotations

from lastgood.verify.generation import Depth, verify_generation
from lastgood.verify.inspection import Inspection, inspector
from lastgood.verify.pointers import repair_pointers, verify_family
from lastgood.verify.rendering import render_verdict, to_json

__all__ = [
    "Depth",
    "Inspection",
    "inspector",
    "render_verdict",
    "repair_pointers",
    "to_json",
    "verify_family",
    "verify_generation",
]
