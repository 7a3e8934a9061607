"""The configuration that flows read: the file that `LASTGOOD_CONFIG` names in the worker's environment.

Decides which family a name means. Rule: whoever starts a run names a family of that file, never a path or a URL, so
that no event and no form can point a worker at anything else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lastgood.config import Configuration, FamilySettings, read_configuration
from lastgood.errors import UsageError
from lastgood.family import Family
from lastgood.location import Location
from lastgood.stores import StoreSettings, settings_of

__all__ = ["VARIABLE", "ConfiguredFamily", "configured_families", "configured_family", "read_settings"]

VARIABLE = "LASTGOOD_CONFIG"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredFamily:
    """A family of the configuration: where it is, what is demanded of it, and how its store is spoken to."""

    name: str
    location: Location
    settings: FamilySettings
    store_settings: StoreSettings | None = None

    @property
    def family(self) -> Family:
        """The family as gates ask it, with the checks that its settings accept."""
        return Family(self.location, ignored=self.settings.ignored)


def read_settings() -> Configuration:
    """The whole configuration of this worker.

    Raises:
        UsageError: The environment names no file, or the file is not there or wrong.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        raise UsageError(
            f"no configuration: {VARIABLE} is not set where this run was started",
            hint="set it in the environment of the worker, or in the pool's or deployment's job variables",
        )
    return read_configuration(Path(path))


def configured_family(name: str) -> ConfiguredFamily:
    """One family by its name.

    Raises:
        UsageError: The configuration is wrong or names no such family.
    """
    return _configured(read_settings(), name)


def configured_families(names: Sequence[str] = ()) -> tuple[ConfiguredFamily, ...]:
    """Families by their names, in the order asked; without a name: every one of the configuration.

    Raises:
        UsageError: The configuration is wrong, names no family at all, or not one that was asked for.
    """
    configuration = read_settings()
    chosen = list(dict.fromkeys(names)) or list(configuration.families)
    if not chosen:
        raise UsageError(
            f"no family configured: {os.environ[VARIABLE]}", hint="add [families.NAME] with a root to lastgood.toml"
        )
    return tuple(_configured(configuration, name) for name in chosen)


def _configured(configuration: Configuration, name: str) -> ConfiguredFamily:
    settings = configuration.settings(name)
    location = configuration.locate(settings.uri(name))
    if location.generation is not None:
        raise UsageError(f"names a generation, not a family: {name}: {location.uri}")
    spoken = settings_of(location.store.uri, configuration.stores)
    return ConfiguredFamily(name=name, location=location, settings=settings, store_settings=spoken)
