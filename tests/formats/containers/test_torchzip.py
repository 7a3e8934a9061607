"""The zip of `torch.save`: records, checksums, little reading, and archives that mean one thing to every reader."""

from __future__ import annotations

import io
import os
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.serialization import config

from lastgood.errors import FormatError
from lastgood.formats.containers import torchzip
from lastgood.formats.containers.reading import BytesReader, Window
from lastgood.formats.containers.torchfile import Container, container_of, read_torch_file
from lastgood.formats.containers.torchzip import CrcOutcome, TorchZip, open_torch_zip
from lastgood.reasons import Reason
from lastgood.stores.reading import FileReader
from tests.formats.containers.counting import CountingReader
from tests.formats.containers.samples import reader_of, saved, training_state, without_checksums


def opened(data: bytes) -> TorchZip:
    return open_torch_zip(BytesReader(data), "x.pt")


def outcomes(data: bytes) -> dict[str, CrcOutcome]:
    return {checked.record.name: checked.outcome for checked in opened(data).check_crcs()}


def sparse_archive(path: Path, payload_bytes: int) -> None:
    """A file of `torch.save` with one storage that is a hole in the file, as 64-bit zips spell it."""
    with zipfile.ZipFile(io.BytesIO(saved({"w": torch.zeros(4)}))) as source:
        pickle = source.read(source.namelist()[0]).replace(
            b"K\x04", b"\x8a\x05" + (payload_bytes // 4).to_bytes(5, "little")
        )
    with path.open("wb") as file, zipfile.ZipFile(file, "w") as target:
        target.writestr("archive/data.pkl", pickle)
    start, directory = split(path.read_bytes())
    name = b"archive/data/0"
    local = struct.pack("<4s5H3L2H", b"PK\x03\x04", 45, 8, 0, 0, 0, 0, 0, 0, len(name), 0) + name
    extra = struct.pack("<2H2Q", 1, 16, payload_bytes, payload_bytes)
    numbers = (b"PK\x01\x02", 45, 45, 8, 0, 0, 0, 0, 2**32 - 1, 2**32 - 1, len(name), len(extra), 0, 0, 0, 0, start)
    directory += struct.pack("<4s6H3L5H2L", *numbers) + name + extra
    place = start + len(local) + payload_bytes
    with path.open("r+b") as file:
        file.seek(start)
        file.write(local)
        file.seek(place)
        file.write(struct.pack("<4sL2Q", b"PK\x07\x08", 0, payload_bytes, payload_bytes))
        place = file.tell()
        file.write(directory)
        end = file.tell()
        file.write(struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2, 2, len(directory), place))
        file.write(struct.pack("<4sLQL", b"PK\x06\x07", 0, end, 1))
        file.write(struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), 2**32 - 1, 0))


def split(data: bytes) -> tuple[int, bytes]:
    """Where the directory of a small zip begins, and the directory."""
    length, start = struct.unpack_from("<2L", data, len(data) - 10)
    return start, data[start : start + length]


def test_records_are_those_that_zipfile_sees() -> None:
    """Names, lengths and checksums must be the ones that torch wrote, by a reader that knows nothing of ours."""
    data = saved(training_state())
    archive = opened(data)
    with zipfile.ZipFile(io.BytesIO(data)) as theirs:
        expected = {info.filename.partition("/")[2]: (info.file_size, info.CRC) for info in theirs.infolist()}
        assert {name: (record.data_bytes, record.crc32) for name, record in archive.records.items()} == expected
        for name in expected:
            assert archive.read_record(name, 2**24) == theirs.read(f"{archive.directory.archive}/{name}")


def test_a_healthy_archive_holds() -> None:
    """Every record of what torch wrote a moment ago must hold, small and large ones alike."""
    data = saved({"small": torch.ones(3), "large": torch.arange(1_000_000), "none": torch.zeros(0)})
    assert set(outcomes(data).values()) == {CrcOutcome.HELD}


def test_checks_go_forward_in_large_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a record in many requests, or twice, would make checking slower than a plain pass over the file."""
    monkeypatch.setattr(torchzip, "READ_BYTES", 100_000)
    monkeypatch.setattr(torchzip, "_WHOLE_BYTES", 0)
    data = saved({str(size): torch.arange(size) for size in (3, 1000, 12_500, 12_501, 40_000, 5)})
    reader = CountingReader(BytesReader(data))
    archive = open_torch_zip(reader, "x")
    reader.reads.clear()
    told: list[int] = []
    checked = list(archive.check_crcs(told.append))
    assert {record.outcome for record in checked} == {CrcOutcome.HELD}
    assert told == sorted(told)
    assert told[-1] == sum(record.data_bytes for record in archive.records.values())
    assert len(reader.reads) <= len(data) // 100_000 + 2
    assert reader.bytes_read <= len(data) + 1_000


def test_a_flipped_byte_in_any_record_is_found() -> None:
    """A flipped byte loads silently in torch; the CRC-32 beside it is the only thing that knows."""
    data = saved(training_state())
    for record in opened(data).records.values():
        for place in {0, record.data_bytes // 2, record.data_bytes - 1}:
            start = opened(data)._locate(record, BytesReader(data).read_at) + place
            damaged = data[:start] + bytes([data[start] ^ 0x10]) + data[start + 1 :]
            wrong = {name for name, outcome in outcomes(damaged).items() if outcome is not CrcOutcome.HELD}
            assert wrong == {record.name}


def test_a_corrupt_record_is_not_read() -> None:
    """What a pickle says is worth nothing once its own checksum contradicts it."""
    data = saved({"a": 1})
    record = opened(data).records["data.pkl"]
    start = opened(data)._locate(record, BytesReader(data).read_at)
    damaged = data[:start] + b"\xff" + data[start + 1 :]
    with pytest.raises(FormatError, match=r"CRC-32 mismatch: x.pt: 'data.pkl'") as caught:
        opened(damaged).read_record("data.pkl", 1000)
    assert caught.value.reason is Reason.RECORD_CORRUPT


def test_checksums_that_were_left_out_are_said_to_be() -> None:
    """`set_crc32_options(False)` writes zeros; calling that corrupt would refuse healthy checkpoints."""
    with without_checksums():
        data = saved({"a": torch.ones(9)})
    assert set(outcomes(data).values()) == {CrcOutcome.NOT_RECORDED}
    assert read_torch_file(BytesReader(data), "x").problems == ()


@pytest.mark.parametrize("alignment", [64, 4096])
def test_alignment_of_storages_changes_nothing(alignment: int) -> None:
    """Storages can be aligned for direct reads, which pads the local headers."""
    with config.patch({"save.storage_alignment": alignment}):
        data = saved({"a": torch.ones(3), "b": torch.arange(1000)})
    file = read_torch_file(BytesReader(data), "x")
    assert file.archive is not None
    assert file.archive.read_text(".storage_alignment") == str(alignment)
    assert file.problems == ()
    assert set(outcomes(data).values()) == {CrcOutcome.HELD}


def test_an_archive_inside_a_larger_file_is_read_through_a_window() -> None:
    """Each entry of a `.distcp` file is an archive of its own, between others."""
    parts = [saved({"part": index, "w": torch.full((index + 1,), index)}) for index in range(3)]
    whole = BytesReader(b"".join(parts))
    offset = 0
    for index, part in enumerate(parts):
        file = read_torch_file(Window(whole, offset, len(part), "x"), "x")
        assert file.value["part"] == index
        assert file.archive is not None
        assert {checked.outcome for checked in file.archive.check_crcs()} == {CrcOutcome.HELD}
        offset += len(part)
    with pytest.raises(FormatError, match="range beyond the file"):
        Window(whole, offset, 1, "x")


def test_a_hundred_gigabytes_are_opened_with_little_reading(tmp_path: Path) -> None:
    """Describing a checkpoint must cost its description, not its payload."""
    sparse_archive(tmp_path / "large.pt", 100 * 2**30)
    with FileReader(os.open(tmp_path / "large.pt", os.O_RDONLY), "large.pt") as inner:
        reader = CountingReader(inner)
        file = read_torch_file(reader, "large.pt")
        assert file.payload_bytes == 100 * 2**30
        assert (file.value["w"].storage.bytes, file.problems) == (100 * 2**30, ())
        assert reader.bytes_read < 2**18
        assert len(reader.reads) <= 8


def test_torchs_own_archive_of_five_gigabytes_is_understood(tmp_path: Path) -> None:
    """Beyond four gigabytes lengths and places need 64 bits, in the directory and behind the data."""
    with torch.serialization.skip_data():  # the file is a hole where the elements would be
        torch.save({"w": torch.empty(5 * 2**30, dtype=torch.uint8), "v": torch.empty(9)}, tmp_path / "x.pt")
    with FileReader(os.open(tmp_path / "x.pt", os.O_RDONLY), "x.pt") as reader:
        file = read_torch_file(reader, "x.pt")
        assert (file.payload_bytes, file.problems) == (5 * 2**30 + 36, ())
        assert file.archive is not None
        assert file.archive.records["data/1"].start > 2**32
        outcomes = {checked.record.name: checked.outcome for checked in file.archive.check_crcs()}
        assert outcomes.pop("data/0") is CrcOutcome.NOT_RECORDED
        assert outcomes.pop("data/1") is CrcOutcome.NOT_RECORDED
        assert set(outcomes.values()) == {CrcOutcome.HELD}
        for name in ("data/0", "data/1"):
            record = file.archive.records[name]
            start = file.archive._locate(record, reader.read_at)
            file.archive._check_descriptor(record, start, reader.read_at)


def test_every_save_has_its_own_serialization_id() -> None:
    """Files of different saves are told apart by it; the bytes of two saves of one value are otherwise alike."""
    one, other = (read_torch_file(reader_of({"a": 1}), "x").serialization_id for _ in range(2))
    assert one is not None
    assert other is not None
    assert one.isdigit()
    assert read_torch_file(reader_of({"a": 1}), "x").byteorder == "little"


def test_what_lies_behind_the_archive_is_told() -> None:
    """Torch loads such a file; somebody wrote there, or two files were joined."""
    file = read_torch_file(BytesReader(saved({"a": 1}) + b"junk"), "x")
    assert [problem.message for problem in file.problems] == ["bytes of no record: x: 4 at the end"]


@pytest.mark.parametrize("kept", [0, 1, 3, 4, 100, -1, -22, -23, -200])
def test_a_cut_file_is_refused(kept: int) -> None:
    """Wherever a file was cut off, reading must say so."""
    data = saved(training_state())
    with pytest.raises(FormatError):
        read_torch_file(BytesReader(data[:kept]), "x")


def test_forms_are_told_by_their_first_bytes() -> None:
    """A name proves nothing: `.bin` and `.ckpt` may hold any of these."""
    forms = {
        Container.EMPTY: b"",
        Container.TORCH_ZIP: saved(1),
        Container.TORCH_LEGACY: saved(1, _use_new_zipfile_serialization=False),
        Container.SAFETENSORS: struct.pack("<Q", 2) + b"{}",
        Container.PICKLE: b"\x80\x04N.",
        Container.UNKNOWN: b"hello",
    }
    for form, data in forms.items():
        assert container_of(BytesReader(data), "x") is form


@given(st.data())
def test_damaged_archives_are_refused_or_mean_the_same_to_every_reader(data: st.DataObject) -> None:
    """One changed, cut or repeated stretch anywhere is a FormatError, or zipfile and torch read the same records."""
    start = data.draw(st.integers(0, len(DAMAGED_SOURCE) - 1))
    middle = data.draw(st.binary(max_size=6))
    length = data.draw(st.integers(0, 6))
    assert_refused_or_the_same(DAMAGED_SOURCE[:start] + middle + DAMAGED_SOURCE[start + length :])


def test_each_flipped_bit_of_the_directory_is_refused_or_means_the_same() -> None:
    """One bit makes a record a directory to torch and leaves it a file to zipfile; there must be no other such bit."""
    start = DAMAGED_SOURCE.index(b"PK\x01\x02")
    for place in range(start, len(DAMAGED_SOURCE)):
        for bit in range(8):
            flipped = bytes([DAMAGED_SOURCE[place] ^ 1 << bit])
            assert_refused_or_the_same(DAMAGED_SOURCE[:place] + flipped + DAMAGED_SOURCE[place + 1 :])


def assert_refused_or_the_same(damaged: bytes) -> None:
    """We refuse an archive, or whoever else accepts it reads the records that we read."""
    try:
        archive = opened(damaged)
        contents = {name: archive.read_record(name, 2**20) for name in archive.records}
        list(archive.check_crcs())
        read_torch_file(BytesReader(damaged), "x")
    except FormatError:
        return
    for theirs in (read_by_zipfile(damaged), read_by_torch(damaged)):
        assert theirs is None or theirs == contents


def read_by_zipfile(data: bytes) -> dict[str, bytes] | None:
    """What Python's own reader finds below the archive's name; None where it refuses."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return {info.filename.partition("/")[2]: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError):
        return None


def read_by_torch(data: bytes) -> dict[str, bytes] | None:
    """What torch's own reader finds; None where it refuses."""
    try:
        archive = torch._C.PyTorchFileReader(io.BytesIO(data))
        return {name: archive.get_record(name) for name in archive.get_all_records()}
    except RuntimeError:
        return None


DAMAGED_SOURCE = saved({"w": torch.ones(3), "n": [1, "a"]})


def test_every_reader_reads_what_torch_wrote() -> None:
    """The comparison above must not pass because the others refuse everything."""
    assert read_by_zipfile(DAMAGED_SOURCE) == read_by_torch(DAMAGED_SOURCE)
    assert set(read_by_torch(DAMAGED_SOURCE) or {}) == set(opened(DAMAGED_SOURCE).records)
