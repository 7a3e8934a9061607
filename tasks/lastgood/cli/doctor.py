"""`lastgood doctor`: probe a root and this machine before they are trusted.

Decides a grade from what the file system really does, not from its name: `full`, `reading only` or `refused`. Each
probe makes files of its own in a temporary directory under the root and removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

import click

from lastgood.cli.output import emit_json, json_option, say, table
from lastgood.errors import StorePermanentError
from lastgood.stores import local_path

__all__ = ["Probe", "doctor_command", "probe_root"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question to a file system or a machine.

    Args:
        name: What was asked.
        held: Whether it does what we need.
        needed: Whether publishing depends on it.
        detail: What was seen, and what follows.
    """

    name: str
    held: bool
    needed: bool
    detail: str


@click.command("doctor")
@click.argument("root", required=False)
@json_option
def doctor_command(root: str | None, as_json: bool) -> int:
    """Probe the file system of ROOT (a path or file:///...), and this machine.

    Exit 0 when the root can be published to, 2 when it can only be read, 1 when it must not be used.
    """
    probes = list(probe_machine())
    grade, code = "not asked", 0
    if root is not None:
        found = tuple(probe_root(local_path(root)))
        probes = [*found, *probes]
        grade, code = _grade(found)
    if as_json:
        emit_json({"root": root, "grade": grade, "probes": [asdict(probe) for probe in probes]})
        return code
    rows = [(_mark(probe), probe.name, probe.detail) for probe in probes]
    say((f"{root}: {grade}\n" if root else "") + table(rows, ("", "probe", "seen")))
    return code


def _mark(probe: Probe) -> str:
    return "ok" if probe.held else "FAIL" if probe.needed else "note"


def _grade(probes: tuple[Probe, ...]) -> tuple[str, int]:
    needed = [probe for probe in probes if probe.needed]
    if all(probe.held for probe in needed):
        return "full", 0
    if probes[0].name == "readable" and not probes[0].held:
        return "refused", 1
    return "reading only: do not publish here", 2


def probe_root(root: Path) -> Iterator[Probe]:
    """Ask a file system for everything that publishing relies on.

    Raises:
        StorePermanentError: The root is not a directory.
    """
    if not root.is_dir():
        raise StorePermanentError(f"root is not a directory: {root}", hint="is the file system mounted?")
    readable = os.access(root, os.R_OK | os.X_OK)
    yield Probe(name="readable", held=readable, needed=True, detail=str(root))
    try:
        scratch = Path(tempfile.mkdtemp(prefix=".lastgood-doctor-", dir=root))
    except OSError as error:
        yield Probe(name="writable", held=False, needed=True, detail=os.strerror(error.errno or 0).lower())
        return
    try:
        yield Probe(name="writable", held=True, needed=True, detail="a directory can be made")
        for name, needed, probe in _PROBES:
            held, detail = _ask(probe, scratch / name.replace(" ", "-"))
            yield Probe(name=name, held=held, needed=needed, detail=detail)
        free = shutil.disk_usage(root).free
        yield Probe(name="free space", held=free > 2**30, needed=False, detail=f"{free / 2**30:.1f} GiB free")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def probe_machine() -> Iterator[Probe]:
    """What this machine has for tiers 2 and 3."""
    yield Probe(name="python", held=sys.version_info >= (3, 11), needed=False, detail=sys.version.split()[0])
    for module, why in (("torch", "registered state, the reference trainer"), ("torchdata", "stateful loaders")):
        found = find_spec(module) is not None
        yield Probe(name=module, held=found, needed=False, detail="installed" if found else f"not installed: {why}")
    launcher = shutil.which("torchrun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    yield Probe(
        name="torchrun", held=launcher is not None, needed=False, detail=launcher or "not on PATH: drills need it"
    )
    pidfd = hasattr(os, "pidfd_open")
    yield Probe(name="pidfd", held=pidfd, needed=False, detail="drills kill by it" if pidfd else "kernel without pidfd")


def _ask(probe: Callable[[Path], tuple[bool, str]], directory: Path) -> tuple[bool, str]:
    try:
        directory.mkdir()
        return probe(directory)
    except OSError as error:
        return False, os.strerror(error.errno or 0).lower()


def _link(directory: Path) -> tuple[bool, str]:
    (directory / "a").write_bytes(b"a")
    (directory / "b").write_bytes(b"b")
    os.link(directory / "a", directory / "name")
    try:
        os.link(directory / "b", directory / "name")
    except FileExistsError:
        counted = os.stat(directory / "a").st_nlink == 2
        return counted, "a second name is refused" if counted else "link count is not kept"
    return False, "link replaced an existing name: racing claims could both win"


def _exclusive(directory: Path) -> tuple[bool, str]:
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.close(os.open(directory / "file", flags))
    try:
        os.close(os.open(directory / "file", flags))
    except FileExistsError:
        return True, "O_EXCL refuses an existing file"
    return False, "O_EXCL opened an existing file"


def _rename_directory(directory: Path) -> tuple[bool, str]:
    for name in ("from", "to"):
        (directory / name).mkdir()
        (directory / name / "file").write_bytes(name.encode())
    try:
        os.rename(directory / "from", directory / "to")
    except OSError:
        return True, "a directory with content is not replaced"
    return False, "rename replaced a directory with content"


def _lock(directory: Path) -> tuple[bool, str]:
    with open(directory / "lock", "wb") as first, open(directory / "lock", "wb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True, "flock excludes"
    return False, "flock does not exclude: racing gates could let LAST_GOOD go back"


def _sync(directory: Path) -> tuple[bool, str]:
    begin = time.monotonic()
    with open(directory / "file", "wb") as file:
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True, f"file and directory flushed in {1000 * (time.monotonic() - begin):.1f} ms"


def _case(directory: Path) -> tuple[bool, str]:
    return _keeps_apart(directory, ("Name", "name"), "upper and lower case")


def _unicode(directory: Path) -> tuple[bool, str]:
    return _keeps_apart(directory, ("caf\u00e9", "cafe\u0301"), "Unicode spellings")


def _keeps_apart(directory: Path, names: tuple[str, str], what: str) -> tuple[bool, str]:
    for name in names:
        with contextlib.suppress(FileExistsError):
            (directory / name).touch(exist_ok=False)
    apart = len(list(directory.iterdir())) == 2
    return apart, f"{what} kept apart" if apart else f"{what} folded: manifests refuse such twins"


_PROBES: tuple[tuple[str, bool, Callable[[Path], tuple[bool, str]]], ...] = (
    ("hard link", True, _link),
    ("exclusive create", True, _exclusive),
    ("directory rename", True, _rename_directory),
    ("flush", True, _sync),
    ("lock", True, _lock),
    ("case", False, _case),
    ("unicode", False, _unicode),
)
