"""The local store: the contract, and what only a file system can do to it."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lastgood.digest import Algorithm, HashRequest
from lastgood.errors import StoreError, StorePermanentError, StoreTransientError, UsageError
from lastgood.stores import LocalStore, local_path, open_store
from lastgood.stores.filesystem import FileSystem
from lastgood.stores.port import ObjectKind, Trouble
from tests.stores.contract import LIMIT, StoreContract


class FailingFileSystem(FileSystem):
    """A file system on which one kind of call fails."""

    def __init__(self, call: str, number: int) -> None:
        self.call = call
        self.number = number
        self.calls = 0

    def _step(self, call: str) -> None:
        if call == self.call:
            self.calls += 1
            raise OSError(self.number, os.strerror(self.number))

    def write_new(self, path: Path, data: bytes) -> None:
        super().write_new(path, data[:3])
        self._step("write")
        path.unlink()
        super().write_new(path, data)

    def sync_file(self, path: Path) -> None:
        self._step("sync file")
        super().sync_file(path)

    def sync_directory(self, path: Path) -> None:
        self._step("sync directory")
        super().sync_directory(path)

    def link(self, source: Path, target: Path) -> None:
        self._step("link")
        super().link(source, target)


class LosingFileSystem(FileSystem):
    """A network file system that makes the link and loses the reply."""

    def link(self, source: Path, target: Path) -> None:
        super().link(source, target)
        raise OSError(errno.EIO, "no reply")


class TestLocalStore(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> LocalStore:
        root = tmp_path / "root"
        root.mkdir()
        return LocalStore(root)

    def test_a_missing_root_is_an_error_of_every_operation(self, tmp_path: Path) -> None:
        """An unmounted file system must not look like an empty family, nor be filled with one."""
        store = LocalStore(tmp_path / "absent")
        for action in (
            lambda: store.names("a"),
            lambda: store.names(""),
            lambda: list(store.walk("a")),
            lambda: store.stat("a"),
            lambda: store.get("a", limit_bytes=LIMIT),
            lambda: store.create("a/b", b""),
            lambda: store.replace("a/b", b""),
            lambda: store.compare_and_swap("a/b", b"", expected=None),
            lambda: store.prepare(("a",)),
            lambda: store.staging_path("a"),
            lambda: store.last_changed("a"),
            lambda: store.sweep("a", before=datetime.now(UTC)),
            lambda: list(store.hash("a", (HashRequest(path="b"),))),
        ):
            with pytest.raises(StorePermanentError):
                action()
        assert not (tmp_path / "absent").exists()

    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            (errno.ENOSPC, StorePermanentError),
            (errno.EDQUOT, StorePermanentError),
            (errno.EROFS, StorePermanentError),
            (errno.EACCES, StorePermanentError),
            (errno.EIO, StoreTransientError),
            (errno.ESTALE, StoreTransientError),
            (errno.ETIMEDOUT, StoreTransientError),
            (errno.ENFILE, StoreTransientError),
        ],
        ids=lambda value: errno.errorcode[value] if isinstance(value, int) else value.__name__,
    )
    def test_the_store_says_whether_repeating_may_help(
        self, tmp_path: Path, number: int, kind: type[StoreError]
    ) -> None:
        """Nobody else guesses: a full disk stops a publish, a network that does not answer is asked again."""
        store = LocalStore(tmp_path, FailingFileSystem("write", number))
        with pytest.raises(StoreError) as caught:
            store.create("a/b", b"12345")
        assert type(caught.value) is kind
        assert "create a/b" in caught.value.message

    @pytest.mark.parametrize("call", ["write", "sync file", "link"])
    def test_a_failed_creation_leaves_no_document(self, tmp_path: Path, call: str) -> None:
        """A disk that is full in the middle of a marker must not leave half a marker."""
        store = LocalStore(tmp_path, FailingFileSystem(call, errno.ENOSPC))
        with pytest.raises(StorePermanentError):
            store.create("a/b", b"12345")
        assert LocalStore(tmp_path).get("a/b", limit_bytes=LIMIT) is None
        assert store.names("a").files == ()

    @pytest.mark.parametrize("call", ["sync file", "sync directory"])
    def test_a_failed_flush_is_an_error_and_is_never_repeated(self, tmp_path: Path, call: str) -> None:
        """After a failed flush the kernel may call the pages clean, and a second flush would lie."""
        files = FailingFileSystem(call, errno.EIO)
        (tmp_path / "a").mkdir()
        with pytest.raises(StoreError):
            LocalStore(tmp_path, files).create("a/b", b"12345")
        assert files.calls == 1

    def test_a_link_whose_reply_was_lost_counts_as_made(self, tmp_path: Path) -> None:
        """NFS may answer a link that happened with an error; two names of one file tell."""
        store = LocalStore(tmp_path, LosingFileSystem())
        assert store.create("a", b"mine") is True
        assert LocalStore(tmp_path).get("a", limit_bytes=LIMIT) == b"mine"

    def test_what_is_no_regular_file_is_no_document(self, store: LocalStore) -> None:
        """A link may lead anywhere, and whoever opens a pipe waits for ever."""
        (store.root / "target").write_bytes(b"secret")
        (store.root / "link").symlink_to("target")
        os.mkfifo(store.root / "pipe")
        (store.root / "directory").mkdir()
        for key in ("link", "pipe", "directory"):
            with pytest.raises(StorePermanentError):
                store.get(key, limit_bytes=LIMIT)
        kinds = {key: stored.kind for key in ("link", "pipe", "directory") if (stored := store.stat(key))}
        assert kinds == {"link": ObjectKind.LINK, "pipe": ObjectKind.OTHER, "directory": ObjectKind.OTHER}

    def test_a_link_is_walked_over_not_into(self, store: LocalStore) -> None:
        """A linked directory could hold anything, a loop among it."""
        (store.root / "p").mkdir()
        (store.root / "p/loop").symlink_to(store.root / "p")
        assert [(s.key, s.kind) for s in store.walk("p")] == [("p/loop", ObjectKind.LINK)]
        assert store.names("p").files == ("loop",)

    @pytest.mark.parametrize(("seconds", "year"), [(2**50, 9999), (-(2**50), 1970)])
    def test_a_time_of_writing_beyond_any_calendar_breaks_no_listing(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch, seconds: int, year: int
    ) -> None:
        """A file system in memory takes any number for one, and whoever made the file chose it."""
        status = os.stat_result((stat.S_IFREG | 0o644, 1, 1, 1, 0, 0, 5, seconds, seconds, seconds))
        with monkeypatch.context() as patch:
            patch.setattr(os, "stat", lambda *_, **__: status)
            found = store.stat("a")
        assert found is not None
        assert found.written_at is not None
        assert found.written_at.year == year

    def test_no_link_leads_a_sweep_out_of_its_directory(self, store: LocalStore, tmp_path: Path) -> None:
        """A link among what was left half done goes as a name; what it names is somebody's."""
        (tmp_path / "precious").mkdir()
        (tmp_path / "precious" / "file").write_bytes(b"x")
        store.create("a/document", b"x")
        (store.root / "a" / ".tmp-link").symlink_to(tmp_path / "precious")
        (store.root / "a" / ".tmp-tree").mkdir()
        (store.root / "a" / ".tmp-tree" / "link").symlink_to(tmp_path / "precious")
        changed = store.last_changed("a")
        assert changed is not None
        assert store.sweep("a", before=changed - timedelta(seconds=5)) == ()
        swept = store.sweep("a", before=datetime.now(UTC) + timedelta(days=1))
        assert swept == (".tmp-link", ".tmp-tree")
        assert (tmp_path / "precious" / "file").read_bytes() == b"x"

    def test_no_link_leads_a_hash_out_of_its_directory(self, store: LocalStore, tmp_path: Path) -> None:
        """Bytes outside a generation are not its artifacts, however they are reached."""
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside/x").write_bytes(b"x")
        (store.root / "g").mkdir()
        (store.root / "g/model").symlink_to(tmp_path / "outside")
        (store.root / "g/file").symlink_to(tmp_path / "outside/x")
        hashed = store.hash("g", (HashRequest(path="model/x"), HashRequest(path="file")))
        assert [h.trouble for h in hashed] == [Trouble.NOT_REGULAR, Trouble.NOT_REGULAR]
        fetched = store.fetch("g", HashRequest(path="model/x"), tmp_path / "copy")
        assert fetched.trouble is Trouble.NOT_REGULAR

    def test_names_that_are_no_text_are_shown_and_never_entered(self, store: LocalStore) -> None:
        """File systems hold names that no document can; they must show, be storable as text, and break nothing."""
        (store.root / "p").mkdir()
        root = os.fsencode(store.root)
        (store.root / "p/new\nline").mkdir()
        (store.root / "p/new\nline/x").touch()
        os.mkdir(root + b"/p/\xff\xfe")
        with open(root + b"/p/\xff.bin", "wb"):
            pass
        names = store.names("p")
        assert names.files == ("\\xff.bin",)
        assert names.directories == ("\\xff\\xfe", "new\nline")
        walked = {stored.key: stored.kind for stored in store.walk("p")}
        assert walked == {
            "p/\\xff.bin": ObjectKind.FILE,
            "p/\\xff\\xfe": ObjectKind.OTHER,
            "p/new\nline": ObjectKind.OTHER,
        }
        assert all(key.encode() for key in walked)

    def test_a_document_is_readable_by_others(self, store: LocalStore) -> None:
        """Verifiers run as other users than trainers."""
        old = os.umask(0o022)
        try:
            store.create("a/b", b"1")
            store.replace("a/c", b"1")
        finally:
            os.umask(old)
        assert [(store.root / key).stat().st_mode & 0o777 for key in ("a/b", "a/c")] == [0o644, 0o644]
        assert (store.root / "a/b").stat().st_nlink == 1

    def test_a_fetched_copy_is_private_and_new(self, store: LocalStore, tmp_path: Path) -> None:
        """Bytes that were verified must not be changed by others before they are loaded."""
        (store.root / "g").mkdir()
        (store.root / "g/a").write_bytes(b"1")
        copy = tmp_path / "copy"
        store.fetch("g", HashRequest(path="a"), copy)
        assert copy.stat().st_mode & 0o777 == 0o600
        with pytest.raises(StorePermanentError):
            store.fetch("g", HashRequest(path="a"), copy)

    def test_the_lock_of_a_killed_writer_is_free(self, store: LocalStore) -> None:
        """A process that dies while it swaps a cache must not stop everybody after it."""
        program = (
            "import fcntl, os, sys, time\n"
            "fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
            "fcntl.flock(fd, fcntl.LOCK_EX)\n"
            "print('held', flush=True)\n"
            "time.sleep(60)\n"
        )
        store.create("a", b"1")
        holder = subprocess.Popen(
            [sys.executable, "-c", program, str(store.root / ".tmp-lock")], stdout=subprocess.PIPE, text=True
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        holder.stdout.close()
        assert store.compare_and_swap("a", b"2", expected=b"1") is True

    def test_a_lock_that_is_never_freed_is_named_and_not_waited_for(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A writer that was stopped in the middle of a swap must not hang every gate and every operator behind it."""
        monkeypatch.setattr("lastgood.stores.local.LOCK_PATIENCE_SECONDS", 0.05)
        store.create("a", b"1")
        with open(store.root / ".tmp-lock", "wb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with pytest.raises(StoreTransientError, match="cannot lock a: another process"):
                store.compare_and_swap("a", b"2", expected=b"1")
        assert store.compare_and_swap("a", b"2", expected=b"1") is True

    def test_a_directory_that_cannot_be_opened_is_trouble_of_the_store(
        self, store: LocalStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without a free descriptor nothing can be said of the artifacts, so a verifier must hear of the store."""

        def exhausted(path: object) -> object:
            raise OSError(errno.EMFILE, "too many open files", str(path))

        store.create("g/a", b"1")
        monkeypatch.setattr("lastgood.stores.local.RootDirectory", exhausted)
        with pytest.raises(StoreTransientError, match="cannot open g"):
            list(store.hash("g", (HashRequest(path="a"),)))

    def test_persist_names_what_it_cannot_read(self, store: LocalStore) -> None:
        """A rank that lists a file it never wrote must hear which one."""
        (store.root / "s").mkdir()
        with pytest.raises(StoreError, match=r"s.*absent"):
            store.persist("s", ("absent",), (Algorithm.BLAKE3,))


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/checkpoints", "/checkpoints"),
        ("file:///checkpoints", "/checkpoints"),
        ("file://localhost/checkpoints", "/checkpoints"),
        ("file:///with%20space", "/with space"),
    ],
)
def test_a_root_is_written_as_a_path_or_a_uri(uri: str, path: str) -> None:
    """One form everywhere, and the plain path that everybody types."""
    assert local_path(uri) == Path(path)


@pytest.mark.parametrize("uri", ["", "file://", "file://host/x", "ftp://host/x"])
def test_any_other_root_is_a_usage_error(uri: str) -> None:
    """A typing error must not become a directory of that name."""
    with pytest.raises(UsageError):
        open_store(uri)
