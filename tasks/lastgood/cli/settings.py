"""The configuration file as commands take it: `--config FILE`, else `lastgood.toml` in the working directory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import click

from lastgood.cli.output import complain
from lastgood.config import (
    DEFAULT_FILE,
    MAXIMUM_CHARACTERS,
    Configuration,
    FamilySettings,
    Objectives,
    ReplicaSettings,
    did_you_mean,
    read_configuration,
)
from lastgood.errors import LastgoodError, UsageError
from lastgood.family import Family
from lastgood.location import Location, Place, locate, locate_ours, locate_place
from lastgood.stores import Store, StoreSettings, local_path

__all__ = [
    "Replayable",
    "config_option",
    "configured",
    "find_family",
    "find_location",
    "find_ours",
    "find_place",
    "look_deeper",
    "no_such_family",
    "no_such_place",
    "replica_of",
    "stores_of_path",
    "where_to_ask",
]

MAXIMUM_LINKS = 8
MAXIMUM_NAMED = 5
NEITHER = f"expected <root>/<family>, or the name of a family that {DEFAULT_FILE} in the working directory declares"

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path),
    default=None,
    envvar="LASTGOOD_CONFIG",
    help=f"Configuration file.  [default: {DEFAULT_FILE} in the working directory]",
)


def configured(path: Path | None) -> Configuration:
    """The configuration; an empty one when nobody named a file and none lies here.

    Raises:
        UsageError: The named file is not there, or a file is wrong.
    """
    if path is None and not Path(DEFAULT_FILE).exists():
        return Configuration()
    return read_configuration(path or Path(DEFAULT_FILE))


def find_family(name_or_uri: str, config: Path | None) -> tuple[Location, FamilySettings | None]:
    """What an argument names: a family of the configuration by its name, or a URI; with its settings, if it has any."""
    configuration = configured(config)
    uri, settings = _named(name_or_uri, configuration)
    location = configuration.locate(uri)
    return location, settings or configuration.families.get(location.keys.family)


def find_location(name_or_uri: str, config: Path | None) -> Location:
    """What an argument names, for who needs no settings.

    A launch script and an operator's act by path never fail for a file that they do not need. How a bucket is spoken to
    may stand there, and where the evidence of a path lies: where none lies beside it, a file that cannot be read is
    one that is needed.
    """
    if "/" not in name_or_uri or name_or_uri.startswith("s3://"):
        return find_family(name_or_uri, config)[0]
    try:
        stores = stores_of_path(config)
    except UsageError:
        location = locate(_followed(name_or_uri))
        beside = location.store.local_directory(location.keys.ours)
        if beside is None or not beside.is_dir():
            raise
        return location
    return locate(_followed(name_or_uri), stores)


def stores_of_path(config: Path | None) -> Mapping[str, StoreSettings]:
    """What a path needs of the configuration: where its evidence lies. A file that is wrong keeps nobody from a path,
    unless it speaks of that: what was barred or cut there must not look like a family without a commit.

    Raises:
        UsageError: The file is wrong, and may say where evidence lies.
    """
    try:
        return configured(config).stores
    except UsageError:
        if _speaks_of_evidence(config or Path(DEFAULT_FILE)):
            raise
        return {}


def _speaks_of_evidence(file: Path) -> bool:
    """Also where nobody can read what it says, as of one that was named and is not there."""
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(MAXIMUM_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError):
        return True
    return "evidence" in text or len(text) > MAXIMUM_CHARACTERS


def find_ours(name_or_uri: str, config: Path | None) -> tuple[Location | None, FamilySettings | None]:
    """As `find_family`, but without a location where nothing of ours lies: perhaps another framework's checkpoints."""
    configuration = configured(config)
    uri, settings = _named(name_or_uri, configuration)
    location = locate_ours(uri, configuration.stores)
    return location, settings or (configuration.families.get(location.keys.family) if location is not None else None)


def find_place(name_or_uri: str, config: Path | None) -> Place:
    """Where an argument leads, whoever wrote what lies there."""
    configuration = configured(config)
    uri, settings = _named(name_or_uri, configuration)
    if settings is None and uri != name_or_uri:
        complain(f"a link: {name_or_uri}: {uri} is what it leads to, and is looked at", None)
    return locate_place(uri, configuration.stores)


def _named(name_or_uri: str, configuration: Configuration) -> tuple[str, FamilySettings | None]:
    """The URI that an argument means: of the family that the configuration gives that name, with its settings.

    A misspelled name is also a lawful relative path: a launcher that takes it for one starts a run at step zero. But
    `run-2` beside a declared `run-1` is the next of a series.
    """
    settings = configuration.families.get(name_or_uri)
    if settings is not None:
        return settings.uri(name_or_uri), settings
    is_word = "/" not in name_or_uri and not os.path.lexists(name_or_uri)
    others = [name for name in configuration.families if _undigited(name) != _undigited(name_or_uri)]
    meant = did_you_mean(name_or_uri, others) if is_word else None
    if meant is not None:
        raise UsageError(
            f"no family of that name: {name_or_uri}: the configuration does not declare it, and nothing lies there",
            hint=f"{meant} write ./{name_or_uri} for a path that is yet to be made",
        )
    return _followed(name_or_uri), None


def _undigited(name: str) -> str:
    return re.sub(r"\d+", "", name)


def look_deeper(store: Store, key: str, uri: str) -> str | None:
    """Which directories below hold checkpoints, where it was asked one level too high and nothing was found.

    Args:
        store: Where it was asked.
        key: Of what was asked about.
        uri: The same, as it is called.
    """
    # Imported when nothing was found: whatever starts a trainer pays for the start of each.
    from lastgood.formats.trees import holding_checkpoints

    try:
        names = list(islice(holding_checkpoints(store, key), MAXIMUM_NAMED + 1))
    except LastgoodError:
        return None  # the answer stands: this was advice
    more = " and more" if len(names) > MAXIMUM_NAMED else ""
    named = ", ".join(f"{uri}/{name}" for name in names[:MAXIMUM_NAMED])
    return f"look one level deeper: {named}{more}" if names else None


def where_to_ask(store: Store, key: str, uri: str) -> str | None:
    """What to ask instead, where nothing was published or sealed; None where nothing lies that anybody knows.

    Args:
        store: Where it was asked.
        key: Of what was asked about.
        uri: The same, as it is called.
    """
    from lastgood.formats.trees import find_checkpoints

    try:
        found = list(islice(find_checkpoints(store, key, deep=False, on_trouble=lambda _key, _error: None), 2))
    except LastgoodError:
        return None  # as above
    if not found:
        return look_deeper(store, key, uri)
    if all(one.prefix == key and not one.is_file for one in found):
        return (
            f"this is a checkpoint that nobody sealed: `lastgood latest --policy structural {uri.rpartition('/')[0]}` "
            f"asks the directory that it lies in, and `lastgood seal {uri}` adopts it"
        )
    return (
        f"checkpoints that nobody sealed lie here: `lastgood latest --policy structural {uri}` names the newest that "
        f"is whole, and what `lastgood seal` adopts is offered by every policy"
    )


def _followed(uri: str) -> str:
    """Where a path leads that is a link itself (`latest -> step-100`): whoever names one means what it leads to.

    A family that lies on another disk under the same name keeps the path that it is known by.
    """
    if "://" in uri and not uri.startswith("file:"):
        return uri
    whole = str(local_path(uri)) if uri.startswith("file:") else uri
    path = whole.rstrip("/")
    for _ in range(MAXIMUM_LINKS):
        if not os.path.islink(path):
            break
        target = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
        is_family = os.path.isdir(os.path.join(path, ".lastgood"))
        if is_family and os.path.basename(target) == os.path.basename(path):
            break
        path = target
    return path if path != whole.rstrip("/") else uri


def no_such_family(location: Location, settings: FamilySettings | None) -> UsageError:
    """The refusal of a family that is not there, with what its absence most likely means."""
    hint = where_to_ask(location.store, location.keys.family, location.family_uri)
    if hint is None:
        empty = f"{DEFAULT_FILE} declares it, but nobody has published there: does its job run, is the root mounted?"
        hint = NEITHER if settings is None else empty
    return UsageError(f"not a lastgood family: {location.family_uri}", hint=hint)


def no_such_place(place: Place, settings: FamilySettings | None) -> UsageError:
    """The refusal of a path under which nothing lies, ours or anybody's."""
    if settings is not None:
        return no_such_family(locate(place.uri), settings)
    return UsageError(f"no family and no checkpoint: {place.uri}: nothing lies there", hint=NEITHER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayable:
    """A family whose configuration says how its replica is started."""

    replica: ReplicaSettings
    objectives: Objectives
    ignored: Mapping[str, str]


def replica_of(location: Location, settings: FamilySettings | None) -> Replayable:
    """How a family's replica is started, and what it must achieve.

    Raises:
        UsageError: The configuration says nothing about it.
    """
    if settings is None and not Family(location).exists():
        raise no_such_family(location, settings)
    if settings is None or settings.replica is None:
        name = location.keys.family
        raise UsageError(
            f"no replica declared for family {name}",
            hint=f"add [families.{name}.replica] with a command to {DEFAULT_FILE}, or name the file: --config FILE",
        )
    return Replayable(replica=settings.replica, objectives=settings.objectives, ignored=settings.ignored)
