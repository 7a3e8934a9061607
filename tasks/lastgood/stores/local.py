"""The local store: a directory on a POSIX file system.

Decides the order of system calls that makes each promise of the port true. Rules (reasons: ADR 0004): a file is
written under a temporary name, flushed, then linked to its final one, so a reader never sees half of it and of racing
creators one wins; a name is durable only after its directory was flushed; a failed flush is final and never repeated;
nothing is removed before it was renamed away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from lastgood.digest import (
    Algorithm,
    FileChanged,
    FileDigest,
    HashRequest,
    NotRegularFile,
    RootDirectory,
    SizeMismatch,
    copy_and_hash,
    hash_files,
)
from lastgood.errors import StorePermanentError, StoreTransientError
from lastgood.identity import check_key, is_lawful_key
from lastgood.stores.filesystem import FileSystem, classified
from lastgood.stores.grading import KeptGrade, Probe, StoreGrade
from lastgood.stores.port import Hashed, Names, ObjectKind, Progress, Recorded, StoredObject, Trouble
from lastgood.stores.reading import FileReader

__all__ = ["LocalStore"]

TEMPORARY_PREFIX = ".tmp-"
LOCK_NAME = f"{TEMPORARY_PREFIX}lock"
LOCK_PATIENCE_SECONDS = 30.0
LOCK_POLL_SECONDS = 0.005
LAST_MOMENT_SECONDS = 253_402_300_799.0
"""The end of the year 9999, in POSIX seconds."""


class LocalStore:
    """A `Store` over a directory.

    Args:
        root: The directory; it must exist before anything is read or written.
        files: The file port; tests replace it.
    """

    def __init__(self, root: Path, files: FileSystem | None = None) -> None:
        self.root = root
        self._files = files or FileSystem()

    @property
    def uri(self) -> str:
        return str(self.root)

    def path(self, key: str) -> Path:
        """Where a key lies on this file system."""
        return self.root / check_key(key)

    # Reading.

    def is_root(self) -> bool:
        return self.root.is_dir()

    def probe(self) -> Iterator[Probe]:
        # Imported when it is asked for: a launch script never does.
        from lastgood.stores.probing import probe_root

        return probe_root(self.root)

    def grade(self) -> StoreGrade | None:
        return None

    def keep_grade(self, grade: KeptGrade) -> str | None:
        return None  # it would be a word about this machine's mount, and others would read it

    def local_directory(self, prefix: str) -> Path:
        return self.path(prefix)

    def names(self, prefix: str) -> Names:
        files: list[str] = []
        directories: list[str] = []
        with classified(f"list {prefix}"):
            try:
                with os.scandir(self.path(prefix) if prefix else self.root) as entries:
                    for entry in entries:
                        if not entry.name.startswith(TEMPORARY_PREFIX):
                            names = directories if entry.is_dir(follow_symlinks=False) else files
                            names.append(_spelled(entry.name))
            except FileNotFoundError:
                self._check_root()
        return Names(files=tuple(sorted(files)), directories=tuple(sorted(directories)))

    def walk(self, prefix: str) -> Iterator[StoredObject]:
        with classified(f"walk {prefix}"):
            try:
                with os.scandir(self.path(prefix)) as entries:
                    ordered = sorted(entries, key=_order)
            except FileNotFoundError:
                self._check_root()
                return
        # One guard for the whole directory: entering one for each of a million files would cost as much as their stat.
        with classified(f"walk {prefix}"):
            for entry in ordered:
                key = f"{prefix}/{_spelled(entry.name)}"
                if entry.is_dir(follow_symlinks=False) and is_lawful_key(key):
                    yield from self.walk(key)
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # deleted between listing and stat, so it is simply not there
                yield _stored(key, status)

    def stat(self, key: str) -> StoredObject | None:
        with classified(f"stat {key}"):
            try:
                return _stored(key, os.stat(self.path(key), follow_symlinks=False))
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                return None

    def last_changed(self, prefix: str) -> datetime | None:
        with classified(f"look at {prefix}"):
            newest = _last_change(self.path(prefix))
        if newest is None:
            self._check_root()
            return None
        return datetime.fromtimestamp(newest, UTC)

    def clock(self, prefix: str) -> datetime:
        with classified(f"ask the time of {prefix}"), tempfile.TemporaryFile(dir=self.path(prefix)) as probe:
            # Made and not written to: a full disk must not stop the sweep that makes room on it.
            return datetime.fromtimestamp(os.fstat(probe.fileno()).st_ctime, UTC)

    def get(self, key: str, *, limit_bytes: int) -> bytes | None:
        # O_NONBLOCK so that a pipe in the place of a document is refused instead of waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with classified(f"read {key}"):
            try:
                descriptor = os.open(self.path(key), flags)
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                return None
            with os.fdopen(descriptor, "rb") as file:
                status = os.fstat(descriptor)
                if not stat.S_ISREG(status.st_mode):
                    raise StorePermanentError(f"not a regular file: {key}")
                # Asked for up to the limit, Python makes room for all of it first, which costs more than a small read.
                data = file.read(min(limit_bytes, status.st_size) + 1)
                if len(data) > status.st_size:
                    data += file.read(limit_bytes + 1 - len(data))  # it is being written
        if len(data) > limit_bytes:
            raise StorePermanentError(f"object too large: {key}: expected at most {limit_bytes} bytes")
        return data

    def hash(self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None) -> Iterator[Hashed]:
        return self._hash(prefix, requests, progress, drop_cache=False)

    def open(self, prefix: str, path: str) -> FileReader:
        check_key(path)
        with classified(f"read {prefix}/{path}"):
            try:
                with RootDirectory(self.path(prefix)) as root:
                    return FileReader(root.open(path), f"{prefix}/{path}")
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
                raise StorePermanentError(f"object not found: {prefix}/{path}") from None
            except NotRegularFile as error:
                raise StorePermanentError(f"cannot read {prefix}/{path}: {error}") from error

    def compare_checksums(self, prefix: str, recorded: Sequence[Recorded]) -> Iterator[bool | None]:
        return (None for _ in recorded)  # a file system keeps none

    def fetch(self, prefix: str, request: HashRequest, destination: Path) -> Hashed:
        with classified(f"fetch {prefix}/{request.path} to {destination}"):
            copy = os.open(destination, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                with RootDirectory(self.path(prefix)) as root:
                    descriptor = root.open(request.path)
                    try:
                        result: FileDigest | OSError = copy_and_hash(
                            descriptor, copy, request.algorithms, size_bytes=request.size_bytes
                        )
                    finally:
                        os.close(descriptor)
            except (NotRegularFile, SizeMismatch, FileChanged, FileNotFoundError) as error:
                result = error
            finally:
                os.close(copy)
        return _hashed(request.path, result)

    def _hash(
        self, prefix: str, requests: Sequence[HashRequest], progress: Progress | None, *, drop_cache: bool
    ) -> Iterator[Hashed]:
        with classified(f"open {prefix}"):
            try:
                root = RootDirectory(self.path(prefix))
            except (FileNotFoundError, NotADirectoryError) as error:
                self._check_root()
                yield from (_hashed(request.path, error) for request in requests)
                return
        # Closed in this order: the workers stop before the directory that they read goes.
        results = hash_files(requests, root=root, drop_cache=drop_cache, progress=progress)
        with root, contextlib.closing(results):
            for request, result in zip(requests, results, strict=True):
                yield _hashed(request.path, result)

    # Small documents.

    def create(self, key: str, data: bytes) -> bool:
        target = self.path(key)
        with classified(f"create {key}"):
            self._make_parents(target.parent)
            temporary = self._write_temporary(target.parent, data)
            try:
                self._files.link(temporary, target)
                created = True
            except FileExistsError:
                created = False
            except OSError:
                # A network file system may lose the reply of a link that happened: two names tell.
                if os.stat(temporary).st_nlink != 2:
                    raise
                created = True
            # Also when somebody else made it: the caller may act on what exists only once it is durable.
            self._files.sync_directory(target.parent)
            self._files.unlink(temporary)
        return created

    def replace(self, key: str, data: bytes) -> None:
        target = self.path(key)
        with classified(f"replace {key}"):
            self._make_parents(target.parent)
            temporary = self._write_temporary(target.parent, data)
            self._files.rename(temporary, target)
            self._files.sync_directory(target.parent)

    def compare_and_swap(self, key: str, data: bytes, *, expected: bytes | None) -> bool:
        target = self.path(key)
        with classified(f"lock {key}"):
            self._make_parents(target.parent)
            # The kernel frees the lock of a killed holder. The lock file itself is never removed: removing it would
            # let two callers hold locks on two different files of one name.
            descriptor = os.open(target.parent / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                _lock(descriptor, key)
                limit = max(len(expected or b""), len(data)) + 4096
                if self.get(key, limit_bytes=limit) != expected:
                    return False
                self.replace(key, data)
            finally:
                os.close(descriptor)
        return True

    def delete(self, key: str) -> None:
        target = self.path(key)
        with classified(f"delete {key}"):
            try:
                self._files.unlink(target)
            except FileNotFoundError:
                return
            self._files.sync_directory(target.parent)

    # Trees.

    def prepare(self, prefixes: Iterable[str]) -> None:
        self._check_root()
        parents: dict[Path, None] = {}
        with classified("prepare"):
            for prefix in prefixes:
                directory = self.path(prefix)
                for ancestor in (
                    *reversed(directory.relative_to(self.root).parents[:-1]),
                    directory.relative_to(self.root),
                ):
                    self._files.make_directory(self.root / ancestor)
                    parents[(self.root / ancestor).parent] = None
            # Flushed also when they existed: whoever made them may have died before flushing.
            for parent in parents:
                self._files.sync_directory(parent)

    def payload(self, staging: str, final: str) -> str:
        check_key(final)
        return check_key(staging)

    def staging_path(self, prefix: str) -> Path:
        directory = self.path(prefix)
        with classified(f"stage {prefix}"):
            self._check_root()
            self._make_parents(directory)
        return directory

    def persist(
        self, prefix: str, paths: Sequence[str], algorithms: tuple[Algorithm, ...], progress: Progress | None = None
    ) -> tuple[Hashed, ...]:
        base = self.path(prefix)
        requests = []
        directories: dict[Path, None] = {}
        with classified(f"persist {prefix}"):
            for path in paths:
                file = self.path(f"{prefix}/{path}")
                self._files.sync_file(file)
                requests.append(HashRequest(path=path, algorithms=algorithms, size_bytes=os.stat(file).st_size))
                directories.update((parent, None) for parent in file.parents if parent.is_relative_to(base))
            for directory in sorted(directories, key=lambda path: len(path.parts), reverse=True):
                self._files.sync_directory(directory)
        return tuple(self._hash(prefix, requests, progress, drop_cache=True))

    def install(self, source: str, target: str) -> bool:
        here, there = self.path(source), self.path(target)
        with classified(f"install {target}"):
            try:
                if here.is_dir():
                    self._files.rename(here, there)
                else:
                    self._files.link(here, there)  # a rename would replace the file that lies there
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    return False
                raise
            # A rename is one change; flushing where the name arrived is enough (tests/crash).
            self._files.sync_directory(there.parent)
        return True

    def discard(self, prefix: str) -> None:
        doomed = self.path(prefix)
        away = doomed.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
        with classified(f"discard {prefix}"):
            self._check_no_link(doomed.parent)
            try:
                self._files.rename(doomed, away)
            except FileNotFoundError:
                return
            self._files.sync_directory(doomed.parent)
            self._remove_tree(away)

    def sweep(self, prefix: str, *, before: datetime) -> tuple[str, ...]:
        directory = self.path(prefix)
        swept = []
        with classified(f"sweep {prefix}"):
            self._check_no_link(directory)
            try:
                names = sorted(entry for entry in os.listdir(directory) if entry.startswith(TEMPORARY_PREFIX))
            except FileNotFoundError:
                self._check_root()
                return ()
            for name in names:
                left = directory / name
                changed = _last_change(left)
                # The lock's file is never removed: two callers would hold locks on two files of one name.
                if name == LOCK_NAME or changed is None or changed >= before.timestamp():
                    continue
                # Somebody else may be sweeping, too.
                with contextlib.suppress(FileNotFoundError):
                    if stat.S_ISDIR(os.lstat(left).st_mode):
                        self._remove_tree(left)
                    else:
                        self._files.unlink(left)
                    swept.append(name)
        return tuple(swept)

    # Steps shared by the above.

    def _check_root(self) -> None:
        if not self.root.is_dir():
            raise StorePermanentError(
                f"root is not a directory: {self.root}", hint="is the file system mounted, and the path spelled right?"
            )

    def _check_no_link(self, directory: Path) -> None:
        """Nothing is removed behind a link: it may lead to what another family needs. A family itself may be one."""
        family, *below = directory.relative_to(self.root).parts
        if os.path.realpath(directory) != os.path.join(os.path.realpath(self.root / family), *below):
            raise StorePermanentError(
                f"link in the place of a directory: {directory}: nothing is removed behind it",
                hint="put the directory itself there; `ls -ld` shows where the link leads",
            )

    def _make_parents(self, directory: Path) -> None:
        missing = []
        while not directory.is_dir():
            if directory == self.root:
                self._check_root()
            missing.append(directory)
            directory = directory.parent
        for path in reversed(missing):
            self._files.make_directory(path)
            self._files.sync_directory(path.parent)

    def _write_temporary(self, directory: Path, data: bytes) -> Path:
        temporary = directory / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        try:
            self._files.write_new(temporary, data)
            self._files.sync_file(temporary)
        except OSError:
            with contextlib.suppress(OSError):
                self._files.unlink(temporary)
            raise
        return temporary

    def _remove_tree(self, directory: Path) -> None:
        with os.scandir(directory) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    self._remove_tree(Path(entry.path))
                else:
                    self._files.unlink(Path(entry.path))
        self._files.remove_directory(directory)


def _lock(descriptor: int, key: str) -> None:
    """Wait for the lock, but not for ever: its holder may have been stopped, or hang in a network file system."""
    deadline = time.monotonic() + LOCK_PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                message = f"cannot lock {key}: another process has held it for {LOCK_PATIENCE_SECONDS:g} s"
                raise StoreTransientError(message, hint="is that process stopped, or its file system hung?") from None
            time.sleep(LOCK_POLL_SECONDS)


def _last_change(path: Path) -> float | None:
    """The newest change of a file, or of a tree, in POSIX seconds: of the inode, which no copy carries along."""
    try:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            return status.st_ctime
        below = [_last_change(path / name) for name in os.listdir(path)]
    except (FileNotFoundError, NotADirectoryError):
        return None
    return max([status.st_ctime, *(moment for moment in below if moment is not None)])


def _order(entry: os.DirEntry[str]) -> str:
    # A directory sorts as its children's keys do, with the separator behind its name.
    return f"{_spelled(entry.name)}/" if entry.is_dir(follow_symlinks=False) else _spelled(entry.name)


def _spelled(name: str) -> str:
    """A name from the file system as text that can be stored: bytes that are no UTF-8 become escapes.

    The backslash makes such a name unlawful as a key, so it can be reported and never opened by mistake.
    """
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "backslashreplace")


def _stored(key: str, status: os.stat_result) -> StoredObject:
    if stat.S_ISREG(status.st_mode):
        kind = ObjectKind.FILE
    else:
        kind = ObjectKind.LINK if stat.S_ISLNK(status.st_mode) else ObjectKind.OTHER
    # Anybody may set it, on some file systems far beyond what a calendar holds, and a listing must not break of it.
    written_at = datetime.fromtimestamp(min(max(status.st_mtime, 0.0), LAST_MOMENT_SECONDS), UTC)
    return StoredObject(key=key, bytes=status.st_size, kind=kind, written_at=written_at)


def _hashed(path: str, result: FileDigest | OSError) -> Hashed:
    if isinstance(result, FileDigest):
        return Hashed(path=path, bytes=result.size_bytes, digests=result.digests)
    if isinstance(result, SizeMismatch):
        return Hashed(path=path, bytes=result.found_bytes, trouble=Trouble.SIZE, message=str(result))
    if isinstance(result, FileNotFoundError | NotADirectoryError):
        return Hashed(path=path, bytes=None, trouble=Trouble.MISSING, message=f"object not found: {path}")
    if isinstance(result, NotRegularFile):
        return Hashed(path=path, bytes=None, trouble=Trouble.NOT_REGULAR, message=str(result))
    if isinstance(result, FileChanged):
        return Hashed(path=path, bytes=None, trouble=Trouble.CHANGED, message=str(result))
    return Hashed(path=path, bytes=None, trouble=Trouble.UNREADABLE, message=str(result))
