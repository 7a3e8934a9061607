"""What every store must keep, whatever lies behind it: subclass one of these and give it a `store` fixture.

`DocumentContract` is the half that the protocol needs, `StoreContract` the whole port. A store that is not on this
machine joins by the same classes; nothing here looks behind the port.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from lastgood.digest import Algorithm, HashRequest, hash_bytes
from lastgood.errors import FormatError, StoreLimitError, StorePermanentError
from lastgood.stores.grading import Limit
from lastgood.stores.port import DocumentStore, Hashed, ObjectKind, Store, StoredObject, Trouble

T = TypeVar("T")

LIMIT = 2**20
RACERS = 16
UNLAWFUL = ("/a", "a//b", "../a", "a/..", "a\\b", "a\nb", "./a", "a/")


def race(action: Callable[[int], T]) -> list[T]:
    """Run an action at once in many threads."""
    barrier = threading.Barrier(RACERS)

    def run(number: int) -> T:
        barrier.wait()
        return action(number)

    with ThreadPoolExecutor(max_workers=RACERS) as threads:
        return list(threads.map(run, range(RACERS)))


class DocumentContract:
    """Small documents: conditional creation, atomic replacement, compare-and-swap, listing."""

    races = 10
    limits: Collection[Limit] = ()
    """What the store's grade leaves out; then it must be refused under that name, and nothing be sent."""

    def check_swap(self, store: DocumentStore, key: str, data: bytes, *, expected: bytes | None, happens: bool) -> None:
        """A swap that happens or does not; or that is refused by name, where the grade leaves it out."""
        if expected is None or Limit.CONDITIONAL_REPLACE not in self.limits:
            assert store.compare_and_swap(key, data, expected=expected) is happens
            return
        before = store.get(key, limit_bytes=LIMIT)
        with pytest.raises(StoreLimitError, match=f"has no {Limit.CONDITIONAL_REPLACE}"):
            store.compare_and_swap(key, data, expected=expected)
        assert store.get(key, limit_bytes=LIMIT) == before

    def test_what_was_created_is_read_back(self, store: DocumentStore) -> None:
        """Bytes come back as they were given, empty ones too."""
        for key, data in (("a/b/c", b"bytes"), ("a/empty", b""), ("a/Größe 重み", b"\x00\xff")):
            assert store.create(key, data) is True
            assert store.get(key, limit_bytes=LIMIT) == data

    def test_what_is_absent_is_none(self, store: DocumentStore) -> None:
        """Absence is an answer and no error, also below what is absent itself or below a document."""
        store.create("file", b"x")
        assert store.get("absent", limit_bytes=LIMIT) is None
        assert store.get("absent/deeper", limit_bytes=LIMIT) is None
        assert store.get("file/below", limit_bytes=LIMIT) is None

    def test_a_second_creation_changes_nothing(self, store: DocumentStore) -> None:
        """A name serves one document for ever."""
        assert store.create("a", b"first") is True
        assert store.create("a", b"second") is False
        assert store.create("a", b"first") is False
        assert store.get("a", limit_bytes=LIMIT) == b"first"

    def test_of_racing_creators_exactly_one_wins(self, store: DocumentStore) -> None:
        """On this stand claims, markers and refusals: two winners would be two owners of one life."""
        for number in range(self.races):
            won = race(lambda racer, key=f"races/{number}": store.create(key, b"%d" % racer))  # type: ignore[misc]
            assert won.count(True) == 1
            assert store.get(f"races/{number}", limit_bytes=LIMIT) == b"%d" % won.index(True)

    def test_a_reader_sees_the_old_document_or_the_new_one(self, store: DocumentStore) -> None:
        """Half a pointer would be read as damage."""
        old, new = b"o" * 100_000, b"n" * 50_000
        store.create("pointer", old)
        seen: set[bytes | None] = set()
        stopped = threading.Event()

        def read() -> None:
            while not stopped.is_set():
                seen.add(store.get("pointer", limit_bytes=LIMIT))

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(20):
            store.replace("pointer", new)
            store.replace("pointer", old)
        stopped.set()
        reader.join()
        assert seen <= {old, new}

    def test_replace_also_creates(self, store: DocumentStore) -> None:
        """A cache is written whether or not it was there."""
        store.replace("a/b", b"1")
        store.replace("a/b", b"2")
        assert store.get("a/b", limit_bytes=LIMIT) == b"2"

    def test_a_swap_happens_only_from_what_was_expected(self, store: DocumentStore) -> None:
        """A slower writer with older knowledge must lose."""
        self.check_swap(store, "a", b"1", expected=b"0", happens=False)
        self.check_swap(store, "a", b"1", expected=None, happens=True)
        self.check_swap(store, "a", b"2", expected=None, happens=False)
        self.check_swap(store, "a", b"2", expected=b"1", happens=True)
        swaps = Limit.CONDITIONAL_REPLACE not in self.limits
        assert store.get("a", limit_bytes=LIMIT) == (b"2" if swaps else b"1")

    def test_no_racing_swap_is_lost(self, store: DocumentStore) -> None:
        """Sixteen writers that each count up by one must together count up by sixteen."""
        if Limit.CONDITIONAL_REPLACE in self.limits:
            return  # none is sent, as the test before shows
        store.create("counter", b"0")

        def count_up(_: int) -> None:
            while True:
                found = store.get("counter", limit_bytes=LIMIT)
                assert found is not None
                if store.compare_and_swap("counter", b"%d" % (int(found) + 1), expected=found):
                    return

        race(count_up)
        assert store.get("counter", limit_bytes=LIMIT) == b"%d" % RACERS

    def test_a_listing_shows_direct_children_sorted(self, store: DocumentStore) -> None:
        """Names are listed as they are, files apart from what has something below it."""
        for key in ("p/b", "p/a", "p/d/x", "p/c/y/z", "q"):
            store.create(key, b"")
        names = store.names("p")
        assert (names.files, names.directories) == (("a", "b"), ("c", "d"))
        assert (store.names("absent").files, store.names("absent").directories) == ((), ())
        assert (store.names("").files, store.names("").directories) == (("q",), ("p",))

    def test_writing_leaves_nothing_else_in_a_listing(self, store: DocumentStore) -> None:
        """A store's own temporary names are nobody's documents."""
        store.create("p/a", b"1")
        store.create("p/a", b"2")
        store.replace("p/b", b"3")
        self.check_swap(store, "p/b", b"4", expected=b"3", happens=True)
        self.check_swap(store, "p/b", b"5", expected=b"3", happens=False)
        assert store.names("p").files == ("a", "b")
        assert store.names("p").directories == ()


class StoreContract(DocumentContract):
    """The whole port."""

    @pytest.fixture
    def staged(self, store: Store) -> Path:
        store.prepare(("f/staging", "f"))
        return store.staging_path(store.payload("f/staging/s/payload", "f/generation"))

    def write(self, staged: Path, **files: bytes) -> tuple[str, ...]:
        for name, data in files.items():
            path = staged / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return tuple(name.replace("__", "/") for name in files)

    def persist(self, store: Store, staged: Path, **files: bytes) -> tuple[Hashed, ...]:
        paths = self.write(staged, **files)
        payload = store.payload("f/staging/s/payload", "f/generation")
        return store.persist(payload, paths, (Algorithm.BLAKE3, Algorithm.SHA256))

    def install(self, store: Store, staged: Path, **files: bytes) -> None:
        self.persist(store, staged, **files)
        assert store.install(store.payload("f/staging/s/payload", "f/generation"), "f/generation")

    def test_a_document_longer_than_its_limit_is_refused(self, store: Store) -> None:
        """A stranger's object must not fill our memory, and half of it must not be taken for the whole."""
        store.create("a", b"12345")
        assert store.get("a", limit_bytes=5) == b"12345"
        with pytest.raises(StorePermanentError):
            store.get("a", limit_bytes=4)

    @pytest.mark.parametrize("key", UNLAWFUL)
    def test_an_unlawful_key_is_refused_by_every_operation(self, store: Store, key: str) -> None:
        """No caller's mistake and no stranger's name leads out of the root."""
        request = HashRequest(path="x")
        actions: tuple[Callable[[], object], ...] = (
            lambda: store.get(key, limit_bytes=LIMIT),
            lambda: store.create(key, b""),
            lambda: store.replace(key, b""),
            lambda: store.compare_and_swap(key, b"", expected=None),
            lambda: store.names(key),
            lambda: list(store.walk(key)),
            lambda: store.stat(key),
            lambda: store.delete(key),
            lambda: store.prepare((key,)),
            lambda: store.staging_path(key),
            lambda: store.payload(key, "b"),
            lambda: store.payload("b", key),
            lambda: store.persist(key, ("x",), (Algorithm.BLAKE3,)),
            lambda: store.install(key, "b"),
            lambda: store.install("b", key),
            lambda: store.discard(key),
            lambda: store.last_changed(key),
            lambda: store.sweep(key, before=datetime.now(UTC)),
            lambda: list(store.hash(key, (request,))),
        )
        for action in actions:
            with pytest.raises(FormatError):
                action()

    def test_stat_tells_length_and_absence(self, store: Store) -> None:
        """Sizes are compared before anything is read."""
        store.create("a/b", b"12345")
        assert store.stat("a/b") == StoredObject(key="a/b", bytes=5, kind=ObjectKind.FILE)
        assert store.stat("a/c") is None
        assert store.stat("a/b/c") is None

    def test_stat_and_a_walk_tell_when_a_file_was_written(self, store: Store) -> None:
        """By that a checkpoint of a branch that was cut is told from one that was written anew under its name."""
        before = datetime.now(UTC) - timedelta(seconds=5)
        store.create("a/b", b"x")
        (walked,), found = store.walk("a"), store.stat("a/b")
        assert found is not None
        assert found.written_at is not None
        assert walked.written_at == found.written_at
        assert before < found.written_at < datetime.now(UTC) + timedelta(seconds=5)

    def test_a_walk_shows_everything_below_once(self, store: Store) -> None:
        """Names that are each other's beginnings, and those beyond ASCII, are where listings go wrong."""
        keys = ("p/a/b", "p/a.txt", "p/a-b", "p/a/b/", "p/z", "p/Ä")
        for key in keys:
            if not key.endswith("/"):
                store.create(key, b"1")
        walked = [stored.key for stored in store.walk("p")]
        assert sorted(walked) == sorted(key for key in keys if not key.endswith("/"))
        assert list(store.walk("absent")) == []

    def test_delete_may_be_repeated(self, store: Store) -> None:
        """Cleaning up after a crash meets what was already removed."""
        store.create("a/b", b"")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("absent/b")
        assert store.get("a/b", limit_bytes=LIMIT) is None

    def test_prepare_may_be_repeated(self, store: Store) -> None:
        """Every start prepares the family's places, whether or not an earlier one did."""
        store.prepare(("f/.lastgood/incarnations", "f/.lastgood/commits"))
        store.create("f/.lastgood/commits/x", b"1")
        store.prepare(("f/.lastgood/incarnations", "f/.lastgood/commits"))
        assert store.get("f/.lastgood/commits/x", limit_bytes=LIMIT) == b"1"

    def test_persist_reads_back_what_was_written(self, store: Store, staged: Path) -> None:
        """A receipt vouches for bytes that were read from the store, not for those that were meant to be written."""
        hashed = self.persist(store, staged, a=b"first", d__b=b"second", empty=b"")
        assert [(h.path, h.bytes, h.trouble) for h in hashed] == [("a", 5, None), ("d/b", 6, None), ("empty", 0, None)]
        assert hashed[1].digests == (hash_bytes(b"second"), hash_bytes(b"second", Algorithm.SHA256))

    def test_install_gives_a_payload_its_name(self, store: Store, staged: Path) -> None:
        """What was persisted is found under the generation's name, and nowhere else."""
        self.install(store, staged, a=b"1", d__b=b"2")
        assert {stored.key for stored in store.walk("f/generation")} == {"f/generation/a", "f/generation/d/b"}
        assert list(store.walk("f/staging")) == []

    def test_a_later_publish_never_replaces_an_artifact(self, store: Store, staged: Path) -> None:
        """A name serves one publish: a second one is refused one way or another, and the first stays whole."""
        self.install(store, staged, a=b"1", d__b=b"2")
        payload = store.payload("f/staging/t/payload", "f/generation")
        again = store.staging_path(payload)
        (again / "a").write_bytes(b"3")
        with contextlib.suppress(StorePermanentError):
            store.persist(payload, ("a",), (Algorithm.BLAKE3,))
            assert store.install(payload, "f/generation") is False
        held = {stored.key: store.get(stored.key, limit_bytes=LIMIT) for stored in store.walk("f/generation")}
        assert held == {"f/generation/a": b"1", "f/generation/d/b": b"2"}

    def test_discard_removes_everything_below_and_may_be_repeated(self, store: Store, staged: Path) -> None:
        """Abandoned staging is removed whole."""
        self.persist(store, staged, a=b"1", d__b=b"2")
        store.create("f/staging/s/receipts/rank-00000.json", b"{}")
        store.discard("f/staging/s")
        store.discard("f/staging/s")
        assert list(store.walk("f/staging")) == []
        assert store.names("f/staging").directories == ()

    def test_the_last_change_is_of_anything_below(self, store: Store) -> None:
        """What somebody still writes into must never look old, however old its beginnings are."""
        assert store.last_changed("absent") is None
        before = datetime.now(UTC) - timedelta(seconds=5)
        store.create("a/b/deep", b"x")
        changed = store.last_changed("a")
        assert changed is not None
        assert before < changed < datetime.now(UTC) + timedelta(seconds=5)
        assert store.last_changed("a/b/deep") is not None

    def test_the_clock_is_the_one_of_changes(self, store: Store) -> None:
        """What is old is told by comparing the two, so no change that was made between two looks may lie outside."""
        store.create("a/first", b"x")
        before = store.clock("a")
        store.create("a/second", b"x")
        changed = store.last_changed("a/second")
        assert changed is not None
        assert before <= changed <= store.clock("a")
        assert store.names("a").files == ("first", "second")

    def test_a_sweep_removes_nothing_that_has_a_lawful_name(self, store: Store) -> None:
        """It is for what the store itself left half done, and for nothing else."""
        store.create("docs/a", b"x")
        store.compare_and_swap("docs/b", b"y", expected=None)
        later = datetime.now(UTC) + timedelta(days=1)
        assert store.sweep("docs", before=later) == ()
        assert store.sweep("absent", before=later) == ()
        assert store.names("docs").files == ("a", "b")
        self.check_swap(store, "docs/b", b"z", expected=b"y", happens=True)

    def test_hashes_come_in_order_with_failures_beside_them(self, store: Store, staged: Path) -> None:
        """One missing shard must not hide what is wrong with the next."""
        self.install(store, staged, a=b"first", d__b=b"second")
        requests = [
            HashRequest(path="d/b", size_bytes=6),
            HashRequest(path="absent", size_bytes=1),
            HashRequest(path="a", size_bytes=4),
            HashRequest(path="a"),
        ]
        hashed = list(store.hash("f/generation", requests))
        assert [(h.path, h.trouble) for h in hashed] == [
            ("d/b", None),
            ("absent", Trouble.MISSING),
            ("a", Trouble.SIZE),
            ("a", None),
        ]
        assert hashed[3].digests == (hash_bytes(b"first"),)
        assert hashed[2].bytes == 5
        assert all(h.message for h in hashed if h.trouble)

    def test_hashing_below_what_is_absent_finds_everything_missing(self, store: Store) -> None:
        """A generation's directory that is gone is no trouble of the store."""
        hashed = list(store.hash("f/absent", [HashRequest(path="a"), HashRequest(path="b")]))
        assert [h.trouble for h in hashed] == [Trouble.MISSING, Trouble.MISSING]

    def test_any_part_of_an_artifact_can_be_read(self, store: Store, staged: Path) -> None:
        """A reader of containers jumps to an end and back, and must get exactly what it asks for or be refused."""
        data = b"any part of it"
        self.install(store, staged, b__c=data)
        with store.open("f/generation", "b/c") as reader:
            assert reader.size_bytes == len(data)
            assert reader.read_at(len(data) - 3, 3) == data[-3:]
            assert reader.read_at(1, 2) == data[1:3]
            assert reader.read_at(0, 0) == b""
            for offset, length in ((-1, 1), (0, len(data) + 1), (len(data), 1), (0, -1)):
                with pytest.raises(ValueError, match="range outside"):
                    reader.read_at(offset, length)

    @pytest.mark.parametrize("path", ["absent", "a/below", "b"])
    def test_what_is_no_artifact_cannot_be_opened(self, store: Store, staged: Path, path: str) -> None:
        """Absent, below a file, or a directory: each is an error of the store that names it."""
        self.install(store, staged, a=b"a", b__c=b"c")
        with pytest.raises(StorePermanentError, match=path), store.open("f/generation", path):
            pass

    def test_a_fetched_copy_is_exactly_what_was_hashed(self, store: Store, staged: Path, tmp_path: Path) -> None:
        """A restore loads the copy, so its digest must be of the bytes that were written into it."""
        self.install(store, staged, a=b"first" * 1000)
        copy = tmp_path / "copy"
        hashed = store.fetch("f/generation", HashRequest(path="a", size_bytes=5000), copy)
        assert hashed.digests == (hash_bytes(copy.read_bytes()),)
        assert copy.read_bytes() == b"first" * 1000
        missing = store.fetch("f/generation", HashRequest(path="absent"), tmp_path / "none")
        assert missing.trouble is Trouble.MISSING
