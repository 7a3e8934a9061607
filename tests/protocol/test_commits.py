"""The marker and its fence: acknowledged, fenced or taken, and what burning protects."""

from __future__ import annotations

import pytest

from lastgood import documents
from lastgood.errors import FormatError
from lastgood.identity import GenerationId
from lastgood.markers import ActivePointer
from lastgood.protocol import CommitOutcome, List, Request, commits
from tests.protocol.family import MemoryFamily, finish, marker, nonce, until

ONE = GenerationId(1, 1)


def running() -> MemoryFamily:
    family = MemoryFamily()
    family.live("a", allow_fresh=True)
    return family


def test_an_acknowledged_commit_is_offered_and_named() -> None:
    """The marker, its digest in the life's own pointer, and `latest` say the same."""
    family = running()
    assert family.commit(1, 1, "a") is CommitOutcome.ACKNOWLEDGED
    assert family.latest == ONE
    pointer = documents.parse(ActivePointer, family.objects[family.keys.active(1)], "active")
    assert pointer.generation == str(ONE)
    assert pointer.commit == commits.commit_digest(family.objects[family.keys.commit(ONE)])


def test_a_newer_claim_before_the_marker_leaves_nothing_behind() -> None:
    """A superseded job writes no COMMIT at all, and is told to stop."""
    family = running()
    family.claim("b")
    before = dict(family.objects)
    assert family.commit(1, 1, "a") is CommitOutcome.FENCED
    assert family.objects == before


def test_a_newer_claim_after_the_marker_is_not_acknowledged() -> None:
    """The takeover may have listed commits before ours landed, so the save may be lost: nobody may rely on it."""
    family = running()
    steps = commits.commit(family.keys, ONE, marker(ONE, nonce("a")))
    request: Request = until(steps, family, List(family.keys.incarnations))
    request = steps.send(family.store.names(family.keys.incarnations).files)
    family.claim("b")
    assert finish(steps, family, request) is CommitOutcome.FENCED
    assert family.keys.active(1) not in family.objects


def test_the_same_bytes_may_be_sent_again() -> None:
    """An unknown outcome is settled by re-sending; the slot is ours whichever send landed."""
    family = running()
    assert family.commit(1, 1, "a") is CommitOutcome.ACKNOWLEDGED
    assert family.commit(1, 1, "a") is CommitOutcome.ACKNOWLEDGED


def test_a_slot_serves_one_commit() -> None:
    """Another life under the same name, or an abandoned slot, is told that it is taken."""
    family = running()
    family.commit(1, 1, "a")
    assert family.commit(1, 1, "b") is CommitOutcome.TAKEN
    family.perform(commits.burn(family.keys, GenerationId(1, 2), nonce("c")))
    assert family.commit(1, 2, "a") is CommitOutcome.TAKEN


def test_burning_tells_whether_the_artifacts_may_go() -> None:
    """True for an unfinished generation, again and from anybody; False for one that was committed meanwhile."""
    family = running()
    assert family.perform(commits.burn(family.keys, ONE, nonce("c")))
    assert family.perform(commits.burn(family.keys, ONE, nonce("d")))
    family.commit(1, 2, "a")
    assert not family.perform(commits.burn(family.keys, GenerationId(1, 2), nonce("c")))
    assert family.latest == GenerationId(1, 2)


def test_a_torn_marker_in_the_slot_is_not_taken_for_a_burned_one() -> None:
    """Deleting artifacts because of a marker that nobody can read would be guessing."""
    family = running()
    family.objects[family.keys.commit(ONE)] = b'{"generation":'
    with pytest.raises(FormatError, match="commits/"):
        family.perform(commits.burn(family.keys, ONE, nonce("c")))
