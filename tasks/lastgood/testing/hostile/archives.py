"""Zips that bomb, lie, or say different things to different readers."""

from __future__ import annotations

import struct
import zlib

from lastgood.testing.hostile.assembly import (
    Member,
    archive,
    changed,
    empty_tensor,
    members,
    name_of,
    pickled,
    tuple_of,
)
from lastgood.testing.hostile.catalogue import Answer, Form, enter
from lastgood.testing.hostile.code import system

__all__: list[str] = []

_HEALTHY = pickled(empty_tensor())
_STORAGE = {"0": bytes(16)}
_DATA = 2  # index of `data/0` among the records


def _records() -> list[Member]:
    return members(_HEALTHY, _STORAGE)


def _wide(*, count: int, directory_bytes: int, directory_start: int, place: int) -> bytes:
    """A 64-bit end record and its locator, which says that it lies at `place`."""
    numbers = (44, 30, 45, 0, 0, count, count, directory_bytes, directory_start)
    end = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", *numbers)
    return end + struct.pack("<4sLQL", b"PK\x06\x07", 0, place, 1)


def _lengths() -> tuple[int, int]:
    """Where the directory of the healthy archive begins, and its length."""
    whole = archive(_records())
    length, start = struct.unpack("<2L", whole[-10:-2])
    return start, length


@enter(Form.TORCH, Answer.GLOBAL_NAMED, fires=True)
def code_behind_healthy_records(marker: str) -> bytes:
    """Everything about the archive is healthy but its pickle."""
    return archive(members(pickled(tuple_of(system(marker), empty_tensor())), _STORAGE))


@enter(Form.TORCH, fires=True)
def record_twice(marker: str) -> bytes:
    """Two records `data.pkl`: torch takes the first, `zipfile` the last."""
    return archive([Member(name=b"archive/data.pkl", data=pickled(system(marker))), *_records()])


@enter(Form.TORCH, fires=True)
def record_twice_in_capitals(marker: str) -> bytes:
    """`DATA.PKL` beside `data.pkl`: torch looks names up without regard to case."""
    return archive([Member(name=b"archive/DATA.PKL", data=pickled(system(marker))), *_records()])


@enter(Form.TORCH)
def records_overlap(_: str) -> bytes:
    """Two storages begin at the same byte: a bomb without compression."""
    records = _records()
    twins = [Member(name=b"archive/data/%d" % key, data=b"", start=0, crc32=0) for key in range(1, 5_000)]
    return archive(records + twins)


@enter(Form.TORCH)
def record_of_an_exabyte(_: str) -> bytes:
    """A record that is stored uncompressed and as long as no file."""
    wide = struct.pack("<2H2Q", 1, 16, 2**60, 2**60)
    return archive(changed(_records(), _DATA, packed_bytes=0xFFFFFFFF, bytes_=0xFFFFFFFF, extra=wide))


@enter(Form.TORCH)
def wide_sizes_missing(_: str) -> bytes:
    """The entry refers to 64-bit sizes that it does not carry."""
    return archive(changed(_records(), _DATA, packed_bytes=0xFFFFFFFF, bytes_=0xFFFFFFFF))


@enter(Form.TORCH)
def bomb(_: str) -> bytes:
    """A megabyte that inflates to a gigabyte."""
    squeezer = zlib.compressobj(9, zlib.DEFLATED, -15)
    squeezed = squeezer.compress(bytes(2**20)) + squeezer.flush(zlib.Z_FULL_FLUSH)  # knows nothing of what came before
    data = squeezed * 2**10 + squeezer.flush()
    return archive(changed(_records(), _DATA, data=data, method=8, bytes_=2**30, crc32=0, local_bytes=len(data)))


@enter(Form.TORCH)
def stored_and_longer(_: str) -> bytes:
    """Stored uncompressed, and longer unpacked than packed."""
    return archive(changed(_records(), _DATA, packed_bytes=16, bytes_=2**30))


@enter(Form.TORCH)
def record_is_a_directory(_: str) -> bytes:
    """A storage with the attribute of a directory: torch reads it as empty, `zipfile` reads its bytes."""
    return archive(changed(_records(), _DATA, attributes=0x10))


@enter(Form.TORCH)
def record_with_another_name(_: str) -> bytes:
    """A second name in a field that `zipfile` believes and torch does not know."""
    name = b"archive/data/0"
    other = struct.pack("<BL", 1, zlib.crc32(name)) + b"archive/data/1"
    return archive(changed(_records(), _DATA, extra=struct.pack("<2H", 0x7075, len(other)) + other))


@enter(Form.TORCH)
def encrypted(_: str) -> bytes:
    """A record with the flag of encryption."""
    return archive(changed(_records(), _DATA, flags=1))


@enter(Form.TORCH)
def local_name_differs(_: str) -> bytes:
    """The header in front of `data.pkl` bears the name of another record."""
    return archive(changed(_records(), 0, local_name=b"archive/DATA.pkl"))


@enter(Form.TORCH)
def local_length_differs(_: str) -> bytes:
    """The header in front of `data.pkl` tells another length than the directory."""
    return archive(changed(_records(), 0, local_bytes=3))


@enter(Form.TORCH)
def checksum_of_pickle_wrong(_: str) -> bytes:
    """The pickle is not what its checksum was taken of."""
    return archive(changed(_records(), 0, crc32=0x12345678))


@enter(Form.TORCH)
def described_later_and_lying(_: str) -> bytes:
    """A flag says that lengths follow the data, and nothing like them does."""
    return archive(changed(_records(), 0, flags=8))


@enter(Form.TORCH)
def record_count_absurd(_: str) -> bytes:
    """2**60 records, says the 64-bit end record."""
    start, length = _lengths()
    wide = _wide(count=2**60, directory_bytes=length, directory_start=start, place=start + length)
    return archive(_records(), count=0xFFFF, between=wide)


@enter(Form.TORCH)
def directory_absurd(_: str) -> bytes:
    """A directory of 2**62 bytes, says the 64-bit end record."""
    start, length = _lengths()
    wide = _wide(count=4, directory_bytes=2**62, directory_start=start, place=start + length)
    return archive(_records(), directory_bytes=0xFFFFFFFF, between=wide)


@enter(Form.TORCH)
def end_records_disagree(_: str) -> bytes:
    """The 64-bit end record and the 32-bit one count differently."""
    start, length = _lengths()
    wide = _wide(count=3, directory_bytes=length, directory_start=start, place=start + length)
    return archive(_records(), between=wide)


@enter(Form.TORCH)
def wide_end_elsewhere(_: str) -> bytes:
    """The locator points into the middle of a record."""
    start, length = _lengths()
    wide = _wide(count=4, directory_bytes=length, directory_start=start, place=40)
    return archive(_records(), between=wide)


@enter(Form.TORCH)
def wide_end_missing(_: str) -> bytes:
    """The 32-bit end record refers to a 64-bit one that is not there."""
    return archive(_records(), count=0xFFFF)


@enter(Form.TORCH)
def more_records_than_counted(_: str) -> bytes:
    """The end record counts one record less than the directory has."""
    return archive(_records(), count=3)


@enter(Form.TORCH)
def fewer_records_than_counted(_: str) -> bytes:
    """The end record counts one record more than the directory has."""
    return archive(_records(), count=5)


@enter(Form.TORCH)
def of_several_parts(_: str) -> bytes:
    """An archive whose directory lies on another disk."""
    return archive(_records(), disk=1)


@enter(Form.TORCH)
def shifted(_: str) -> bytes:
    """A second archive in front: one reader corrects every offset by its length, another does not."""
    return archive(_records(), before=archive(_records()))


@enter(Form.TORCH)
def end_record_in_comment(_: str) -> bytes:
    """A comment that holds another end record: one reader takes the first, another the last."""
    inner = archive(_records())
    return archive(_records(), comment=inner[-22:])


@enter(Form.TORCH)
def no_records(_: str) -> bytes:
    """An archive without a record."""
    return b"PK\x03\x04" + archive([])


@enter(Form.TORCH)
def no_pickle(_: str) -> bytes:
    """An archive without `data.pkl`."""
    return archive(_records()[1:])


@enter(Form.TORCH)
def directory_cut(_: str) -> bytes:
    """The last bytes are missing."""
    return archive(_records())[:-30]


@enter(Form.TORCH)
def two_archives_in_one(_: str) -> bytes:
    """Records below two names: which of them is the archive depends on the reader."""
    return archive([*_records(), Member(name=b"other/data.pkl", data=_HEALTHY)])


@enter(Form.TORCH)
def record_name_escapes(_: str) -> bytes:
    """A record named as a path out of the directory that it would be unpacked to."""
    return archive([*_records(), Member(name=b"archive/../../etc/cron.d/x", data=b"")])


@enter(Form.TORCH)
def record_name_absolute(_: str) -> bytes:
    """A record with an absolute path."""
    return archive([*_records(), Member(name=b"/etc/cron.d/x", data=b"")])


@enter(Form.TORCH)
def record_name_with_nul(_: str) -> bytes:
    """A name that ends early for a reader written in C."""
    return archive([*_records(), Member(name=b"archive/data.pkl\x00.txt", data=b"")])


@enter(Form.TORCH)
def record_name_not_unicode(_: str) -> bytes:
    """A name that is no UTF-8."""
    return archive([*_records(), Member(name=b"archive/\xff\xfe", data=b"")])


@enter(Form.TORCH, Answer.PROBLEM_NAMED)
def storage_shorter_than_its_tensor(_: str) -> bytes:
    """A tensor needs 16 bytes, and its record has eight."""
    return archive(members(_HEALTHY, {"0": bytes(8)}))


@enter(Form.TORCH, Answer.PROBLEM_NAMED)
def storage_missing(_: str) -> bytes:
    """A tensor whose record is not there."""
    return archive(members(_HEALTHY))


@enter(Form.TORCH, Answer.PROBLEM_NAMED)
def bytes_behind_the_end(marker: str) -> bytes:
    """Bytes behind the archive, which its own loader passes over."""
    return archive(_records()) + pickled(name_of(marker))


@enter(Form.TORCH)
def tar_of_torch_0_1(_: str) -> bytes:
    """The tar that torch 0.1 wrote, which no restricted loader reads."""
    return b"sys_info".ljust(257, b"\x00") + b"ustar\x0000" + bytes(248)


@enter(Form.TORCH)
def legacy_storage_unknown(_: str) -> bytes:
    """The list of storages of a legacy file names one that no tensor has."""
    magic = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
    return magic + pickled(b"M\xe9\x03") + pickled(b"}") + pickled(b"}") + pickled(b"]" + name_of("7") + b"a")


@enter(Form.TORCH)
def nothing_at_all(_: str) -> bytes:
    """A file of no bytes."""
    return b""
