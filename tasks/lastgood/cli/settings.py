"""The configuration file as commands take it: `--config FILE`, else `lastgood.toml` in the working directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from lastgood.config import (
    DEFAULT_FILE,
    Configuration,
    FamilySettings,
    Objectives,
    ReplicaSettings,
    read_configuration,
)
from lastgood.errors import UsageError
from lastgood.location import Location, locate

__all__ = [
    "Replayable",
    "config_option",
    "configured",
    "find_family",
    "find_location",
    "no_such_family",
    "replica_of",
]

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
    if name_or_uri in configuration.families:
        settings = configuration.families[name_or_uri]
        return configuration.locate(settings.uri(name_or_uri)), settings
    location = configuration.locate(name_or_uri)
    return location, configuration.families.get(location.keys.family)


def find_location(name_or_uri: str, config: Path | None) -> Location:
    """What an argument names, for who needs no settings: a path is taken without a look at the configuration.

    So a launch script and an operator's act by path never fail for a file that they do not need. How a bucket is spoken
    to may stand there.
    """
    if "/" in name_or_uri and not name_or_uri.startswith("s3://"):
        return locate(name_or_uri)
    return find_family(name_or_uri, config)[0]


def no_such_family(location: Location, settings: FamilySettings | None) -> UsageError:
    """The refusal of a family that is not there, with what its absence most likely means."""
    empty = f"{DEFAULT_FILE} declares it, but nobody has published there: does its job run, and is the root mounted?"
    return UsageError(f"not a lastgood family: {location.family_uri}", hint=NEITHER if settings is None else empty)


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
    if settings is None or settings.replica is None:
        name = location.keys.family
        raise UsageError(
            f"no replica declared for family {name}",
            hint=f"add [families.{name}.replica] with a command to {DEFAULT_FILE}, or name the file: --config FILE",
        )
    return Replayable(replica=settings.replica, objectives=settings.objectives, ignored=settings.ignored)
