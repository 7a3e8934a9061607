"""Bytes that changed are found where anything covers them, and where nothing does that is said."""

from __future__ import annotations

import os
import random
import shutil
import threading
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from lastgood.errors import StoreTransientError
from lastgood.formats.containers.dcpmetadata import read_dcp_metadata
from lastgood.formats.description import Certainty, Description, Framework, HeldComponent, Layout, NeedlessFile
from lastgood.formats.integrity import Integrity, check_integrity, checking, checksums
from lastgood.formats.source import Source, open_source
from lastgood.manifest import Component
from lastgood.reasons import NoteReason, Reason
from lastgood.stores import LocalStore
from lastgood.stores.port import ObjectReader
from lastgood.testing.foreign.archives import edit_pickle, plant_name
from lastgood.verify import Depth
from tests.corpus import SPECIMENS, Corpus

PROOF = os.environ.get("LASTGOOD_PROOF") == "1"
SLOW_FLIPS = 1_000 if PROOF else 100


def state(seed: int = 0) -> dict[str, object]:
    generator = torch.Generator().manual_seed(seed)
    return {"weight": torch.randn(64, 32, generator=generator), "bias": torch.randn(64, generator=generator), "step": 8}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory with one of each: an archive, a distributed save, safetensors, a text."""
    directory = tmp_path / "run" / "step-8"
    directory.mkdir(parents=True)
    torch.save(state(), directory / "model.pt")
    save_file({"weight": torch.randn(64, 32)}, directory / "model.safetensors")
    (directory / "notes.json").write_text("{}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state(1), storage_writer=dcp.FileSystemWriter(directory / "shards", thread_count=2))
    return directory


def source_of(checkpoint: Path, store: LocalStore | None = None) -> Source:
    source = open_source(store or LocalStore(checkpoint.parent.parent), f"{checkpoint.parent.name}/{checkpoint.name}")
    assert source is not None
    return source


def check(checkpoint: Path, depth: Depth = Depth.FULL) -> Integrity:
    return check_integrity(source_of(checkpoint), depth=depth)


def payload_ranges(root: Path) -> list[tuple[Path, int, int]]:
    """File, offset and length of every record that a checksum covers."""
    ranges = []
    for path in sorted(root.rglob("*")):
        if path.suffix == ".distcp":
            metadata = read_dcp_metadata((path.parent / ".metadata").read_bytes(), ".metadata")
            starts = [(one.offset, one.length) for one in metadata.entries if one.path == path.name]
        elif path.is_file() and zipfile.is_zipfile(path):
            starts = [(0, path.stat().st_size)]
        else:
            continue
        data = path.read_bytes()
        for offset, length in starts:
            part = root.parent / "part.zip"
            part.write_bytes(data[offset : offset + length])
            with zipfile.ZipFile(part) as archive:
                for record in archive.infolist():
                    names = data[offset + record.header_offset + 26 : offset + record.header_offset + 30]
                    head = 30 + int.from_bytes(names[:2], "little") + int.from_bytes(names[2:], "little")
                    ranges.append((path, offset + record.header_offset + head, record.file_size))
            part.unlink()
    return [one for one in ranges if one[2]]


def assert_flips_are_found(checkpoint: Path, count: int, seed: int) -> None:
    choose = random.Random(seed)
    ranges = payload_ranges(checkpoint)
    for _ in range(count):
        path, offset, length = choose.choices(ranges, weights=[one[2] for one in ranges])[0]
        place, bit = offset + choose.randrange(length), 1 << choose.randrange(8)
        kept = path.read_bytes()
        path.write_bytes(kept[:place] + bytes([kept[place] ^ bit]) + kept[place + 1 :])
        found = check(checkpoint).findings
        assert {one.offender for one in found} == {str(path.relative_to(checkpoint))}, (path, place, bit)
        path.write_bytes(kept)


def test_a_healthy_directory_has_no_findings_and_counts_every_byte(checkpoint: Path) -> None:
    """Each byte is matched, bare, or a header: none is counted twice and none is called covered that is not."""
    found = check(checkpoint)
    assert (found.findings, found.unread, found.unknowable) == ((), (), ())
    coverage = found.coverage
    assert coverage.total == sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    assert coverage.matching == sum(length for _, _, length in payload_ranges(checkpoint))
    assert coverage.bare >= 64 * 32 * 4
    assert coverage.matching + coverage.bare + coverage.pending + coverage.unrecorded <= coverage.total
    assert [note.reason for note in found.notes] == [NoteReason.PAYLOAD_NOT_COVERED]
    assert "covered by no checksum" in coverage.summary(Depth.FULL)


def test_depth_metadata_compares_structure_and_says_what_it_left(checkpoint: Path) -> None:
    """A look must not be mistaken for a verification."""
    found = check(checkpoint, Depth.METADATA)
    assert found.findings == ()
    assert found.coverage.matching == 0
    assert found.coverage.pending > 0
    assert "not compared" in found.summary


def test_flipped_payload_is_found(checkpoint: Path) -> None:
    """No loader looks at these checksums."""
    assert_flips_are_found(checkpoint, 20, seed=7)


@pytest.mark.slow
def test_flipped_payload_is_found_in_what_frameworks_wrote(corpus: Corpus, tmp_path: Path) -> None:
    """One in a hundred that is missed would be one in a hundred that trains on."""
    names = [name for name in SPECIMENS if name != "safetensors"]
    for number, name in enumerate(names):
        specimen = corpus[name].copy(tmp_path / name)
        newest = specimen.newest
        if newest.is_file():  # a checkpoint of a single file is judged in a directory of its own
            directory = tmp_path / f"{name}-alone" / "checkpoint"
            directory.mkdir(parents=True)
            newest = Path(shutil.copy(newest, directory)).parent
        assert_flips_are_found(newest, -(-SLOW_FLIPS // len(names)), seed=number)


def test_a_flip_in_safetensors_is_said_to_be_not_covered(checkpoint: Path) -> None:
    """Nobody can find it before the checkpoint is sealed, so nobody may call the file whole."""
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    found = check(checkpoint)
    assert found.findings == ()
    assert [note.offender for note in found.notes] == ["model.safetensors"]


def test_a_checksum_that_was_not_recorded_is_not_a_wrong_one(tmp_path: Path) -> None:
    """Torch can leave them out for speed; `zipfile` then calls every record bad."""
    directory = tmp_path / "run" / "step-8"
    directory.mkdir(parents=True)
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state(), directory / "model.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    found = check(directory)
    assert found.findings == ()
    assert [note.reason for note in found.notes] == [NoteReason.CHECKSUM_NOT_RECORDED]
    assert found.coverage.unrecorded > 64 * 32 * 4


def test_a_file_of_the_old_form_has_no_checksum(tmp_path: Path) -> None:
    """What torch wrote before the zip is read, and its payload is nobody's word."""
    directory = tmp_path / "run" / "step-8"
    directory.mkdir(parents=True)
    torch.save(state(), directory / "model.pt", _use_new_zipfile_serialization=False)
    found = check(directory)
    assert found.findings == ()
    assert [note.reason for note in found.notes] == [NoteReason.PAYLOAD_NOT_COVERED]


_LONG_BYTES = 2**19
"""Longer than what finding a directory reads: payload."""


class _Bending(LocalStore):
    """A store whose transfers go wrong a few times: a long range comes with one bit changed."""

    bends = 0

    @contextmanager
    def open(self, prefix: str, path: str) -> Iterator[ObjectReader]:  # type: ignore[override]  # any reader
        with super().open(prefix, path) as reader:
            yield _BendingReader(self, reader)


class _BendingReader:
    def __init__(self, store: _Bending, reader: ObjectReader) -> None:
        self._store = store
        self._reader = reader

    @property
    def size_bytes(self) -> int:
        return self._reader.size_bytes

    def read_at(self, offset: int, length: int) -> bytes:
        data = self._reader.read_at(offset, length)
        if self._store.bends and length > _LONG_BYTES:
            self._store.bends -= 1
            middle = length // 2
            return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        return data


def test_wrong_bytes_are_believed_when_they_are_read_twice(tmp_path: Path) -> None:
    """What a transfer flipped is not what is stored: nothing is known of it, and nothing is found."""
    directory = tmp_path / "run" / "step-8"
    directory.mkdir(parents=True)
    torch.save({"weight": torch.randn(512, 512)}, directory / "model.pt")
    store = _Bending(tmp_path)
    source = source_of(directory, store)
    store.bends = 1
    found = check_integrity(source, threads=1)
    assert found.findings == ()
    assert len(found.unread) == 1
    assert "two readings" in found.unread[0]


def test_structure_is_believed_when_it_is_read_twice(tmp_path: Path) -> None:
    """A bent answer to the first question about a file must not condemn it either."""
    directory = tmp_path / "run" / "step-8"
    directory.mkdir(parents=True)
    torch.save({"weight": torch.randn(512, 512)}, directory / "model.pt")

    class Zeroing(LocalStore):
        zeroes = 1

        @contextmanager
        def open(self, prefix: str, path: str) -> Iterator[ObjectReader]:  # type: ignore[override]  # any reader
            with super().open(prefix, path) as reader:
                yield _ZeroingReader(self, reader)

    class _ZeroingReader(_BendingReader):
        def read_at(self, offset: int, length: int) -> bytes:
            data = self._reader.read_at(offset, length)
            if self._store.zeroes and length > 1_000:
                self._store.zeroes -= 1
                return bytes(length)
            return data

    found = check_integrity(source_of(directory, Zeroing(tmp_path)), threads=1)
    assert found.findings == ()
    assert len(found.unread) == 1
    assert "two readings" in found.unread[0]


def test_what_the_store_cannot_read_is_unknown(checkpoint: Path) -> None:
    """A disk that fails says nothing about the checkpoint, and must not hide what else was found."""

    class Failing(LocalStore):
        @contextmanager
        def open(self, prefix: str, path: str) -> Iterator[ObjectReader]:  # type: ignore[override]  # any reader
            if path == "model.pt":
                raise StoreTransientError("cannot read it: timed out")
            with super().open(prefix, path) as reader:
                yield reader

    (checkpoint / "other.pt").write_bytes(b"")
    found = check_integrity(source_of(checkpoint, Failing(checkpoint.parent.parent)))
    assert [one.offender for one in found.findings] == ["other.pt"]
    assert found.unread == ("model.pt: cannot read it: timed out",)


def test_jobs_of_any_size_give_one_answer(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How work is cut up is nobody's business."""
    whole = check(checkpoint)
    monkeypatch.setattr(checksums, "JOB_BYTES", 1)
    monkeypatch.setattr(checksums, "CHUNK_BYTES", 4096)
    assert check(checkpoint) == whole


def test_progress_is_told_where_it_was_asked_for(checkpoint: Path) -> None:
    """A progress bar lives in one thread, and ends at what was read."""
    told: list[tuple[int, int]] = []

    def progress(done_bytes: int) -> None:
        told.append((threading.get_ident(), done_bytes))

    check_integrity(source_of(checkpoint), progress=progress)
    assert {thread for thread, _ in told} == {threading.get_ident()}
    done = [count for _, count in told]
    assert done == sorted(done)
    assert done[-1] > 0


def described(checkpoint: Path, *held: HeldComponent, framework: Framework = Framework.TORCH_SAVE) -> Description:
    return Description(
        framework=framework,
        layout_name="plain",
        step=8,
        layout=Layout(world_size=None, certainty=Certainty.UNKNOWN, why="a test"),
        components=held,
    )


@pytest.mark.parametrize("depth", list(Depth))
def test_a_name_that_nobody_expects_is_found(checkpoint: Path, depth: Depth) -> None:
    """A loader would import it, and many call what they import."""
    edit_pickle(checkpoint / "model.pt", lambda pickle: plant_name(pickle, "posix.system"))
    found = check(checkpoint, depth).findings
    assert [(one.reason, one.offender, one.found) for one in found] == [
        (Reason.GLOBAL_NOT_ALLOWED, "model.pt", "posix.system")
    ]


def test_a_framework_may_name_its_own_and_not_anothers(checkpoint: Path) -> None:
    """What is usual in one framework's files is a stranger in another's."""
    name = "deepspeed.runtime.fp16.loss_scaler.LossScaler"
    edit_pickle(checkpoint / "model.pt", lambda pickle: plant_name(pickle, name))
    source = source_of(checkpoint)
    own = check_integrity(source, description=described(checkpoint, framework=Framework.DEEPSPEED))
    other = check_integrity(source, description=described(checkpoint, framework=Framework.MEGATRON))
    assert own.findings == ()
    assert [one.reason for one in other.findings] == [Reason.GLOBAL_NOT_ALLOWED]


@pytest.mark.parametrize(
    ("name", "is_found"),
    [
        ("trl.trainer.sft_config.SFTConfig", False),
        ("__main__.Arguments", False),
        ("posix.system", True),
        ("subprocess.Popen", True),
        ("torch.hub.load", True),
    ],
)
def test_a_users_class_in_a_file_that_no_resume_loads_is_said(checkpoint: Path, name: str, is_found: bool) -> None:
    """Libraries on top of a trainer save their own arguments beside it: refusing those would refuse them all."""
    edit_pickle(checkpoint / "model.pt", lambda pickle: plant_name(pickle, name))
    needless = (NeedlessFile(path="model.pt", reason="a test"),)
    description = msgspec.structs.replace(described(checkpoint), needless=needless)
    found = check_integrity(source_of(checkpoint), description=description)
    assert [one.found for one in found.findings] == ([name] if is_found else [])
    assert any(name in sentence for sentence in found.unknowable) is not is_found


def test_what_a_look_leaves_out_is_said(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that is spent in silence would read as a clean bill."""
    monkeypatch.setattr(checking, "METADATA_BUDGET_BYTES", 10)
    found = check(checkpoint, Depth.METADATA)
    assert found.findings == ()
    assert len(found.unknowable) == 1
    assert "model.pt" in found.unknowable[0]


def test_shards_that_are_one_anothers_are_found_without_being_read(tmp_path: Path) -> None:
    """Two ranks that believed to be the same one wrote the same part twice, and the other is lost."""
    directory = tmp_path / "run" / "step-8"
    directory.mkdir(parents=True)
    for rank in range(3):
        torch.save(state(seed=min(rank, 1)), directory / f"optimizer_rank_{rank}.pt")
    found = check(directory, Depth.METADATA).findings
    assert [(one.reason, one.offender, one.found) for one in found] == [
        (Reason.RANK_DUPLICATED, "optimizer_rank_2.pt", "optimizer_rank_1.pt")
    ]


def _parameters(count: int, fill: Callable[[int], torch.Tensor]) -> dict[str, torch.Tensor]:
    return {f"layers.{number}.weight": fill(number) for number in range(count)}


@pytest.mark.parametrize(
    ("names", "fill"),
    [
        # Placeholders: a record of `data.pkl` grows with the parameters, and no tensor of it holds anything.
        (("zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"), 0),
        # Buffers and parameters too small to be split lie there whole, on every rank.
        (("zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_model_states.pt"), 64),
        # Stages of a pipeline keep their weights in files of layers.
        (("mp_rank_00_model_states.pt", "mp_rank_01_model_states.pt"), 0),
        # Two optimizers of one script, not of two ranks.
        (("optimizer_1.bin", "optimizer_2.bin"), 64),
        # Experts that were cloned from one layer and saw no token yet.
        (("layer_0_expert_0_mp_rank_00_model_states.pt", "layer_0_expert_1_mp_rank_00_model_states.pt"), 64),
    ],
)
def test_what_is_lawfully_alike_on_all_ranks_is_no_finding(tmp_path: Path, names: tuple[str, str], fill: int) -> None:
    """A healthy checkpoint that is called damaged is not resumed from, and its training is lost."""
    directory = tmp_path / "run" / "global_step8"
    directory.mkdir(parents=True)
    for name in names:
        torch.save(_parameters(60, lambda number: torch.full((fill,), number + 1.0)), directory / name)
    found = check_integrity(source_of(directory), description=described(directory, framework=Framework.DEEPSPEED))
    assert found.findings == ()


@pytest.mark.parametrize(("value", "is_found"), [(0.0, False), (1.0, True)])
def test_moments_that_are_zero_may_be_alike(tmp_path: Path, value: float, is_found: bool) -> None:
    """Before a first gradient, of frozen parameters and of idle experts all moments are zero, on any rank."""
    directory = tmp_path / "run" / "global_step8"
    directory.mkdir(parents=True)
    for rank in range(2):
        torch.save(
            {"step": torch.tensor(1.0), **_parameters(60, lambda _: torch.full((512,), value))},
            directory / f"expp_rank_{rank}_mp_rank_00_optim_states.pt",
        )
    found = check_integrity(source_of(directory), description=described(directory, framework=Framework.DEEPSPEED))
    assert [one.reason for one in found.findings] == ([Reason.RANK_DUPLICATED] if is_found else [])


def test_ranks_that_all_saved_the_same_whole_model_are_replicas(tmp_path: Path) -> None:
    """A loop under data parallelism may save on every rank, and nothing says that it held parts."""
    directory = tmp_path / "run" / "step-8"
    directory.mkdir(parents=True)
    for rank in range(3):
        torch.save(state(), directory / f"model_rank_{rank}.pt")
    assert check(directory).findings == ()


def test_random_states_of_ranks_that_were_seeded_alike_may_be_alike(tmp_path: Path) -> None:
    """Most trainers seed all ranks alike: equal states are what a healthy save of them holds."""
    directory = tmp_path / "run" / "step-8"
    directory.mkdir(parents=True)
    paths = tuple(f"rng_rank_{rank}.pt" for rank in range(2))
    for path in paths:
        torch.save(state(), directory / path)
    held = HeldComponent(component=Component.RNG, paths=paths)
    assert check_integrity(source_of(directory), description=described(directory, held)).findings == ()


@pytest.mark.parametrize("name", ["torn.pt", "pytorch_model.bin", "torn.pkl", "torn.safetensors", "torn.ckpt"])
@pytest.mark.parametrize("size", [0, 5_000])
def test_zeros_under_the_name_of_a_container_are_found(checkpoint: Path, name: str, size: int) -> None:
    """What a mounted bucket leaves of a file that it lost has its name, and often its length."""
    (checkpoint / name).write_bytes(bytes(size))
    found = check(checkpoint, Depth.METADATA).findings
    assert [(one.reason, one.offender) for one in found] == [(Reason.CONTAINER_MALFORMED, name)]


def test_bytes_behind_an_archive_are_found(checkpoint: Path) -> None:
    """Torch loads such a file, and whoever wrote there did not mean to."""
    with (checkpoint / "model.pt").open("ab") as file:
        file.write(b"junk")
    found = check(checkpoint).findings
    assert [(one.reason, one.offender) for one in found] == [(Reason.SIZE_MISMATCH, "model.pt")]


def test_what_a_description_found_is_not_said_again(checkpoint: Path) -> None:
    """One fault in two voices looks like two."""
    (checkpoint / "torn.pt").write_bytes(b"")
    (finding,) = check(checkpoint).findings
    known = Description(
        framework=Framework.TORCH_SAVE,
        layout_name="plain",
        step=8,
        layout=Layout(world_size=None, certainty=Certainty.UNKNOWN, why="a test"),
        components=(),
        findings=(finding,),
    )
    assert check_integrity(source_of(checkpoint), description=known).findings == ()
