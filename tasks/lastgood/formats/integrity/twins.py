"""Files of different ranks that hold the same state.

Decides which files are of one set: those whose names differ in the numbers of ranks alone; and which of them must
differ: those that hold tensors of their rank's own. Rules: only what has a checksum for every record can be called
equal without being read; what is lawfully alike is no finding, for it would refuse a healthy checkpoint. Alike are
random states (ranks that were seeded alike and draw alike), placeholders (the model states of ZeRO-3), whatever holds
zeros alone (moments before a first gradient, padding), and copies that every rank saved of the same whole model.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator

from lastgood.formats.containers.zipdirectory import Directory, Record
from lastgood.formats.integrity.looking import Seen
from lastgood.verdict import Finding, Reason

__all__ = ["twins"]

_RANK = re.compile(r"(?<![a-z])(rank|shard|mp|pp|dp|tp|ep)[-_]?\d+(_\d+)*(?!\d)")
"""A rank in a name. A number after any other word counts optimizers, steps, layers or experts, which may be alike."""
_PLACEHOLDERS = re.compile(r"(.*/)?([a-z0-9]+_)?zero_pp_rank_\d+_mp_rank_\d+_model_states\.pt")
"""At ZeRO's third stage: buffers and whatever else all ranks hold alike, with empty tensors where parameters are."""
_TENSOR = "data/"
_ZEROS = bytes(2**20)
MINIMUM_BYTES = 4096
"""Of tensors that are not zeros: small ones of two ranks may be alike by chance."""

_Content = tuple[tuple[str, int, int], ...]


def twins(
    seen: Iterable[Seen], *, may_be_alike: Collection[str] = (), may_be_replicas: bool = False
) -> Iterator[Finding]:
    """Find shards that are another rank's, record for record.

    Args:
        seen: Every file that was looked at.
        may_be_alike: Paths that hold nothing but random states.
        may_be_replicas: Nothing says that the ranks held different parts: where all are alike, each saved the whole.
    """
    sets: dict[str, list[tuple[Seen, _Content]]] = defaultdict(list)
    for one in seen:
        pattern = _RANK.sub("#", one.path)
        if pattern == one.path or one.path in may_be_alike or _PLACEHOLDERS.fullmatch(one.path):
            continue
        if one.directory is not None and (content := _content(one.directory)) is not None:
            sets[pattern].append((one, content))
    for members in sets.values():
        if may_be_replicas and len({content for _, content in members}) == 1:
            continue
        yield from _twins_in(members)


def _twins_in(members: Iterable[tuple[Seen, _Content]]) -> Iterator[Finding]:
    first: dict[_Content, Seen] = {}
    for one, content in members:
        other = first.setdefault(content, one)
        if other is one or one.directory is None or not _tells_ranks_apart(one.directory):
            continue
        yield Finding(
            reason=Reason.RANK_DUPLICATED,
            message=f"rank duplicated: {one.path}: holds, record for record, what {other.path} holds",
            offender=one.path,
            expected="a state of its own",
            found=other.path,
        )


def _content(directory: Directory) -> _Content | None:
    """Every record with its length and checksum; None where that does not tell one content from another."""
    records = directory.records.values()
    if not all(one.crc_recorded for one in records) or sum(map(_tensor_bytes, records)) < MINIMUM_BYTES:
        return None
    return tuple((record.name, record.data_bytes, record.crc32) for record in records)


def _tells_ranks_apart(directory: Directory) -> bool:
    """Whether enough of the tensors is anything but zeros. Asked of what is alike already, since it takes a while."""
    told = 0
    for record in directory.records.values():
        size = _tensor_bytes(record)
        if size and record.crc32 != _crc_of_zeros(size):
            told += size
            if told >= MINIMUM_BYTES:
                return True
    return False


def _tensor_bytes(record: Record) -> int:
    return record.data_bytes if record.name.startswith(_TENSOR) else 0


def _crc_of_zeros(size_bytes: int) -> int:
    crc = 0
    for start in range(0, size_bytes, len(_ZEROS)):
        crc = zlib.crc32(_ZEROS[: size_bytes - start], crc)
    return crc
