"""Tier 1: what storage holds, against what manifests, markers and pointers claim.

- `reading`: documents and listings, brought to where they can be judged.
- `checks`: pure judgements over a manifest and a listing.
- `lineage`: what the family around it says of a generation.
- `origins`: whose bytes the wrong ones are.
- `inspection`: the quick look by which `latest` and every start choose.
- `generation`: the whole of one generation, byte for byte, or a slice of it.
- `shares`: how a generation is cut, for slices and for workers, and how what they read is put together.
- `pointers`: the documents of a family that are only caches, and their repair.
- `rendering`: verdicts as text and as JSON.
"""

from __future__ import annotations

from lastgood.verify.generation import Depth, Read, read_whole, verify_generation
from lastgood.verify.inspection import Inspection, inspector
from lastgood.verify.pointers import repair_pointers, verify_family
from lastgood.verify.rendering import render_verdict, to_json
from lastgood.verify.shares import Share, cut_shares, merge_shares, read_share

__all__ = [
    "Depth",
    "Inspection",
    "Read",
    "Share",
    "cut_shares",
    "inspector",
    "merge_shares",
    "read_share",
    "read_whole",
    "render_verdict",
    "repair_pointers",
    "to_json",
    "verify_family",
    "verify_generation",
]
