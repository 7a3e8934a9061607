"""Checkpoints that nobody here wrote: what looks at a large one and at thousands take, and what checksums cost.

The large one is 100 GiB of sparse archives, laid out as DeepSpeed's ZeRO stage 3 with sixteen ranks: torch's own
archives whose storages are holes. The checksums are compared with `zlib.crc32` over the same files, by as many threads.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import statistics
import struct
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from benchmarks.harness import Benchmark, Row, Setting, compare, in_turn, wall
from lastgood.cli import run
from lastgood.formats.classify import classify
from lastgood.formats.description import Restorability
from lastgood.formats.integrity import check_integrity
from lastgood.formats.integrity.several import LEAST_THREADS
from lastgood.formats.readers import READERS
from lastgood.formats.source import Source, open_source
from lastgood.stores import LocalStore
from lastgood.stores.port import ObjectReader
from lastgood.verify import Depth

SPARSE_BYTES = 100 * 2**30
SPARSE_RANKS = 16
DENSE_BYTES = 2**30
DENSE_FILES = 4
READ_AT_MOST_MIB = 64
SECONDS_AT_MOST = 2
SPEED_AT_LEAST = 0.8
TREE_CHECKPOINTS = 4000
TREE_RUN_SAVES = 20
TREE_ROUNDS = 3
TREE_RATIO_AT_MOST = 4.4
"""Four times as many checkpoints, and a tenth for what grows faster than they do."""
CHUNK_BYTES = 8 * 2**20
_ALIGNMENT = 64
_RECORDS = 8


def write_archive(path: Path, pickle: bytes, storages: list[int], *, filled: bool, mark: int = 1) -> None:
    """An archive as torch writes it, its storages holes or random bytes.

    Args:
        path: Where.
        pickle: Its `data.pkl`.
        storages: Lengths of `data/0`, `data/1`, …, in bytes.
        filled: Whether the storages hold bytes.
        mark: The checksum that is recorded for a hole, since nobody wants to read one to compute it.
    """
    entries: list[tuple[bytes, int, int, int]] = []
    block = os.urandom(2**20)
    with path.open("wb") as file:
        for record, content, length in (
            ("data.pkl", pickle, len(pickle)),
            ("version", b"3\n", 2),
            *((f"data/{number}", None, length) for number, length in enumerate(storages)),
        ):
            name = f"{path.stem}/{record}".encode()
            start = file.tell()
            wide = struct.pack("<HHQQ", 1, 16, length, length) if length >= _MAX else b""
            padding = -(start + 30 + len(name) + len(wide) + 4) % _ALIGNMENT
            extra = wide + struct.pack("<HH", 0x4246, padding) + bytes(padding)
            file.seek(30 + len(name) + len(extra), os.SEEK_CUR)
            crc = mark
            if content is not None or filled:
                crc = _write(file, content or block, length)
            else:
                file.seek(length, os.SEEK_CUR)
            end = file.tell()
            file.seek(start)
            size = min(length, _MAX)
            file.write(struct.pack("<4s5H3L2H", b"PK\x03\x04", 45, 0, 0, 0, 0, crc, size, size, len(name), len(extra)))
            file.write(name + extra)
            file.seek(end)
            entries.append((name, crc, length, start))
        _write_directory(file, entries)


_MAX = 0xFFFFFFFF


def _write(file: BinaryIO, block: bytes, length: int) -> int:
    """Write so many bytes of the block over and over, and return their checksum."""
    crc = 0
    for offset in range(0, length, len(block)):
        part = block[: length - offset]
        file.write(part)
        crc = zlib.crc32(part, crc)
    return crc


def _write_directory(file: BinaryIO, entries: list[tuple[bytes, int, int, int]]) -> None:
    """The central directory with 64-bit fields throughout."""
    start = file.tell()
    for name, crc, length, place in entries:
        extra = struct.pack("<HHQQQ", 1, 24, length, length, place)
        fields = (45, 45, 0, 0, 0, 0, crc, _MAX, _MAX, len(name), len(extra), 0, 0, 0, 0, _MAX)
        file.write(struct.pack("<4s6H3L5H2L", b"PK\x01\x02", *fields) + name + extra)
    end = file.tell()
    count = len(entries)
    file.write(struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, count, count, end - start, start))
    file.write(struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1))
    file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, count, count, end - start, _MAX, 0))


def _pickled(storages: list[int], more: bytes = b"") -> bytes:
    """A dictionary of one float tensor for each storage, in protocol 2, behind whatever `more` puts into it."""
    parts = [b"\x80\x02}(", more]
    for index, length in enumerate(storages):
        elements = length // 4
        parts += [
            b"X" + struct.pack("<L", 2) + f"t{index}".encode()[:2],
            b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\n",
            b"X" + struct.pack("<L", len(str(index))) + str(index).encode(),
            b"X\x03\x00\x00\x00cpu" + _integer(elements) + b"tQK\x00" + _integer(elements) + b"\x85K\x01\x85\x89",
            b"ccollections\nOrderedDict\n)RtR",
        ]
    return b"".join((*parts, b"u."))


def _integer(value: int) -> bytes:
    data = value.to_bytes(8, "little", signed=True)
    return b"\x8a\x08" + data


def _entry(key: str, value: int) -> bytes:
    return b"X" + struct.pack("<L", len(key)) + key.encode() + _integer(value)


def build_sparse(root: Path) -> None:
    """DeepSpeed's stage 3 as a tag's directory: sixteen ranks with a model's and an optimizer's file each."""
    directory = root / "run" / "global_step1000"
    directory.mkdir(parents=True)
    share = SPARSE_BYTES // SPARSE_RANKS
    told = {"global_steps": 1000, "dp_world_size": SPARSE_RANKS, "mp_world_size": 1}
    engine = b"".join(_entry(key, value) for key, value in told.items())
    for rank in range(SPARSE_RANKS):
        for kind, part, more in (("model", share // 4, engine), ("optim", share * 3 // 4, b"")):
            storages = [part // _RECORDS // 4 * 4] * _RECORDS
            path = directory / f"zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt"
            write_archive(path, _pickled(storages, more), storages, filled=False, mark=rank + 1)


def build_dense(root: Path) -> None:
    """Four archives with a GiB in all."""
    directory = root / "run" / "step-1"
    directory.mkdir(parents=True)
    storages = [DENSE_BYTES // DENSE_FILES // _RECORDS // 4 * 4] * _RECORDS
    for number in range(DENSE_FILES):
        write_archive(directory / f"part_{number}.pt", _pickled(storages), storages, filled=True)


class CountingStore(LocalStore):
    """A store that counts the bytes that are asked of it."""

    read_bytes = 0

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        data = super().get(key, limit_bytes=limit_bytes)
        self.read_bytes += len(data or b"")
        return data

    @contextlib.contextmanager
    def open(self, prefix: str, path: str) -> Iterator[ObjectReader]:  # type: ignore[override]  # any reader
        with super().open(prefix, path) as reader:
            yield _Counting(self, reader)


class _Counting:
    def __init__(self, store: CountingStore, reader: ObjectReader) -> None:
        self._store = store
        self._reader = reader

    @property
    def size_bytes(self) -> int:
        return self._reader.size_bytes

    def read_at(self, offset: int, length: int) -> bytes:
        self._store.read_bytes += length
        return self._reader.read_at(offset, length)


def source_in(store: LocalStore, key: str) -> Source:
    source = open_source(store, key)
    assert source is not None, key
    return source


def look(store: LocalStore) -> None:
    """What a look at a checkpoint does after it has started: list, recognise, describe, compare structure, class."""
    source = source_in(store, "run/global_step1000")
    reader = next(reader for reader in READERS if reader.recognises(source))
    description = reader.describe(source)
    integrity = check_integrity(source, depth=Depth.METADATA, description=description)
    found = classify(description, integrity.findings)
    assert found.restorability is Restorability.RESUMABLE, (found, integrity.findings)


def inspect_sparse(setting: Setting) -> tuple[Row, ...]:
    build_sparse(setting.workspace)
    store = CountingStore(setting.workspace)
    look(store)
    read_mib = store.read_bytes / 2**20
    seconds = sorted(wall(lambda: look(LocalStore(setting.workspace))) for _ in range(setting.rounds))
    what = f"look at {SPARSE_BYTES / 2**30:.0f} GiB of sparse archives of {SPARSE_RANKS} ranks"
    return (
        Row(what=f"{what}: read", against="itself", measured=read_mib, at_most=READ_AT_MOST_MIB, unit="MiB"),
        Row(
            what=f"{what}: time after start-up",
            against="itself",
            measured=statistics.median(seconds),
            at_most=SECONDS_AT_MOST,
            unit="s",
            detail=f"{seconds[0]:.3g}–{seconds[-1]:.3g} s in {len(seconds)} rounds",
        ),
    )


def _plain_crc(path: Path) -> int:
    crc, buffer = 0, bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            crc = zlib.crc32(view[:count], crc)
    return crc


def checksums(setting: Setting) -> tuple[Row, ...]:
    build_dense(setting.workspace)
    store = LocalStore(setting.workspace)
    source = source_in(store, "run/step-1")
    paths = sorted((setting.workspace / "run/step-1").iterdir())
    threads = max(LEAST_THREADS, len(os.sched_getaffinity(0)))

    def ours() -> float:
        def work() -> None:
            found = check_integrity(source)
            assert not found.findings
            assert found.coverage.matching > 0.99 * found.coverage.total

        return wall(work)

    def theirs() -> float:
        def work() -> None:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(_plain_crc, paths))

        return wall(work)

    taken = in_turn({"ours": ours, "zlib": theirs}, setting.rounds)
    return (
        compare(
            f"CRC-32 of every record, {DENSE_BYTES / 2**30:.3g} GiB in {DENSE_FILES} archives, warm",
            taken["ours"],
            taken["zlib"],
            against="`zlib.crc32` over the same files, as many threads",
            at_most=1 / SPEED_AT_LEAST,
            detail=f"zlib {zlib.ZLIB_RUNTIME_VERSION}",
        ),
    )


def build_tree(root: Path, count: int) -> None:
    """Small checkpoints of Trainer, `TREE_RUN_SAVES` a run: eight files each, those of a healthy one."""
    pattern = root / "pattern"
    pattern.mkdir(parents=True)
    (pattern / "config.json").write_text('{"transformers_version": "5.24.0"}', encoding="utf-8")
    header = b'{"w":{"dtype":"F32","shape":[1024],"data_offsets":[0,4096]}}'
    (pattern / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4096))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"):
        write_archive(pattern / name, _pickled([4096]), [4096], filled=True)
    for number in range(count):
        step = number % TREE_RUN_SAVES + 1
        directory = root / "tree" / f"run-{number // TREE_RUN_SAVES:04d}" / f"checkpoint-{step}"
        shutil.copytree(pattern, directory)
        state = f'{{"global_step": {step}, "epoch": 0.5, "max_steps": 100, "log_history": []}}'
        (directory / "trainer_state.json").write_text(state, encoding="utf-8")


def inspect_tree(setting: Setting) -> tuple[Row, ...]:
    """The command over a quarter as many and over all, in this process: its start would hide what grows too fast."""
    few, many = TREE_CHECKPOINTS // 4, TREE_CHECKPOINTS
    for count in (few, many):
        build_tree(setting.workspace / str(count), count)

    def walked(count: int) -> float:
        said = io.StringIO()
        began = time.process_time()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = run(["inspect", "--recursive", str(setting.workspace / str(count) / "tree")])
        taken = time.process_time() - began
        assert code == 0, said.getvalue()[-2000:]
        assert f"{count} checkpoints: {count} resumable" in said.getvalue()
        return taken

    rounds = min(setting.rounds, TREE_ROUNDS)
    taken = in_turn({"many": lambda: walked(many), "few": lambda: walked(few)}, rounds)
    each_milliseconds = statistics.median(taken["many"]) / many * 1000
    return (
        compare(
            f"`inspect --recursive` of {many:,} small checkpoints, CPU",
            taken["many"],
            taken["few"],
            against=f"of {few:,}",
            at_most=TREE_RATIO_AT_MOST,
            detail=f"{each_milliseconds:.3g} ms a checkpoint",
        ),
    )


BENCHMARKS = (
    Benchmark(name="inspect-sparse", run=inspect_sparse),
    Benchmark(name="inspect-tree", run=inspect_tree),
    Benchmark(name="inspect-checksums", run=checksums),
)
