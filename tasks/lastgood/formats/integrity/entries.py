"""Where torch DCP keeps payload: the entries of every `.metadata` of a checkpoint, wherever its directories lie.

Decides which bytes of which `.distcp` file are an archive of their own, and compares lengths. Leaves the rest of what
metadata says to the readers. Rule: a file is exactly as long as its last entry reaches.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from dataclasses import dataclass, field

from lastgood.errors import FormatError, ReadLimitError, StoreError
from lastgood.formats.believing import believed
from lastgood.formats.containers.dcpmetadata import DcpEntry
from lastgood.formats.readers.distcp import read_metadata
from lastgood.formats.readers.wording import malformed, wrong_length
from lastgood.formats.source import Source
from lastgood.verdict import Finding

__all__ = ["Entries", "read_entries"]

_METADATA = re.compile(r"(?P<directory>(?:.*/)?)(?:__\d+)?\.metadata")


@dataclass(slots=True, kw_only=True)
class Entries:
    """What all metadata files list.

    Args:
        by_path: Data file → its entries; of files that are there.
        objects: Those that hold pickled objects instead of tensors, which a loader unpickles without a restriction.
        metadata: Metadata file → names that its own pickle would import beside the known ones.
        metadata_bytes: Length of them.
        findings: Metadata that makes no sense, files of another length.
        unread: What the store could not read.
        untold: Metadata that is more than is read here.
    """

    by_path: dict[str, list[DcpEntry]] = field(default_factory=lambda: defaultdict(list))
    objects: list[DcpEntry] = field(default_factory=list)
    metadata: dict[str, tuple[str, ...]] = field(default_factory=dict)
    metadata_bytes: int = 0
    findings: list[Finding] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)

    @property
    def payload_bytes(self) -> int:
        """Length of all entries."""
        return sum(entry.length for entries in self.by_path.values() for entry in entries)


def read_entries(source: Source) -> Entries:
    """Read every metadata file of a checkpoint."""
    found = Entries()
    for path in source.matching(suffix=".metadata"):
        if (match := _METADATA.fullmatch(path)) is None:
            continue
        try:
            _read(source, path, match["directory"], found)
        except ReadLimitError as error:
            found.untold.append(error.message)
        except FormatError as error:
            found.findings.append(malformed(error, path))
        except StoreError as error:
            found.unread.append(f"{path}: {error.message}")
    return found


def _read(source: Source, path: str, directory: str, found: Entries) -> None:
    metadata = believed(lambda: read_metadata(source, path), path)
    found.metadata[path] = metadata.unknown_globals
    found.metadata_bytes += source.files[path].bytes
    objects = frozenset(metadata.objects)
    for entry in metadata.entries:
        placed = dataclasses.replace(entry, path=f"{directory}{entry.path}")
        if source.holds(placed.path):
            found.by_path[placed.path].append(placed)
            if placed.fqn in objects:
                found.objects.append(placed)
    for name, expected in metadata.file_bytes().items():
        offender = f"{directory}{name}"
        if source.holds(offender) and (length := source.files[offender].bytes) != expected:
            why = f"{path} lists entries up to there"
            found.findings.append(wrong_length(offender, why, expected=expected, found=length))
