"""Checkpoints that are recognised by name and not judged: torchsnapshot, Orbax, Composer, ByteCheckpoint.

Decides only whose they are, so that nobody takes silence about them for health. Source: the layouts that these
frameworks write; `docs/foreign.md` says more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from lastgood.formats.description import Certainty, Description, Framework, Layout
from lastgood.formats.readers.contents import Contents
from lastgood.formats.readers.wording import not_judged
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source

__all__ = ["BYTECHECKPOINT", "COMPOSER", "COMPOSER_FILE", "ORBAX", "TORCHSNAPSHOT", "NamedReader"]

_COMPOSER_FILE = re.compile(r"ep\d+-ba\d+(-rank\d+)?(\.pt)?")
_ORBAX_SIGNS = ("_CHECKPOINT_METADATA", "commit_success.txt", "manifest.ocdbt", "_METADATA")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedReader:
    """A framework whose checkpoints are told by the names in them.

    Args:
        framework: Whose.
        is_it: Whether a checkpoint is one of its.
    """

    framework: Framework
    is_it: Callable[[Source], bool]

    def recognises(self, source: Source) -> bool:
        return self.is_it(source)

    def describe(self, source: Source) -> Description:
        return Description(
            framework=self.framework,
            layout_name="recognised by name",
            step=None,
            layout=Layout(world_size=None, certainty=Certainty.UNKNOWN, why="nothing of it was read"),
            components=(),
            notes=(not_judged(source.name, self.framework),),
            unknowable=(f"whether training could resume from it: {self.framework} has no reader here",),
        )

    def choose(self, root: Root) -> Choice | None:
        return None


def _is_torchsnapshot(source: Source) -> bool:
    return source.holds(".snapshot_metadata")


def _is_orbax(source: Source) -> bool:
    if any(source.holds(name) for name in _ORBAX_SIGNS) or ".orbax-checkpoint-tmp" in source.name:
        return True
    items = {path.partition("/")[0] for path in source.files if "/" in path}
    return any(source.holds(f"{item}/{name}") for item in items for name in ("manifest.ocdbt", "_METADATA"))


def _is_composer(source: Source) -> bool:
    return source.holds("composer_metadata.json") or _COMPOSER_FILE.fullmatch(source.name) is not None


def _is_composer_file(source: Source) -> bool:
    """A single file under a name of the user's own gives itself away by what it holds."""
    path = next(iter(source.files), "")
    if not source.is_file or not path.endswith(".pt"):
        return False
    with Contents(source).torch(path) as content:
        return content is not None and isinstance(content.value, dict) and {"state", "rng"} <= set(content.value)
    return False


def _is_bytecheckpoint(source: Source) -> bool:
    return source.holds("model/.metadata") and (
        source.holds("optimizer/.metadata") or bool(source.matching(prefix="extra_state/extra_state_rank_"))
    )


TORCHSNAPSHOT = NamedReader(framework=Framework.TORCHSNAPSHOT, is_it=_is_torchsnapshot)
ORBAX = NamedReader(framework=Framework.ORBAX, is_it=_is_orbax)
COMPOSER = NamedReader(framework=Framework.COMPOSER, is_it=_is_composer)
COMPOSER_FILE = NamedReader(framework=Framework.COMPOSER, is_it=_is_composer_file)
BYTECHECKPOINT = NamedReader(framework=Framework.BYTECHECKPOINT, is_it=_is_bytecheckpoint)
