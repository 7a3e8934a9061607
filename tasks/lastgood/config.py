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

    [relay]                                    # who announces commits, for `lastgood relay` and its flow
    source = "sqs"
    queue_url = "https://sqs.eu-central-1.amazonaws.com/123456789012/lastgood-saves"

    [stores."s3://bucket/runs"]                # only for what boto3's own configuration does not say
    endpoint = "https://s3.example.org"
    verify = { mode = "rotating", rotation = 16, read_all_below_gib = 64.0 }

    [stores."/mnt/research"]                   # what may only be read: `.lastgood` lies elsewhere
    evidence = "/srv/lastgood/research"
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
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
from lastgood.stores import StoreSettings, VerifySettings, is_path, normal_root, unlinked
from lastgood.text import printable

__all__ = [
    "Configuration",
    "DaskSettings",
    "FamilySettings",
    "IgnoredCheck",
    "LedgerSettings",
    "Objectives",
    "RelaySettings",
    "RelaySource",
    "ReplicaSettings",
    "ReportSettings",
    "did_you_mean",
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


class RelaySource(StrEnum):
    """Who says that something was committed."""

    SQS = "sqs"
    """S3, SNS or EventBridge, in a queue."""
    WEBHOOK = "webhook"
    """A bucket's own server, over HTTP."""
    POLL = "poll"
    """Nobody: the names of commits are listed."""
    WATCH = "watch"
    """The kernel, of local disks; listings elsewhere."""


class RelaySettings(Document, frozen=True, kw_only=True):
    """Who announces commits. The webhook's secret stays in the environment (LASTGOOD_RELAY_SECRET).

    Args:
        source: None: the relay is not configured here.
        queue_url: sqs: the queue.
        host: webhook: where to listen.
        port: webhook: likewise; 0: a free one.
        spool: webhook: keeps what was accepted, on a local disk; relative to the configuration file.
        metrics: sqs, webhook: a file for Prometheus' textfile collector; relative to the configuration file.
        poll_seconds: poll, watch: how often to list the names of commits where nothing notifies.
        listing_seconds: How often to list every family, whatever was announced.
        patience_seconds: How long a run that was begun may judge nothing before another is asked for.
    """

    source: RelaySource | None = None
    queue_url: Text | None = None
    host: Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8787
    spool: Text = "lastgood-relay"
    metrics: Text | None = None
    poll_seconds: Annotated[float, Meta(ge=0.1, le=86_400.0)] = 2.0
    listing_seconds: Annotated[float, Meta(ge=1.0, le=86_400.0)] = 60.0
    patience_seconds: Annotated[float, Meta(ge=1.0, le=10_000_000.0)] = 900.0


class DaskSettings(Document, frozen=True, kw_only=True):
    """Workers among which flows spread the reading of one generation.

    Args:
        workers: Into how many shares a generation is cut; without an address, so many processes are started for a run.
        address: Of a running Dask scheduler, e.g. `tcp://scheduler:8786`; whoever reaches it runs what he likes there.
    """

    workers: Annotated[int, Meta(ge=2, le=1000)]
    address: Text | None = None


class Configuration(Document, frozen=True, kw_only=True):
    """The whole file; paths are absolute once it was read."""

    families: dict[str, FamilySettings] = {}
    stores: dict[str, StoreSettings] = {}
    ledger: LedgerSettings = LedgerSettings()
    report: ReportSettings = ReportSettings()
    relay: RelaySettings = RelaySettings()
    dask: DaskSettings | None = None

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
    except OSError as error:
        hint = f"name the file in it, e.g. --config {path / DEFAULT_FILE}" if path.is_dir() else None
        why = (error.strerror or str(error)).lower()
        raise UsageError(f"configuration cannot be read: {path}: {why}", hint=hint) from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"configuration cannot be read: {path}: {error}") from None
    declared, stores = document.pop("families", {}), document.pop("stores", {})
    base = _Base(path)
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
        families[name] = _anchored(settings, base, f"families.{name}")
    return Configuration(
        families=families,
        stores=_stores(stores, base),
        ledger=_ledger(whole.ledger, base),
        report=_report(whole.report, base),
        relay=_relay(whole.relay, base),
        dask=whole.dask,
    )


class _Base:
    """Where relative paths start, which is beside the file; a mistake in one names the file and the place."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._directory = file.absolute().parent

    def wrong(self, place: str, what: str, hint: str | None = None) -> UsageError:
        """The refusal of what stands at a place in the file."""
        return UsageError(f"configuration is wrong: {self.file}: {place}: {what}", hint=hint)

    def path(self, written: str, place: str) -> str:
        """An absolute path.

        Raises:
            UsageError: It begins with `~`, which only a shell replaces: a directory of that name would be made, and the
                file would mean something else for whoever reads it.
        """
        if written.startswith("~"):
            hint = "write the whole path, or ./~ for a directory of that name"
            raise self.wrong(place, f"only a shell replaces `~`: {printable(written)}", hint)
        return str(self._directory / written)

    def root(self, written: str, place: str) -> str:
        """A root as every other place spells it."""
        if not written:
            raise self.wrong(place, "empty root: expected s3://bucket/prefix or a path")
        whole = self.path(written, place) if is_path(written) else written
        try:
            return normal_root(whole)
        except UsageError as error:
            raise self.wrong(place, error.message, error.hint) from None


def _stores(declared: object, base: _Base) -> dict[str, StoreSettings]:
    if not isinstance(declared, dict):
        raise base.wrong("stores", 'expected tables [stores."s3://bucket/prefix"]')
    stores, places = dict[str, StoreSettings](), dict[str, str]()
    for written, table in declared.items():
        place = f'stores."{printable(written)}"'
        settings = _convert(table, StoreSettings, base.file, place)
        root = base.root(written, place)
        if root in stores:
            raise base.wrong(place, f"the same root as {places[root]}", "keep one table of the two, with what both say")
        if not root.startswith("s3://") and settings != StoreSettings(
            verify=settings.verify, evidence=settings.evidence
        ):
            expected = "expected s3://bucket/prefix, or a path with only `verify` and `evidence`"
            raise base.wrong(place, expected, "how a file system is spoken to is nothing to set")
        if settings.evidence is not None:
            settings = msgspec.structs.replace(settings, evidence=base.root(settings.evidence, f"{place}.evidence"))
        stores[root], places[root] = settings, place
    _refuse_shared_trees(stores, places, base)
    _refuse_shared_evidence(stores, base)
    return stores


def _refuse_shared_trees(stores: Mapping[str, StoreSettings], places: Mapping[str, str], base: _Base) -> None:
    """Two names of one tree, by a link, would each have evidence that whoever asks by the other does not see."""
    named = dict[str, str]()
    for root, settings in stores.items():
        if settings.evidence is not None:
            first = named.setdefault(unlinked(root), root)
            if first != root:
                what = f"leads to {unlinked(root)}, as {places[first]} does"
                raise base.wrong(places[root], what, "keep one `evidence` of the two")


def _refuse_shared_evidence(stores: Mapping[str, StoreSettings], base: _Base) -> None:
    """Families of one name would share their commits and bars, and a tree that is only read would be written into."""
    elsewhere = {root: settings.evidence for root, settings in stores.items() if settings.evidence is not None}
    for root, evidence in elsewhere.items():
        for other in (*elsewhere, *(there for tree, there in elsewhere.items() if tree != root)):
            here, there = (f"{unlinked(one).rstrip('/')}/" for one in (evidence, other))
            if here.startswith(there) or there.startswith(here):
                raise base.wrong(
                    f'stores."{printable(root)}".evidence',
                    f"{printable(evidence)} and {printable(other)} overlap",
                    "give each root a place of its own for its evidence, outside of what is only read",
                )


def _ledger(settings: LedgerSettings, base: _Base) -> LedgerSettings:
    if settings.url is None:
        return LedgerSettings(url=f"sqlite:///{base.path(DEFAULT_LEDGER, 'ledger.url')}")
    try:
        parts = urlsplit(settings.url)
    except ValueError:  # whose words may hold the password
        raise base.wrong("ledger.url", "not a URL") from None
    if parts.password:
        raise UsageError(
            f"secret in a configuration file: {base.file}: ledger.url",
            hint="leave the password to PGPASSWORD or a password file (`PGPASSFILE`)",
        )
    if parts.scheme == "sqlite" and not parts.path.startswith("//"):
        return LedgerSettings(url=f"sqlite:///{base.path(parts.path.removeprefix('/'), 'ledger.url')}")
    return settings


def _report(settings: ReportSettings, base: _Base) -> ReportSettings:
    return msgspec.structs.replace(settings, directory=base.path(settings.directory, "report.directory"))


def _relay(settings: RelaySettings, base: _Base) -> RelaySettings:
    metrics = base.path(settings.metrics, "relay.metrics") if settings.metrics is not None else None
    return msgspec.structs.replace(settings, spool=base.path(settings.spool, "relay.spool"), metrics=metrics)


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
            where = f"{place}.ignore[{number}].check"
            raise UsageError(
                f"configuration is wrong: {path}: {where}: no gate asks {printable(entry.check)}",
                hint=did_you_mean(entry.check, CHECKS) or "name a check as verdicts show it, e.g. `chain`",
            )


def _anchored(settings: FamilySettings, base: _Base, place: str) -> FamilySettings:
    changes: dict[str, Any] = {"root": base.root(settings.root, f"{place}.root")}
    if settings.replica is not None:
        directory = base.path(settings.replica.directory, f"{place}.replica.directory")
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
        RelaySettings,
        ReportSettings,
        DaskSettings,
        StoreSettings,
        VerifySettings,
    )
    known: Mapping[str, None] = {name: None for kind in types for name in kind.__struct_fields__}
    return did_you_mean(unknown[1], known)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A question that names what is spelled most alike; None where nothing is."""
    close = difflib.get_close_matches(word, tuple(known), n=1)
    return f"did you mean `{close[0]}`?" if close else None
