"""A family that lost its claims: what they decided is unknown, and guessing would resume what was cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.errors import FormatError
from lastgood.family import Family
from lastgood.location import locate
from lastgood.protocol import choose, claim, decide, perform
from lastgood.run import Run, SoloGroup
from lastgood.testing.build import BuiltFamily, build_family, build_life


@pytest.fixture
def family(tmp_path: Path) -> BuiltFamily:
    return build_life(build_family(tmp_path, "llm"), steps=(48, 60))


@pytest.mark.parametrize("lost", [(1, 2), (2,)], ids=["all", "the newest"])
def test_commits_above_every_claim_stop_readers_and_starts(family: BuiltFamily, lost: tuple[int, ...]) -> None:
    """A restored backup without its newest claims was offered as a fresh family: the next life took the number of the
    lost one, and its commits for its own.
    """
    for number in lost:
        for key in (family.keys.claim(number), family.keys.resume(number), family.keys.active(number)):
            family.store.delete(key)
    uri = f"{family.root}/{family.family}"
    with pytest.raises(FormatError, match="document vanished"):
        Family(locate(uri)).latest()
    claims = sorted(family.store.names(family.keys.incarnations).files)
    with pytest.raises(FormatError, match="document vanished"):
        Run.start(uri, SoloGroup(), allow_fresh=True)
    assert sorted(family.store.names(family.keys.incarnations).files) == claims


def test_a_life_that_took_a_lost_number_does_not_decide(family: BuiltFamily) -> None:
    """Whoever claims without looking first would otherwise own the commits of the life that lost its claim."""
    for key in (family.keys.claim(2), family.keys.resume(2), family.keys.active(2)):
        family.store.delete(key)
    number = perform(family.store, claim(family.keys, nonce="0" * 32, host="test"))
    with pytest.raises(FormatError, match="document vanished"):
        perform(family.store, decide(family.keys, number, nonce="0" * 32))


def test_a_start_on_a_family_that_cannot_be_read_claims_nothing(family: BuiltFamily) -> None:
    """It claimed first and failed then, and the claim alone fenced the job that was still saving."""
    family.store.replace(family.keys.resume(2), b"{}")
    claims = family.store.names(family.keys.incarnations).files
    with pytest.raises(FormatError):
        Run.start(f"{family.root}/{family.family}", SoloGroup())
    assert family.store.names(family.keys.incarnations).files == claims


def test_what_a_life_was_offered_can_be_asked_after_it_has_saved(family: BuiltFamily) -> None:
    """A drill asks what the recovered life had to choose from; that life's own saves are not those of a lost one."""
    lived = build_life(family, steps=(70, 80))
    offered = perform(family.store, choose(family.keys, below=lived.newest.incarnation))
    assert offered.generation == family.newest
