"""Evidence: one immutable record a gate run, and what a verdict changes.

- `record`: the document, its key, reading records back.
- `keeping`: a verdict's effects, in the order that is safe to be interrupted.
"""

from __future__ import annotations

from lastgood.records.keeping import Effects, Kept, effects_of, keep_verdict
from lastgood.records.record import (
    Measurements,
    Record,
    RecordName,
    generations_on_record,
    list_records,
    newest_first,
    newest_pass,
    newest_record,
    newest_records,
    next_attempt,
)

__all__ = [
    "Effects",
    "Kept",
    "Measurements",
    "Record",
    "RecordName",
    "effects_of",
    "generations_on_record",
    "keep_verdict",
    "list_records",
    "newest_first",
    "newest_pass",
    "newest_record",
    "newest_records",
    "next_attempt",
]
