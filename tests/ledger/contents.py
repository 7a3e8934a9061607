"""What a ledger holds, so that two can be compared: every row, without the numbers that only join tables."""

from __future__ import annotations

from collections import Counter
from typing import Any

from sqlalchemy import select

from lastgood.ledger import Ledger
from lastgood.ledger.tables import families, metadata, records

__all__ = ["OF_THE_READING", "contents"]

OF_THE_READING = frozenset({"read_at", "failure", "hint"})


def contents(ledger: Ledger) -> dict[str, Counter[tuple[Any, ...]]]:
    """Table → its rows and how often each is there; numbers are replaced by what they stand for."""
    with ledger.reading() as moment:
        named = dict(moment.execute(select(families.c.id, families.c.name)).all())
        keyed = {
            number: (named[family], key)
            for number, family, key in moment.execute(select(records.c.id, records.c.family_id, records.c.key))
        }
        found = {}
        for table in metadata.sorted_tables:
            columns = [column for column in table.c if column.name not in OF_THE_READING | {"id"}]
            stands_for = {"family_id": named, "record_id": keyed}
            found[table.name] = Counter(
                tuple(
                    stands_for[column.name][value] if column.name in stands_for else value
                    for column, value in zip(columns, row, strict=True)
                )
                for row in moment.execute(select(*columns))
            )
    return found
