"""`lastgood doctor`: probe a store and this machine before they are trusted.

Decides how the answers are shown. Asking is the store's, which makes objects of its own under the root and removes
them; what follows from the answers is `stores.grading`'s, by what the store really did and not by its name.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import click

from lastgood.cli.output import complain, emit_json, json_option, say, table
from lastgood.cli.settings import config_option, configured, stores_of_path
from lastgood.errors import StoreError
from lastgood.stores import Access, Store, access_to, local_path
from lastgood.stores.grading import Grade, KeptGrade, Needed, Probe, graded

__all__ = ["doctor_command"]

_EXIT_CODES = {Grade.FULL: 0, Grade.PUBLISH_WITH_LIMITS: 0, Grade.READING_ONLY: 2, Grade.REFUSED: 1}
_MARKS = {Needed.READING: "FAIL", Needed.PUBLISHING: "FAIL", Needed.FULL: "limit", Needed.NOTHING: "note"}


@click.command("doctor")
@click.argument("root", required=False)
@click.option("--no-keep", is_flag=True, help="Do not keep the grade of a bucket in it.")
@config_option
@json_option
def doctor_command(root: str | None, no_keep: bool, config: Path | None, as_json: bool) -> int:
    """Probe ROOT (a path, file:///... or s3://bucket/prefix), and this machine.

    The grade of a bucket is kept in it, at .lastgood/grade.json under the root: publishing obeys it, and records name
    it.

    Exit 0 when the root can be published to, 2 when it can only be read, 1 when it must not be used.
    """
    machine = tuple(probe_machine())
    if root is None:
        if as_json:
            emit_json({"root": None, "grade": "not asked", "limits": (), "kept": None, "probes": machine})
        else:
            say(_shown(machine))
        return 0
    access = _access(root, config)
    store = access.open(root)
    found = graded(store.probe(), now=datetime.now(UTC))
    kept = None if no_keep else _keep(store, found)
    if as_json:
        probes = (*found.probes, *machine)
        emit_json({"root": root, "grade": found.grade, "limits": found.limits, "kept": kept, "probes": probes})
    else:
        evidence = access.evidence.root if access.evidence is not None else None
        say("\n".join([*_summary(root, evidence, found, kept), "", _shown((*found.probes, *machine))]))
    return _EXIT_CODES[found.grade]


def _access(root: str, config: Path | None) -> Access:
    if root.startswith("s3://"):
        return access_to(root.rstrip("/"), configured(config).stores)
    return access_to(os.path.abspath(local_path(root)), stores_of_path(config))


def _keep(store: Store, found: KeptGrade) -> str | None:
    try:
        return store.keep_grade(found)
    except StoreError as error:
        complain(f"the grade is not kept: {error.message}", error.hint)
        return None


def _summary(root: str, evidence: str | None, found: KeptGrade, kept: str | None) -> Iterator[str]:
    yield f"{root}: {found.summary.words}"
    if evidence is None or found.grade is Grade.REFUSED:
        yield found.grade.follows
    elif found.grade.may_publish:
        yield f"seal, verify and restore here; nothing is written here: evidence lies at {evidence}"
    else:
        yield f"no evidence can be written to {evidence}: verify and restore with --no-record"
    if found.grade.may_publish:
        yield from (f"  {limit}: {limit.follows}" for limit in found.limits)
    if kept is not None:
        yield f"kept: {kept}"


def _shown(probes: tuple[Probe, ...]) -> str:
    rows = [("ok" if probe.held else _MARKS[probe.needed], probe.name, probe.detail) for probe in probes]
    return table(rows, ("", "probe", "seen"))


def probe_machine() -> Iterator[Probe]:
    """What this machine has for tiers 2 and 3."""
    yield _note("python", sys.version_info >= (3, 11), sys.version.split()[0])
    for module, why in (("torch", "registered state, the reference trainer"), ("torchdata", "stateful loaders")):
        found = find_spec(module) is not None
        yield _note(module, found, "installed" if found else f"not installed: {why}")
    launcher = shutil.which("torchrun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    yield _note("torchrun", launcher is not None, launcher or "not on PATH: drills need it")
    pidfd = hasattr(os, "pidfd_open")
    yield _note("pidfd", pidfd, "drills kill by it" if pidfd else "kernel without pidfd")


def _note(name: str, held: bool, detail: str) -> Probe:
    return Probe(name=name, held=held, needed=Needed.NOTHING, detail=detail)
