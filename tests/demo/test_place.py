"""Where the demo saves to: a directory or a bucket of its own, and damaged copies beside either."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lastgood.errors import LastgoodError
from lastgood.identity import FamilyKeys
from lastgood.location import locate
from lastgood.stores import LocalStore
from lastgood.testing.build import build_family
from lastgood.testing.damage import CATALOGUE, Scene
from lastgood.verdict import Outcome, Reason
from lastgood.verify import verify_generation
from lastgood_prefect.demo.place import StoreKind, bring, open_place

KEYS = FamilyKeys("demo")


@pytest.mark.parametrize("kind", StoreKind)
def test_a_damaged_copy_is_refused_where_the_family_lies_and_is_gone_afterwards(
    tmp_path: Path, kind: StoreKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bucket's damage that were judged in a directory would say nothing of buckets; the family itself stays whole."""
    monkeypatch.setenv("AWS_PROFILE", "of-the-user")
    before = dict(os.environ)
    built = build_family(make(tmp_path / "built"), "demo")
    with open_place(kind, make(tmp_path / "place")) as place:
        location = locate(f"{place.root}/demo")
        bring(built.store, location.store, "demo")
        scene = make(tmp_path / "place" / "byte_flipped")
        bring(location.store, LocalStore(scene), "demo")
        CATALOGUE["byte_flipped"].apply(Scene(root=scene, family="demo", generation=built.newest, stranger="demo"))
        with place.holding(scene, "demo") as store:
            assert store.uri.startswith("s3://") is (kind is StoreKind.S3)
            verdict = verify_generation(store, KEYS, built.newest)
            assert {finding.reason for finding in verdict.findings} == {Reason.DIGEST_MISMATCH}
        assert kind is StoreKind.FILE or not list(store.walk("demo"))
        assert verify_generation(location.store, KEYS, built.newest).outcome is Outcome.PASS
        with pytest.raises(LastgoodError, match="not copied: "):
            bring(built.store, location.store, "demo")
    assert dict(os.environ) == before, "nobody's own account is left pointing at a server that is gone"


def test_a_shell_reaches_the_bucket_by_a_file_that_nobody_else_reads(tmp_path: Path) -> None:
    """`lastgood demo --keep` is there to look around in, and the file holds the keys of the server."""
    with open_place(StoreKind.S3, tmp_path) as place:
        assert place.outside is not None
        assert place.outside.stat().st_mode & 0o777 == 0o600
        shown = subprocess.run(
            ["sh", "-c", '. "$1" && env', "sh", str(place.outside)],
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert {f"{name}={value}" for name, value in place.environ.items()} <= set(shown.splitlines())
    assert place.announced() == 0, "nobody announced anything"


def make(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
