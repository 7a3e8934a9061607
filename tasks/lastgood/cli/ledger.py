"""`lastgood ledger`: the SQL index of all evidence, brought up to date, made again, and asked how it stands."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lastgood.cli.output import age, emit_json, json_option, say, table
from lastgood.cli.settings import config_option, configured, find_family, no_such_family
from lastgood.config import DEFAULT_LEDGER, Configuration
from lastgood.errors import FormatError, StoreError, UsageError
from lastgood.family import Family
from lastgood.verdict import FamilyState, worst_exit_code

if TYPE_CHECKING:
    from lastgood.ledger import Indexed, Ledger, Unlawful

__all__ = ["ledger_command"]

SHOWN = 20
"""Malformed documents named in text; `--json` names all."""

_families = click.argument("families", nargs=-1, metavar="[URI|NAME]...")


@click.group("ledger")
def ledger_command() -> None:
    """The SQL index of saves and evidence that the report reads. Storage is the truth; this can be made again from it.

    It lies where `[ledger] url` of lastgood.toml says, by default in lastgood-ledger.sqlite beside that file.
    """


@ledger_command.command("update")
@_families
@config_option
@json_option
def update_command(families: tuple[str, ...], config: Path | None, as_json: bool) -> int:
    """Read what is new of each family.

    NAME is a family of lastgood.toml; without any: each of them. What the ledger holds of other families stays. Exit 1
    when a document is not lawful (the others are in), 2 when a store could not tell (its family stays as it was known).
    """
    with _opened(config) as ledger:
        return _tell(ledger, ledger.update(_uris(families, config)), (), as_json=as_json)


@ledger_command.command("rebuild")
@_families
@config_option
@json_option
def rebuild_command(families: tuple[str, ...], config: Path | None, as_json: bool) -> int:
    """Read everything of each family again.

    NAME is a family of lastgood.toml; without any: each of them, and whatever else the ledger holds is dropped from it.
    Exit as `update`.
    """
    with _opened(config) as ledger:
        uris = _uris(families, config)
        dropped = () if families else ledger.keep_only(uris)
        return _tell(ledger, ledger.rebuild(uris), dropped, as_json=as_json)


@ledger_command.command("status")
@config_option
@json_option
def status_command(config: Path | None, as_json: bool) -> int:
    """Say what the ledger knows, of when, and what kept the last reading from more. Reads no checkpoint store."""
    from lastgood.ledger import queries

    with _opened(config) as ledger, ledger.reading() as moment:
        known, spoiled = queries.families(moment).mappings(), queries.malformed(moment).mappings()
        name = ledger.name
    if as_json:
        emit_json({"ledger": name, "families": known, "malformed": spoiled})
    else:
        say("\n".join([f"ledger {name}", _known(known), *_spoiled(spoiled)]))
    failed = any(row["state"] == FamilyState.COULD_NOT_TELL for row in known)
    codes = [StoreError.exit_code] * failed + [FormatError.exit_code] * bool(spoiled)
    return worst_exit_code(codes)


def _opened(config: Path | None) -> Ledger:
    try:
        from lastgood.ledger import open_ledger
    except ModuleNotFoundError as error:
        raise UsageError(f"not installed: {error.name}", hint="`pip install 'lastgood[report]'`") from None
    configuration = configured(config)
    return open_ledger(_url(configuration), stores=configuration.stores)


def _url(configuration: Configuration) -> str:
    return configuration.ledger.url or f"sqlite:///{Path.cwd() / DEFAULT_LEDGER}"


def _uris(families: tuple[str, ...], config: Path | None) -> dict[str, str]:
    configuration = configured(config)
    if not families:
        uris = {name: settings.uri(name) for name, settings in configuration.families.items()}
        if not uris:
            raise UsageError("no family named: expected families as arguments, or in lastgood.toml")
        return uris
    found = {}
    for named in families:
        location, settings = find_family(named, config)
        if location.generation is not None:
            raise UsageError(f"names a generation, not a family: {location.uri}")
        # What the file declares may be empty yet; what was typed may be mistyped.
        if settings is None and not Family(location).exists():
            raise no_such_family(location, settings)
        found[location.keys.family] = location.family_uri
    return found


def _tell(ledger: Ledger, indexed: tuple[Indexed, ...], dropped: tuple[str, ...], *, as_json: bool) -> int:
    if as_json:
        emit_json({"ledger": ledger.name, "families": [_document(one) for one in indexed], "dropped": list(dropped)})
    else:
        rows = [
            (one.family, str(one.new_saves), str(one.new_records), str(len(one.malformed)), one.failure or "up to date")
            for one in indexed
        ]
        spoiled = [{"family": one.family, **_named(bad)} for one in indexed for bad in one.malformed]
        lines = [f"ledger {ledger.name}", table(rows, ("family", "new saves", "new records", "malformed", "state"))]
        lines += _spoiled(spoiled)
        lines += [f"  hint       {one.family}: {one.hint}" for one in indexed if one.hint]
        lines += [f"  dropped    {name}: not in lastgood.toml" for name in dropped]
        say("\n".join(lines))
    return worst_exit_code(one.exit_code for one in indexed)


def _document(one: Indexed) -> dict[str, Any]:
    return {
        "family": one.family,
        "uri": one.uri,
        "new_saves": one.new_saves,
        "new_records": one.new_records,
        "malformed": [_named(bad) for bad in one.malformed],
        "failure": one.failure,
        "hint": one.hint,
        "exit": one.exit_code,
    }


def _named(bad: Unlawful) -> dict[str, str]:
    return {"key": bad.key, "message": bad.message}


def _spoiled(rows: list[dict[str, Any]]) -> list[str]:
    lines = [f"  malformed  {row['family']}: {row['message']}" for row in rows[:SHOWN]]
    return [*lines, f"  malformed  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else lines


def _known(rows: list[dict[str, Any]]) -> str:
    return table(
        [
            (
                str(row["family"]),
                str(row["state"]),
                f"{row['committed']} of {row['publishes_begun']}",
                str(row["proven"]),
                str(row["malformed"]),
                age(row["read_at"]) if row["read_at"] else "never",
                str(row["failure"] or ""),
            )
            for row in rows
        ],
        ("family", "state", "committed", "proven", "malformed", "read", ""),
    )
