"""`lastgood.toml`: families, where they are, how their replica is started, and what is demanded of recovery.

Decides what a lawful configuration is; unknown keys, wrong types, and ignored checks that no gate asks or that have no
written reason are errors that name the file and the place. Leaves secrets to the environment: a replica is given only
the variables named here.

    [families.llm-7b]
    root = "/checkpoints"                      # the family is /checkpoints/llm-7b

    [families.llm-7b.replica]
    command = ["torchrun", "--standalone", "--nproc-per-node={world_size}", "train.py"]
    directory = "/srv/llm"                     # relative paths start at this file
    environment = { OMP_NUM_THREADS = "1" }
    pass_environment = ["CUDA_VISIBLE_DEVICES"]

    [families.llm-7b.objectives]
    rpo_steps = 1000
    rto_seconds = 900.0

    [stores."s3://bucket/runs"]                # only for what boto3's own configuration does not say
    endpoint = "https://s3.example.org"
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from lastgood.checks import CHECKS
from lastgood.documents import Document
from lastgood.errors import FormatError, UsageError
from lastgood.identity import check_family_name
from lastgood.location import Location, locate
from lastgood.stores import StoreSettings
from lastgood.text import printable

__all__ = [
    "Configuration",
    "FamilySettings",
    "IgnoredCheck",
    "LedgerSettings",
    "Objectives",
    "ReplicaSettings",
    "ReportSettings",
    "read_configuration",
]

DEFAULT_FILE = "lastgood.toml"
DEFAULT_LEDGER = "lastgood-ledger.sqlite"
MAXIMUM_CHARACTERS = 2**20

Positive = Annotated[float, Meta(gt=0.0, le=10_000_000.0)]
Text = Annotated[str, Meta(min_length=1, max_length=4096)]
_SECRET = re.compile(r"(^|_)(secret|token)s?(_|$)|passw|credential|(access|api|auth|private)_?key", re.IGNORECASE)
"""Names of variables whose values have no place in a file that people copy and commit."""
_Table = TypeVar("_Table", bound=Document)
VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class ReplicaSettings(Document, frozen=True, kw_only=True):
    """How a replica of this family is started (see `replica.contract`).

    Args:
        command: Program and arguments; the placeholders {family} {resume} {stop_step} {world_size} are filled in.
        directory: Working directory; relative to the configuration file.
        environment: Variables to set.
        pass_environment: Variables to hand through from our own environment, e.g. credentials.
        world_size: Ranks of a drill; a restore starts as many as the manifest names.
        smoke_steps: Optimizer steps after a restore, at least 4.
        restore_timeout_seconds: A restore that takes longer fails.
        drill_timeout_seconds: A drill that has not recovered by then fails.
        headroom: How many slots of the `gpu-headroom` limit a replica takes when a flow starts it, e.g. its devices.
    """

    command: Annotated[tuple[Text, ...], Meta(min_length=1, max_length=1000)]
    directory: Text = "."
    environment: dict[VariableName, str] = {}
    pass_environment: tuple[VariableName, ...] = ()
    world_size: Annotated[int, Meta(ge=1, le=100_000)] = 2
    smoke_steps: Annotated[int, Meta(ge=4, le=100_000)] = 4
    restore_timeout_seconds: Positive = 600.0
    drill_timeout_seconds: Positive = 600.0
    headroom: Annotated[int, Meta(ge=1, le=100_000)] = 1


class Objectives(Document, frozen=True, kw_only=True):
    """What saving and recovery must achieve. A drill that misses the first two fails; the report judges all of them.

    Args:
        rpo_steps: Most optimizer steps that a kill may lose.
        rto_seconds: Longest time from the kill to the first step done.
        save_age_seconds: Oldest that the newest committed generation may be; None while nothing need be training.
        creation_ratio: Least part of the publishes begun that were committed.
        verify_age_seconds: Longest that a committed generation may stay without a conclusive tier 1 verdict.
        restore_age_seconds: Oldest that the newest passed restore may be.
        drill_age_seconds: Oldest that the newest passed drill may be.
        proven_generations: Fewest candidates that a full restore has proven.
        inconclusive_seconds: Longest that a gate may go on without a conclusive verdict.
    """

    rpo_steps: Annotated[int, Meta(ge=0)] | None = None
    rto_seconds: Positive | None = None
    save_age_seconds: Positive | None = None
    creation_ratio: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.99
    verify_age_seconds: Positive = 3600.0
    restore_age_seconds: Positive = 2 * 86_400.0
    drill_age_seconds: Positive = 14 * 86_400.0
    proven_generations: Annotated[int, Meta(ge=1, le=1000)] = 2
    inconclusive_seconds: Positive = 86_400.0


class IgnoredCheck(Document, frozen=True, kw_only=True):
    """A check whose findings this family accepts, and the written reason why.

    It holds for gates (`verify`, `restore`, `drill`), which carry the reason in their verdict. `latest`, `exec` and a
    job's own start read no configuration and accept nothing.
    """

    check: Text
    reason: Annotated[str, Meta(min_length=10, max_length=4096)]


class FamilySettings(Document, frozen=True, kw_only=True):
    """One family: where it is, how it is replayed, what it must achieve."""

    root: Text
    replica: ReplicaSettings | None = None
    objectives: Objectives = Objectives()
    ignore: tuple[IgnoredCheck, ...] = ()

    def uri(self, name: str) -> str:
        """The URI of the family of this name."""
        return f"{self.root.rstrip('/')}/{name}"

    @property
    def ignored(self) -> dict[str, str]:
        """Check → reason."""
        return {entry.check: entry.reason for entry in self.ignore}


class LedgerSettings(Document, frozen=True, kw_only=True):
    """Where the index of all evidence lies.

    Args:
        url: SQLAlchemy's, for SQLite or PostgreSQL; None: `lastgood-ledger.sqlite` beside the configuration file. A
            password belongs into the environment (PGPASSWORD, or a password file), never here.
    """

    url: Text | None = None


class ReportSettings(Document, frozen=True, kw_only=True):
    """Where the readiness page and the Data Docs are written.

    Args:
        directory: Relative to the configuration file.
        link: Where that directory can be opened by a browser, for links; None: as a file.
    """

    directory: Text = "lastgood-report"
    link: Text | None = None


class Configuration(Document, frozen=True, kw_only=True):
    """The whole file; paths are absolute once it was read."""

    families: dict[str, FamilySettings] = {}
    stores: dict[str, StoreSettings] = {}
    ledger: LedgerSettings = LedgerSettings()
    report: ReportSettings = ReportSettings()

    def locate(self, uri: str) -> Location:
        """Open what a URI names, with the settings of its store; see `location.locate`.

        Raises:
            UsageError: Not a lawful URI.
        """
        return locate(uri, self.stores)

    def settings(self, family: str) -> FamilySettings:
        """The settings of one family.

        Raises:
            UsageError: The file does not name it.
        """
        if family not in self.families:
            known = ", ".join(sorted(self.families)) or "none"
            raise UsageError(f"family not configured: {family}: lastgood.toml names {known}")
        return self.families[family]


def read_configuration(path: Path) -> Configuration:
    """Read and check a configuration file; relative directories become absolute, from where the file lies.

    Raises:
        UsageError: Not there, not TOML, or not a lawful configuration; the message names the place.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAXIMUM_CHARACTERS + 1)
        if len(text) > MAXIMUM_CHARACTERS:
            raise UsageError(f"configuration too large: {path}: expected at most {MAXIMUM_CHARACTERS} characters")
        document = tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(f"configuration not found: {path}", hint="name it with --config FILE") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"configuration cannot be read: {path}: {error}") from None
    declared, stores = document.pop("families", {}), document.pop("stores", {})
    base = path.absolute().parent
    whole = _convert(document, Configuration, path, "the file")
    if not isinstance(declared, dict):
        raise UsageError(f"configuration is wrong: {path}: families: expected tables [families.NAME]")
    families = {}
    for name, table in declared.items():
        try:
            check_family_name(name)
        except FormatError as error:
            raise UsageError(f"configuration is wrong: {path}: families: {error.message}") from None
        settings = _convert(table, FamilySettings, path, f"families.{name}")
        _refuse_secrets(settings, path, f"families.{name}")
        _refuse_unknown_checks(settings, path, f"families.{name}")
        families[name] = _anchored(settings, base)
    return Configuration(
        families=families,
        stores=_stores(stores, path),
        ledger=_ledger(whole.ledger, path, base),
        report=_report(whole.report, base),
    )


def _stores(declared: object, path: Path) -> dict[str, StoreSettings]:
    if not isinstance(declared, dict):
        raise UsageError(f'configuration is wrong: {path}: stores: expected tables [stores."s3://bucket/prefix"]')
    for root in declared:
        if not root.startswith("s3://"):
            raise UsageError(
                f"configuration is wrong: {path}: stores: expected s3://bucket/prefix, found {printable(root)}",
                hint="a file system needs no settings",
            )
    return {
        root.rstrip("/"): _convert(table, StoreSettings, path, f'stores."{printable(root)}"')
        for root, table in declared.items()
    }


def _ledger(settings: LedgerSettings, path: Path, base: Path) -> LedgerSettings:
    if settings.url is None:
        return LedgerSettings(url=f"sqlite:///{base / DEFAULT_LEDGER}")
    parts = urlsplit(settings.url)
    if parts.password:
        raise UsageError(
            f"secret in a configuration file: {path}: ledger.url",
            hint="leave the password to PGPASSWORD or a password file (`PGPASSFILE`)",
        )
    if parts.scheme == "sqlite" and not parts.path.startswith("//"):
        return LedgerSettings(url=f"sqlite:///{base / parts.path.removeprefix('/')}")
    return settings


def _report(settings: ReportSettings, base: Path) -> ReportSettings:
    return msgspec.structs.replace(settings, directory=str(base / settings.directory))


def _convert(table: object, kind: type[_Table], path: Path, place: str) -> _Table:
    # One table at a time: msgspec names the path inside a table, but not the key of the mapping that holds it.
    try:
        return msgspec.convert(table, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"configuration is wrong: {path}: {place}: {error}", hint=_suggest(str(error))) from None


def _refuse_secrets(settings: FamilySettings, path: Path, place: str) -> None:
    for variable in settings.replica.environment if settings.replica else ():
        if _SECRET.search(variable):
            raise UsageError(
                f"secret in a configuration file: {path}: {place}.replica.environment.{variable}",
                hint="name it in `pass_environment`; its value stays in the environment",
            )


def _refuse_unknown_checks(settings: FamilySettings, path: Path, place: str) -> None:
    for number, entry in enumerate(settings.ignore):
        if entry.check not in CHECKS:
            close, where = difflib.get_close_matches(entry.check, CHECKS, n=1), f"{place}.ignore[{number}].check"
            raise UsageError(
                f"configuration is wrong: {path}: {where}: no gate asks {printable(entry.check)}",
                hint=f"did you mean `{close[0]}`?" if close else "name a check as verdicts show it, e.g. `chain`",
            )


def _anchored(settings: FamilySettings, base: Path) -> FamilySettings:
    changes: dict[str, Any] = {}
    if "://" not in settings.root:
        changes["root"] = str(base / settings.root)
    if settings.replica is not None:
        directory = str(base / settings.replica.directory)
        changes["replica"] = msgspec.structs.replace(settings.replica, directory=directory)
    return msgspec.structs.replace(settings, **changes)


def _suggest(message: str) -> str | None:
    unknown = re.search(r"unknown field `([^`]+)`", message)
    if unknown is None:
        return None
    types = (
        Configuration,
        FamilySettings,
        ReplicaSettings,
        Objectives,
        IgnoredCheck,
        LedgerSettings,
        ReportSettings,
        StoreSettings,
    )
    known: Mapping[str, None] = {name: None for kind in types for name in kind.__struct_fields__}
    close = difflib.get_close_matches(unknown[1], known, n=1)
    return f"did you mean `{close[0]}`?" if close else None
