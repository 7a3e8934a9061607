"""Several ranks, real processes over gloo: sharded, replicated, resharded, refused together."""

from __future__ import annotations

from pathlib import Path

import pytest

from lastgood.errors import RegistrationError
from lastgood.state import RankIdentity
from tests.state.ranks import run


def test_fsdp2_on_two_ranks_resumes_exactly_and_reshards(tmp_path: Path) -> None:
    """Saved on 2: continued bit for bit on 2; on 1 and 4 with equal tensors and the same rest of the epoch."""
    run(
        tmp_path,
        ("save_fsdp2", 2),
        ("resume_fsdp2", 2),
        ("reshard_fsdp2", 1),
        ("reshard_single", 1),
        ("reshard_fsdp2", 4),
        ("refuse_another_topology", 1),
        ("refuse_on_every_rank", 2),
        ("refuse_a_lost_shard", 2),
    )


def test_ddp_on_two_ranks_resumes_exactly(tmp_path: Path) -> None:
    """Replicas share the writing; rank-specific streams go back to their own rank."""
    run(tmp_path, ("save_ddp", 2), ("resume_ddp", 2), ("reshard_single", 1))


def test_ranks_fail_together(tmp_path: Path) -> None:
    """A rank that cannot save must not leave the others waiting in a collective."""
    run(tmp_path, ("disagree", 2), ("fail_together", 2), ("asynchronous", 2))


@pytest.mark.slow
def test_fsdp2_on_four_ranks_resumes_exactly_and_reshards(tmp_path: Path) -> None:
    """Two ranks hide what four show: uneven shards, empty shards, sums in another order."""
    run(tmp_path, ("save_fsdp2", 4), ("resume_fsdp2", 4), ("reshard_fsdp2", 2), ("reshard_single", 1))


def test_a_rank_must_lie_in_its_world() -> None:
    """A wrong rank would write another rank's files."""
    with pytest.raises(RegistrationError, match="rank out of range"):
        RankIdentity(rank=2, world_size=2)
    assert RankIdentity.current() == RankIdentity(rank=0, world_size=1)
