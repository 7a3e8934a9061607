"""The ledger: an SQL index over every family's saves and evidence, made from storage and never asked for a verdict.

The tour: `tables` says what it holds; `rows` turns documents into rows, `publishes` counts what was begun and not
committed; `reading` reads a family's store; `index` brings one family up to date in one transaction; `database` opens
SQLite or PostgreSQL, runs the `migrations` and holds the lock; `queries` answers the report.

    with open_ledger(configuration.ledger.url) as ledger:
        ledger.update({name: settings.uri(name) for name, settings in configuration.families.items()})
        with ledger.reading() as moment:
            restores = queries.restores(moment)

Source: docs/ledger.md.
"""

from __future__ import annotations

from lastgood.ledger.index import Indexed, Ledger, open_ledger
from lastgood.ledger.reading import Unlawful

__all__ = ["Indexed", "Ledger", "Unlawful", "open_ledger"]
