"""Digests: the values, one file read safely, keys beneath a root, many files over all cores."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest import mock

import msgspec
import pytest
from blake3 import blake3
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lastgood.digest import (
    Algorithm,
    Digest,
    FileChanged,
    FileDigest,
    HashRequest,
    NotRegularFile,
    RootDirectory,
    SizeMismatch,
    StreamHasher,
    beneath,
    copy_and_hash,
    engine,
    files,
    hash_bytes,
    hash_file,
    hash_files,
)

BOTH = (Algorithm.BLAKE3, Algorithm.SHA256)

# The official BLAKE3 vectors (test_vectors.json of the reference implementation): input byte i is i % 251.
BLAKE3_VECTORS = {
    0: "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
    1: "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
    1024: "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7",
    1025: "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444",
    102400: "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
}
# FIPS 180-4 examples.
SHA256_VECTORS = {
    b"": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"abc": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
}


def expected(data: bytes, algorithms: tuple[Algorithm, ...] = BOTH) -> FileDigest:
    """What hashing must give, from the two libraries in one call each."""
    values = {Algorithm.BLAKE3: blake3(data).hexdigest(), Algorithm.SHA256: hashlib.sha256(data).hexdigest()}
    digests = tuple(Digest(algorithm=algorithm, value=values[algorithm]) for algorithm in algorithms)
    return FileDigest(size_bytes=len(data), digests=digests)


def pattern(size_bytes: int) -> bytes:
    return (bytes(range(251)) * (size_bytes // 251 + 1))[:size_bytes]


def write(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


@contextmanager
def small_limits() -> Iterator[None]:
    """Buffers and limits of a few KiB, so that small files take every path that large ones do."""
    with ExitStack() as limits:
        for module in (files, engine):
            limits.enter_context(mock.patch.object(module, "BUFFER_BYTES", 1024))
            limits.enter_context(mock.patch.object(module, "WINDOW_BYTES", 4096))
            limits.enter_context(mock.patch.object(module, "AHEAD_MINIMUM_BYTES", 8192))
        limits.enter_context(mock.patch.object(engine, "BATCH_BYTES", 6000))
        limits.enter_context(mock.patch.object(engine, "BATCH_FILES", 3))
        yield


# --- values


@pytest.mark.parametrize(("size_bytes", "value"), BLAKE3_VECTORS.items())
def test_blake3_matches_the_published_vectors(size_bytes: int, value: str) -> None:
    """A digest of record must be the standard's own, or nobody else could check it."""
    assert hash_bytes(pattern(size_bytes)) == Digest(algorithm=Algorithm.BLAKE3, value=value)


@pytest.mark.parametrize(("data", "value"), SHA256_VECTORS.items())
def test_sha256_matches_the_published_vectors(data: bytes, value: str) -> None:
    """`sha256sum` on a bare shell must agree with the manifest."""
    assert hash_bytes(data, Algorithm.SHA256) == Digest(algorithm=Algorithm.SHA256, value=value)


@given(data=st.binary(max_size=100), algorithm=st.sampled_from(Algorithm))
def test_the_text_form_reads_back(data: bytes, algorithm: Algorithm) -> None:
    """Law: parse(str(d)) == d, in text and in JSON."""
    digest = hash_bytes(data, algorithm)
    assert Digest.parse(str(digest)) == digest
    assert msgspec.json.decode(msgspec.json.encode(digest), type=Digest) == digest


@pytest.mark.parametrize(
    "text",
    [
        "",
        "blake3",
        "blake3:",
        "a" * 64,
        "md5:" + "a" * 64,
        "blake3:" + "A" * 64,
        "blake3:" + "a" * 63,
        "blake3:" + "a" * 65,
        "blake3:" + "a" * 64 + "\n",
        " blake3:" + "a" * 64,
        "BLAKE3:" + "a" * 64,
    ],
)
def test_text_that_is_no_digest_is_refused(text: str) -> None:
    """One spelling only: equal digests are equal text."""
    with pytest.raises(ValueError, match="not a digest"):
        Digest.parse(text)


@pytest.mark.parametrize(
    "document",
    [
        {"algorithm": "md5", "value": "a" * 64},
        {"algorithm": "blake3", "value": "A" * 64},
        {"algorithm": "blake3", "value": "a" * 63},
        {"algorithm": "blake3", "value": "a" * 64 + "\n"},
        {"algorithm": "blake3", "value": "a" * 64, "part_bytes": 0},
        {"algorithm": "blake3", "value": "a" * 64, "parts": 1},
        {"value": "a" * 64},
    ],
)
def test_a_document_that_is_no_digest_is_refused(document: dict[str, object]) -> None:
    """The strict parser takes nothing that a digest cannot be."""
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(msgspec.json.encode(document), type=Digest)


def test_a_stream_gives_all_its_digests_in_the_order_asked_for() -> None:
    """Publishing hashes while it writes, under several algorithms at once."""
    hasher = StreamHasher((Algorithm.SHA256, Algorithm.BLAKE3))
    for part in (b"ab", b"", bytearray(b"c")):
        hasher.update(part)
    assert hasher.digests() == expected(b"abc", (Algorithm.SHA256, Algorithm.BLAKE3)).digests


@pytest.mark.parametrize("algorithms", [(), (Algorithm.BLAKE3, Algorithm.BLAKE3)])
def test_no_algorithm_or_one_twice_is_an_error(algorithms: tuple[Algorithm, ...], tmp_path: Path) -> None:
    """A file with no digest would verify against anything."""
    with pytest.raises(ValueError, match="at least one and each once"):
        StreamHasher(algorithms)
    with pytest.raises(ValueError, match="at least one and each once"):
        hash_file(write(tmp_path / "a", b"abc"), algorithms)


# --- one file


sizes = st.one_of(
    st.integers(0, 3000),
    st.builds(
        lambda block, delta: block + delta, st.sampled_from([1024, 4096, 8192, 12288, 65536]), st.integers(-2, 2)
    ),
)
algorithm_tuples = st.sampled_from([BOTH, BOTH[:1], BOTH[1:], BOTH[::-1]])


@settings(max_examples=60)
@given(size_bytes=sizes, threads=st.integers(1, 3), algorithms=algorithm_tuples)
@example(size_bytes=8192, threads=2, algorithms=BOTH)
@example(size_bytes=20000, threads=2, algorithms=BOTH)
def test_split_and_copied_equal_one_shot(
    tmp_path_factory: pytest.TempPathFactory, size_bytes: int, threads: int, algorithms: tuple[Algorithm, ...]
) -> None:
    """However a file is cut into windows and threads, its digests are those of its bytes; a copy is byte for byte."""
    path = tmp_path_factory.getbasetemp() / "sized"
    data = pattern(size_bytes)
    write(path, data)
    with small_limits(), path.open("rb") as source, path.with_name("copy").open("w+b") as copy:
        assert hash_file(path, algorithms, threads=threads, size_bytes=size_bytes) == expected(data, algorithms)
        assert copy_and_hash(source.fileno(), copy.fileno(), algorithms) == expected(data, algorithms)
        assert path.with_name("copy").read_bytes() == data


def test_a_large_file_is_split_at_the_real_limits(tmp_path: Path) -> None:
    """The limits that users meet, not only those that the other tests shrink, give the standard's digest."""
    data = os.urandom(files.AHEAD_MINIMUM_BYTES + 3 * files.WINDOW_BYTES + 7)
    path = write(tmp_path / "large", data)
    assert hash_file(path, BOTH, threads=2) == expected(data)
    with open(path, "rb") as source, open(tmp_path / "copy", "wb") as copy:
        assert copy_and_hash(source.fileno(), copy.fileno(), BOTH) == expected(data)
    assert (tmp_path / "copy").read_bytes() == data


def test_a_descriptor_is_hashed_from_its_start_and_stays_where_it_was(tmp_path: Path) -> None:
    """A loader goes on reading the very descriptor that was verified."""
    write(tmp_path / "a", b"abcdef")
    with (tmp_path / "a").open("rb", buffering=0) as file:
        file.seek(3)
        assert hash_file(file.fileno(), BOTH, drop_cache=True) == expected(b"abcdef")
        assert file.read() == b"def"


@pytest.mark.parametrize("size_bytes", [0, 1, 4096, 70_001, files.AHEAD_MINIMUM_BYTES + files.WINDOW_BYTES + 7])
def test_reading_past_the_cache_gives_the_same_digests(tmp_path: Path, size_bytes: int) -> None:
    """A read-back from the medium must see every byte, whole blocks or not, and leave the descriptor as it was."""
    data = os.urandom(size_bytes)
    with open(write(tmp_path / "a", data), "rb") as file:
        os.fsync(file.fileno())
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        assert hash_file(file.fileno(), BOTH, threads=2, drop_cache=True) == expected(data)
        assert fcntl.fcntl(file, fcntl.F_GETFL) == flags
    assert list(hash_files([HashRequest(path=str(tmp_path / "a"), algorithms=BOTH)], drop_cache=True)) == [
        expected(data)
    ]


@pytest.mark.parametrize("refused_by", ["fcntl", "preadv"])
def test_a_file_system_that_cannot_read_past_the_cache_is_read_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused_by: str
) -> None:
    """Some refuse the flag, some the first read; a save there must go on."""
    data = os.urandom(70_001)
    path = write(tmp_path / "a", data)
    set_flags, read, refused = fcntl.fcntl, os.preadv, []

    def fcntl_(fd: int, command: int, flags: int = 0) -> int:
        if refused_by == "fcntl" and flags & os.O_DIRECT:
            refused.append(fd)
            raise OSError(errno.EINVAL, "no direct access")
        return set_flags(fd, command, flags)

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        if set_flags(fd, fcntl.F_GETFL) & os.O_DIRECT:
            refused.append(fd)
            raise OSError(errno.EINVAL, "not aligned")
        return read(fd, buffers, offset)

    monkeypatch.setattr(files.fcntl, "fcntl", fcntl_)
    monkeypatch.setattr(files.os, "preadv", preadv)
    assert hash_file(path, BOTH, drop_cache=True) == expected(data)
    assert refused


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(path))


def make_link(path: Path) -> None:
    write(path.with_name("target"), b"abc")
    path.symlink_to("target")


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (make_fifo, "FIFO"),
        (make_socket, "socket or device"),
        (make_link, "symbolic link"),
        (Path.mkdir, "directory"),
        (lambda path: path.symlink_to("/dev/zero"), "symbolic link"),
    ],
)
def test_what_is_no_regular_file_is_refused_at_once(
    make: Callable[[Path], None], found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO would hang a plain open for ever, a link would show bytes that are not the checkpoint's."""
    monkeypatch.chdir(tmp_path)  # a socket's path may have 107 bytes
    make(tmp_path / "odd")
    with pytest.raises(NotRegularFile, match=f"odd: expected a regular file, found a {found}"):
        hash_file(tmp_path / "odd")
    [result] = hash_files([HashRequest(path=str(tmp_path / "odd"))])
    assert isinstance(result, NotRegularFile)


def test_a_descriptor_of_a_pipe_is_refused() -> None:
    """A pipe has no length to hold its bytes against."""
    reading, writing = os.pipe()
    try:
        with pytest.raises(NotRegularFile):
            hash_file(reading)
    finally:
        os.close(reading)
        os.close(writing)


def test_another_size_is_found_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A truncated terabyte is refused without reading it, and both sizes are named."""
    path = write(tmp_path / "short", b"abc")
    monkeypatch.setattr(os, "preadv", lambda *_: pytest.fail("the file was read"))
    with pytest.raises(SizeMismatch, match="short: expected 4 bytes, found 3") as caught:
        hash_file(path, size_bytes=4)
    assert (caught.value.expected_bytes, caught.value.found_bytes) == (4, 3)


def shrink(path: Path) -> None:
    os.truncate(path, 2000)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def rewrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"other")
    os.utime(path, ns=(1, 1))  # a clock tick apart, which the file system's own stamp may not be


@pytest.mark.parametrize("change", [shrink, grow, rewrite])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_file_that_changes_while_it_is_read_is_an_error(
    change: Callable[[Path], None], threads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No digest describes it, and the reader must live: a mapped file would have killed it with SIGBUS."""
    path = tmp_path / "changing"
    write(path, pattern(20_000))
    real, changed = os.preadv, threading.Event()

    def preadv(fd: int, buffers: list[memoryview], offset: int) -> int:
        count = real(fd, buffers, offset)
        if not changed.is_set():
            changed.set()
            change(path)
        return count

    with small_limits():
        assert hash_file(path, threads=threads) == expected(pattern(20_000), BOTH[:1]), "the healthy control"
        monkeypatch.setattr(os, "preadv", preadv)
        with pytest.raises(FileChanged, match="changing: expected 20000 bytes"):
            hash_file(path, threads=threads)
    assert changed.is_set()


def test_a_read_that_ends_early_is_an_error_though_the_file_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system may report the old length of a file that another host cut."""
    path = write(tmp_path / "stale", pattern(5000))
    real = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, buffers, offset: 0 if offset else real(fd, [buffers[0][:3000]], offset)
    )
    with pytest.raises(FileChanged, match=r"stale: expected 5000 bytes .* found 3000 bytes"):
        hash_file(path)


def test_a_copy_goes_through_short_writes_and_names_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write may take less than it was given, and /dev/full takes nothing: neither may lose a byte in silence."""
    data = os.urandom(300_000)
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, part: real(fd, part[:70_000]))
    write(tmp_path / "source", data)
    with (
        (tmp_path / "source").open("rb") as source,
        (tmp_path / "copy").open("wb") as copy,
        open("/dev/full", "wb", buffering=0) as full,
    ):
        assert copy_and_hash(source.fileno(), copy.fileno(), BOTH, size_bytes=len(data)) == expected(data)
        with pytest.raises(OSError, match="No space left"):
            copy_and_hash(source.fileno(), full.fileno())
    assert (tmp_path / "copy").read_bytes() == data


# --- keys beneath a root


def test_keys_open_beneath_their_root_and_directories_are_kept_open(tmp_path: Path) -> None:
    """4,096 files of one directory must not cost 4,096 walks, and every descriptor is closed at the end."""
    write(tmp_path / "root" / "a" / "b" / "one", b"1")
    write(tmp_path / "root" / "a" / "b" / "two", b"2")
    write(tmp_path / "root" / "top", b"3")
    before = os.listdir("/proc/self/fd")
    with RootDirectory(tmp_path / "root") as root, mock.patch.object(root, "_walk", wraps=root._walk) as walk:
        results = hash_files([HashRequest(path=key) for key in ("a/b/one", "a/b/two", "top")], root=root, jobs=1)
        assert list(results) == [expected(data, BOTH[:1]) for data in (b"1", b"2", b"3")]
        assert walk.call_count == 1
    root.close()
    assert os.listdir("/proc/self/fd") == before


def test_more_directories_than_are_kept_open_are_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is bounded, or a checkpoint of many directories would exhaust the descriptors."""
    monkeypatch.setattr(beneath, "MAXIMUM_CACHED_DIRECTORIES", 2)
    requests = [HashRequest(path=f"{number}/file") for number in range(5)]
    for request in requests:
        write(tmp_path / request.path, request.path.encode())
    before = len(os.listdir("/proc/self/fd"))
    with RootDirectory(tmp_path) as root:
        for _ in range(2):
            assert [*hash_files(requests, root=root)] == [expected(r.path.encode(), BOTH[:1]) for r in requests]
        assert len(os.listdir("/proc/self/fd")) == before + 3
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../outside", "a/../../outside", "a//b", "./a", "a/", "a/.", ".."])
def test_keys_that_lead_out_of_the_root_are_refused(key: str, tmp_path: Path) -> None:
    """A manifest from a stranger must not make us read the machine's files."""
    write(tmp_path / "outside", b"secret")
    (tmp_path / "root" / "a").mkdir(parents=True)
    with RootDirectory(tmp_path / "root") as root, pytest.raises(ValueError, match="key leads out of its root"):
        root.open(key)


def test_links_beneath_a_root_are_refused_wherever_they_stand(tmp_path: Path) -> None:
    """A linked directory shows another generation's bytes under this one's names."""
    write(tmp_path / "outside" / "file", b"secret")
    write(tmp_path / "root" / "real" / "file", b"mine")
    (tmp_path / "root" / "linked").symlink_to("../outside")
    (tmp_path / "root" / "inner").symlink_to("real")
    (tmp_path / "root" / "real" / "name").symlink_to("file")
    (tmp_path / "entrance").symlink_to("root")
    with RootDirectory(tmp_path / "entrance") as root:
        keys = ("linked/file", "inner/file", "real/name", "real/file/deeper", "absent/file", "real/file")
        results = [*hash_files([HashRequest(path=key) for key in keys], root=root)]
    assert [type(result) for result in results] == [NotRegularFile] * 4 + [FileNotFoundError, FileDigest]
    assert "expected a directory, found a file or link: linked" in str(results[0])


# --- many files


@settings(max_examples=40)
@given(
    lengths=st.lists(st.one_of(sizes, st.integers(0, 30_000)), max_size=12),
    jobs=st.integers(1, 4),
    known=st.booleans(),
    algorithms=algorithm_tuples,
)
def test_parallel_equals_one_shot_in_the_order_of_the_requests(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    jobs: int,
    known: bool,
    algorithms: tuple[Algorithm, ...],
) -> None:
    """Whatever ran where and finished first, each request gets its own file's digests."""
    base = tmp_path_factory.getbasetemp() / "many"
    contents = [pattern(length) + bytes([number]) for number, length in enumerate(lengths)]
    requests = [
        HashRequest(
            path=write(base / str(number), data), algorithms=algorithms, size_bytes=len(data) if known else None
        )
        for number, data in enumerate(contents)
    ]
    with small_limits():
        results = [*hash_files(requests, jobs=jobs)]
    assert results == [expected(data, algorithms) for data in contents]


@given(
    lengths=st.lists(st.one_of(st.none(), st.integers(0, 2**36), st.sampled_from([0, 2**20, 2**25 - 1, 2**25]))),
    jobs=st.one_of(st.integers(1, 4), st.integers(1, 64)),
)
@example(lengths=[2**30] * 3, jobs=2)
@example(lengths=[0] * 300, jobs=2)
def test_a_plan_holds_every_file_once_and_splits_only_the_last_large_ones(lengths: list[int | None], jobs: int) -> None:
    """Law: the batches partition the requests; fewer files than jobs are spread, and none of them in a small batch."""
    requests = [HashRequest(path="x", size_bytes=length) for length in lengths]
    batches = engine.plan(requests, jobs)
    assert sorted(index for batch in batches for index in batch.indexes) == list(range(len(requests)))
    spread = [batch for batch in batches if batch.threads > 1]
    large = [length for length in lengths if length is None or length >= files.AHEAD_MINIMUM_BYTES]
    assert len(spread) == min(len(large), jobs - 1)
    assert all(len(batch.indexes) == 1 for batch in spread)
    assert all(len(batch.indexes) <= engine.BATCH_FILES for batch in batches)


def test_one_bad_file_does_not_stop_the_others(tmp_path: Path) -> None:
    """A verdict collects all findings; each failure stands at its own request's place."""
    good = [write(tmp_path / str(number), pattern(number * 1000)) for number in range(6)]
    os.mkfifo(tmp_path / "fifo")
    requests = [
        HashRequest(path=good[0], algorithms=BOTH),
        HashRequest(path=str(tmp_path / "absent"), algorithms=BOTH, size_bytes=5),
        HashRequest(path=good[1], algorithms=BOTH, size_bytes=1001),
        HashRequest(path=str(tmp_path / "fifo"), algorithms=BOTH, size_bytes=64 * 2**20),
        *(HashRequest(path=path, algorithms=BOTH, size_bytes=os.stat(path).st_size) for path in good[2:]),
    ]
    results = [*hash_files(requests, jobs=2)]
    assert [type(result) for result in results[:4]] == [FileDigest, FileNotFoundError, SizeMismatch, NotRegularFile]
    assert results[0] == expected(b"")
    assert results[4:] == [expected(pattern(number * 1000)) for number in range(2, 6)]


def test_a_programming_error_is_raised_and_not_mistaken_for_a_bad_file(tmp_path: Path) -> None:
    """Only what the file or the system did is a value."""
    with pytest.raises(ValueError, match="at least one and each once"):
        list(hash_files([HashRequest(path=write(tmp_path / "a", b""), algorithms=())]))
    for jobs in (0, 65):
        with pytest.raises(ValueError, match="expected 1 to 64"):
            hash_files([], jobs=jobs)


def test_progress_grows_to_all_bytes_in_the_callers_thread(tmp_path: Path) -> None:
    """A progress bar is drawn by the thread that owns it, and ends full."""
    requests = [HashRequest(path=write(tmp_path / str(number), pattern(50_000))) for number in range(20)]
    seen: list[int] = []
    threads: set[int] = set()

    def progress(read_bytes: int) -> None:
        seen.append(read_bytes)
        threads.add(threading.get_ident())

    assert len([*hash_files(requests, progress=progress)]) == 20
    assert seen == sorted(seen)
    assert seen[-1] == 20 * 50_000
    assert threads == {threading.get_ident()}


@pytest.mark.parametrize("huge_files", [1, 3])
def test_an_interrupt_stops_the_work(huge_files: int, tmp_path: Path) -> None:
    """Ctrl-C must not wait for a terabyte: workers stop within one buffer, and no thread stays."""
    with (tmp_path / "huge").open("wb") as sparse:
        sparse.truncate(2**40)
    requests = [HashRequest(path=str(tmp_path / "huge"), size_bytes=2**40) for _ in range(huge_files)]

    def progress(_: int) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        list(hash_files(requests, jobs=2, progress=progress))
    assert time.monotonic() - started < 30
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lastgood-hash")]


def test_closing_the_iterator_stops_the_work(tmp_path: Path) -> None:
    """A caller who has seen enough gets its threads back without waiting for the rest."""
    with (tmp_path / "huge").open("wb") as sparse:
        sparse.truncate(2**40)
    small = HashRequest(path=write(tmp_path / "first", b"abc"), size_bytes=3)
    huge = HashRequest(path=str(tmp_path / "huge"), size_bytes=2**40)
    # Three jobs for two huge files, so that the small one gets its turn.
    with closing(hash_files([small, huge, huge], jobs=3)) as results:
        assert next(results) == expected(b"abc", BOTH[:1])
        started = time.monotonic()
    assert time.monotonic() - started < 30
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("lastgood-hash")]


# --- memory

PEAK = """
import sys, threading, time
from lastgood.digest import Algorithm, HashRequest, hash_files
def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:"))
before = anonymous()
peak, stop = before, threading.Event()
def watch():
    global peak
    while not stop.wait(0.002):
        peak = max(peak, anonymous())
watcher = threading.Thread(target=watch)
watcher.start()
[result] = hash_files(
    [HashRequest(path=sys.argv[1], algorithms=tuple(Algorithm), size_bytes=int(sys.argv[2]))], jobs=int(sys.argv[3])
)
assert result.size_bytes == int(sys.argv[2]), result
stop.set()
watcher.join()
print(peak - before)
"""


@pytest.mark.parametrize("jobs", [1, 2])
def test_memory_does_not_grow_with_the_file(jobs: int, tmp_path: Path) -> None:
    """A sparse GiB costs a few windows of anonymous memory, split over cores or not."""
    with (tmp_path / "sparse").open("wb") as sparse:
        sparse.truncate(2**30)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "sparse"), str(2**30), str(jobs)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 40 * 1024, f"{done.stdout} KiB"
