"""One file by its structure: what it is, whether it can be what its name says, which payload a checksum covers.

Decides which files must be containers: those whose ending, or whose first bytes, say so. Leaves payload to `checksums`.
Rules: a file of zeros under a name of `torch.save` is torn, however long it is; a text has no checksum and is judged by
whoever reads it; a pickle that names what nobody expects is found, for a loader would import it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lastgood.errors import FormatError, ReadLimitError, StoreError
from lastgood.formats.believing import believed_once
from lastgood.formats.containers.pickles import PickleMemory, read_pickle
from lastgood.formats.containers.reading import Problem, ProblemKind
from lastgood.formats.containers.tensors import read_tensor_header
from lastgood.formats.containers.torchfile import Container, TorchFile, container_of, read_torch_file
from lastgood.formats.containers.torchzip import TorchZip, open_torch_zip
from lastgood.formats.containers.zipdirectory import Directory
from lastgood.formats.readers.wording import malformed
from lastgood.formats.source import Source
from lastgood.stores.port import ObjectReader
from lastgood.verdict import Finding, Reason

__all__ = ["Allowance", "Seen", "look_at"]

_TORCH_NAME = re.compile(
    r".*\.(pt|pth|ckpt|distcp)|(.*/)?(pytorch_model.*|adapter_model|training_args|optimizer.*|scheduler.*)\.bin"
)
_SAFETENSORS_NAME = re.compile(r".*\.safetensors")
_PICKLE_NAME = re.compile(r".*\.(pkl|pickle)")
_MAXIMUM_PICKLE_BYTES = 16 * 2**20

_OF_PROBLEM = {
    ProblemKind.RECORD_MISSING: Reason.CONTAINER_MALFORMED,
    ProblemKind.STORAGE_SIZE: Reason.CONTAINER_MALFORMED,
    ProblemKind.UNCOVERED_BYTES: Reason.SIZE_MISMATCH,
}


class Allowance:
    """How many bytes of pickles may still be looked into; shared by threads, and off by at most a file for each."""

    def __init__(self, left_bytes: int) -> None:
        self.left_bytes = left_bytes

    def take(self, size_bytes: int) -> bool:
        """Whether there is room for a pickle of that length."""
        if size_bytes > self.left_bytes:
            return False
        self.left_bytes -= size_bytes
        return True


@dataclass(slots=True, kw_only=True)
class Seen:
    """What one file's structure told.

    Args:
        path: Which.
        container: Its form.
        findings: What is wrong with it.
        directory: Of its archive, where it is one.
        covered: Bytes of payload with a checksum.
        unrecorded: Bytes of payload whose checksum was left out.
        bare: Bytes for which its format has no checksum.
        globals: Names that unpickling it would import beside the known ones.
        is_looked_into: Whether its pickle was read, if it has one.
        unread: What the store could not read.
        untold: Why nothing is known of it, where it is more than is read here.
    """

    path: str
    container: Container
    findings: list[Finding] = field(default_factory=list)
    directory: Directory | None = None
    covered: int = 0
    unrecorded: int = 0
    bare: int = 0
    globals: tuple[str, ...] = ()
    is_looked_into: bool = True
    unread: str | None = None
    untold: str | None = None


def look_at(source: Source, path: str, allowance: Allowance) -> Seen:
    """Look at one file; what the store could not read is in the answer."""
    try:
        with source.open(path) as reader:
            return believed_once(source, path, lambda: _look(reader, path, allowance, source.memory))
    except ReadLimitError as error:
        return Seen(path=path, container=Container.UNKNOWN, untold=error.message)
    except FormatError as error:
        return Seen(path=path, container=Container.UNKNOWN, findings=[malformed(error, path)])
    except StoreError as error:
        return Seen(path=path, container=Container.UNKNOWN, unread=f"{path}: {error.message}")


def _look(reader: ObjectReader, path: str, allowance: Allowance, memory: PickleMemory | None) -> Seen:
    seen = Seen(path=path, container=container_of(reader, path))
    if seen.container is Container.TORCH_ZIP:
        archive = open_torch_zip(reader, path)
        _count_records(archive, seen)
        record = archive.records.get("data.pkl")
        if record is None:
            # Another program's zip is nobody's checkpoint, unless its name says so.
            if _TORCH_NAME.fullmatch(path):
                archive.read_record("data.pkl", 1)
        elif allowance.take(record.data_bytes):
            _take_file(read_torch_file(reader, path, memory), seen)
        else:
            seen.is_looked_into = False
    elif seen.container is Container.TORCH_LEGACY:
        seen.bare = reader.size_bytes
        _take_file(read_torch_file(reader, path), seen)
    elif seen.container is Container.SAFETENSORS or _SAFETENSORS_NAME.fullmatch(path):
        seen.bare = reader.size_bytes - read_tensor_header(reader, path).data_start
    elif seen.container is Container.PICKLE or _PICKLE_NAME.fullmatch(path):
        _look_at_pickle(reader, seen, allowance)
    else:
        seen.bare = reader.size_bytes
        if _TORCH_NAME.fullmatch(path):
            read_torch_file(reader, path)  # says what it is instead
    return seen


def _count_records(archive: TorchZip, seen: Seen) -> None:
    seen.directory = archive.directory
    for record in archive.records.values():
        if record.crc_recorded:
            seen.covered += record.data_bytes
        else:
            seen.unrecorded += record.data_bytes


def _take_file(file: TorchFile, seen: Seen) -> None:
    seen.globals = file.pickled.unknown_globals
    grouped: dict[Reason, list[Problem]] = {}
    for problem in file.problems:
        grouped.setdefault(_OF_PROBLEM.get(problem.kind, Reason.CONTAINER_MALFORMED), []).append(problem)
    for reason, problems in grouped.items():
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        seen.findings.append(Finding(reason=reason, message=f"{problems[0].message}{more}", offender=seen.path))


def _look_at_pickle(reader: ObjectReader, seen: Seen, allowance: Allowance) -> None:
    seen.bare = reader.size_bytes
    if reader.size_bytes == 0:
        raise FormatError(f"empty file: {seen.path}: expected a pickle", where=seen.path)
    if reader.size_bytes > _MAXIMUM_PICKLE_BYTES or not allowance.take(reader.size_bytes):
        seen.is_looked_into = False
        return
    seen.globals = read_pickle(reader.read_at(0, reader.size_bytes), seen.path).unknown_globals
