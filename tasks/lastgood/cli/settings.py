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

__all__ = ["NEITHER", "Replayable", "config_option", "configured", "find_family", "replica_of"]

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
    if "/" not in name_or_uri and name_or_uri in configuration.families:
        settings = configuration.families[name_or_uri]
        return locate(settings.uri(name_or_uri)), settings
    location = locate(name_or_uri)
    return location, configuration.families.get(location.keys.family)


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
        raise UsageError(
            f"no replica declared for family {location.keys.family}",
            hint=f"add [families.{location.keys.family}.replica] with a command to {DEFAULT_FILE}",
        )
    return Replayable(replica=settings.replica, objectives=settings.objectives, ignored=settings.ignored)
