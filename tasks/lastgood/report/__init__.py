"""The data-quality report: frames from the ledger, objectives judged by Great Expectations, the readiness page.

The tour: `frames` holds what the ledger says as pandas tables; `indicators` condenses them to a row a family;
`expectations` asks of each row what `lastgood.toml` demands; `building` puts them together as a `Report`; `page` and
`metrics` show one, `documents` builds Great Expectations' own pages without the internet; `writing` puts all of it into
the report's directory, so that a reader never sees half.

Importing this package loads nothing heavy; its modules load pandas, and only `expectations` loads Great Expectations.
"""
