"""What the ranks of `tests.state.ranks` do. Each function runs on every rank of its phase; `assert` fails the test."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from lastgood.errors import UsageError
from lastgood.state import LoadReport, RankIdentity
from lastgood.verdict import NoteReason, Reason
from tests.state.small import GLOBAL_BATCH, SAMPLES, Small

STEPS = 3


def _fsdp2(model: torch.nn.Module) -> torch.nn.Module:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    fully_shard(model[0], mesh=mesh)  # type: ignore[index]
    return fully_shard(model, mesh=mesh)


def _ddp(model: torch.nn.Module) -> torch.nn.Module:
    return DistributedDataParallel(model)


def _single(model: torch.nn.Module) -> torch.nn.Module:
    return model


WRAPS = {"fsdp2": _fsdp2, "ddp": _ddp, "single": _single}


def _build(seed: int, identity: RankIdentity, strategy: str, **settings: Any) -> Small:
    # 13 rows cannot be shared evenly by 2 or 4 ranks.
    return Small.build(seed, identity=identity, wrap=WRAPS[strategy], strategy=strategy, width=13, **settings)


def _whole(small: Small) -> dict[str, torch.Tensor]:
    """Every tensor of model and optimizer, gathered from all ranks."""
    parts = {"model": dict(small.model.state_dict())}
    names = {parameter: name for name, parameter in small.model.named_parameters()}
    for parameter, state in small.optimizer.state.items():
        parts[f"optimizer.{names[parameter]}"] = state
    whole = {}
    for part, tensors in parts.items():
        for key, tensor in tensors.items():
            full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
            if torch.distributed.get_rank() and ("running" in key or "num_batches" in key):
                continue  # every rank has statistics of its own, and rank 0's are saved
            whole[f"{part}.{key}".replace("module.", "")] = full.detach().clone()
    return whole


def _save(identity: RankIdentity, directory: Path, strategy: str) -> None:
    small = _build(1, identity, strategy)
    small.train(STEPS)
    snapshot = small.registry.capture(STEPS)
    written = snapshot.write(directory / "saved")
    ranked = {artifact.path for artifact in written if artifact.rank is not None}
    name = f"rank-{identity.rank:05d}"
    assert ranked == {f"model/{name}.safetensors", f"optimizer/{name}.safetensors", f"rng/{name}.json"}
    assert (len(written) > 3) == (identity.rank == 0), "what is equal on all ranks is written by rank 0 alone"
    whole = _whole(small)
    continued = small.train(4)
    if identity.rank == 0:
        torch.save(whole, directory / "whole.pt")
        (directory / "rest.json").write_text(json.dumps(small.cursor.order(0)[STEPS * GLOBAL_BATCH :]))
    torch.save((continued, snapshot.observation), directory / f"continued-{identity.rank}.pt")
    torch.save(_whole(small), directory / f"end-{identity.rank}.pt")


def _load(identity: RankIdentity, directory: Path, strategy: str, **settings: Any) -> tuple[Small, LoadReport]:
    small = _build(2, identity, strategy, **settings)
    return small, small.registry.load(directory / "saved", allow_topology_change=True)


def _same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def _resume_exactly(identity: RankIdentity, directory: Path, strategy: str) -> None:
    small, report = _load(identity, directory, strategy)
    assert report.loaded, report.findings
    assert not report.notes, report.notes
    continued, observed = torch.load(directory / f"continued-{identity.rank}.pt", weights_only=False)
    assert small.registry.observe(STEPS) == observed
    assert small.train(4) == continued
    assert _same(_whole(small), torch.load(directory / f"end-{identity.rank}.pt"))


def _reshard(identity: RankIdentity, directory: Path, strategy: str) -> None:
    small, report = _load(identity, directory, strategy)
    assert report.loaded, report.findings
    assert report.world_size != identity.world_size
    assert {note.reason for note in report.notes} == {NoteReason.TOPOLOGY_CHANGED}
    whole, expected = _whole(small), torch.load(directory / "whole.pt")
    assert _same(whole, {key: expected[key] for key in whole})
    rest: list[Any] = [None] * identity.world_size
    torch.distributed.all_gather_object(rest, small.cursor.rest())
    remaining = json.loads((directory / "rest.json").read_text())
    assert sorted(one for part in rest for one in part) == sorted(remaining[: len(remaining) - SAMPLES % GLOBAL_BATCH])
    draws: list[Any] = [None] * identity.world_size
    torch.distributed.all_gather_object(draws, small.registry.observe(STEPS).rank.rng_draws)
    assert len({repr(one) for one in draws}) == identity.world_size, "every rank draws from streams of its own"
    small.train(2)


def save_fsdp2(identity: RankIdentity, directory: Path) -> None:
    _save(identity, directory, "fsdp2")


def resume_fsdp2(identity: RankIdentity, directory: Path) -> None:
    _resume_exactly(identity, directory, "fsdp2")


def reshard_fsdp2(identity: RankIdentity, directory: Path) -> None:
    _reshard(identity, directory, "fsdp2")


def reshard_single(identity: RankIdentity, directory: Path) -> None:
    _reshard(identity, directory, "single")


def save_ddp(identity: RankIdentity, directory: Path) -> None:
    _save(identity, directory, "ddp")
    both = [directory / f"saved/model/rank-{rank:05d}.safetensors" for rank in range(identity.world_size)]
    torch.distributed.barrier()
    assert all(path.stat().st_size > 600 for path in both), "replicas share the writing"


def resume_ddp(identity: RankIdentity, directory: Path) -> None:
    _resume_exactly(identity, directory, "ddp")


def refuse_another_topology(identity: RankIdentity, directory: Path) -> None:
    """Not asked for, a change of ranks is refused, and by every rank alike."""
    small = _build(2, identity, "fsdp2")
    report = small.registry.load(directory / "saved")
    assert {finding.reason for finding in report.findings} == {Reason.TOPOLOGY_UNSUPPORTED}
    assert not report.changed


def refuse_on_every_rank(identity: RankIdentity, directory: Path) -> None:
    """Only rank 1's own streams are damaged: no rank may load, and all must say the same."""
    small = _build(2, identity, "fsdp2")
    path = directory / "damaged/rng/rank-00001.json"
    if identity.rank == 0:
        shutil.copytree(directory / "saved", directory / "damaged")
        path.write_text(path.read_text().replace('"rank":1', '"rank":0'))
    torch.distributed.barrier()
    before = _whole(small)
    report = small.registry.load(directory / "damaged")
    assert [(one.reason, one.offender) for one in report.findings] == [(Reason.RANK_DUPLICATED, "rng/rank-00001.json")]
    assert not report.changed
    assert _same(before, _whole(small))


def refuse_a_lost_shard(identity: RankIdentity, directory: Path) -> None:
    """The rank is named once, on every rank."""
    small = _build(2, identity, "fsdp2")
    if identity.rank == 0:
        (directory / "saved/optimizer/rank-00001.safetensors").unlink()
    torch.distributed.barrier()
    report = small.registry.load(directory / "saved")
    assert [(one.reason, one.offender) for one in report.findings] == [
        (Reason.SHARD_MISSING, "optimizer/rank-00001.safetensors")
    ]


def disagree(identity: RankIdentity, directory: Path) -> None:
    """A scheduler that only rank 1 stepped cannot be saved from rank 0 alone."""
    small = _build(1, identity, "ddp")
    small.train(1)
    if identity.rank == 1:
        small.scheduler.step()
    with pytest.raises(UsageError, match="ranks disagree: scheduler: rank 1"):
        small.registry.capture(1)


def fail_together(identity: RankIdentity, directory: Path) -> None:
    """One rank inside an accumulation window: the others are told instead of waiting for ever."""
    small = _build(1, identity, "ddp")
    if identity.rank == 1:
        small.accumulation.advance()
    with pytest.raises(UsageError, match=r"rank 1 failed .* accumulation window"):
        small.registry.capture(0)


def asynchronous(identity: RankIdentity, directory: Path) -> None:
    """Sharded tensors are private copies too, and the write needs no other rank."""
    small = _build(1, identity, "fsdp2")
    small.train(STEPS)
    small.registry.capture(STEPS).write(directory / "at once")
    snapshot = small.registry.capture(STEPS, asynchronous=True)
    small.train(2)
    if identity.rank == 1:
        torch.distributed.barrier()
    snapshot.write(directory / "later")
    if identity.rank == 0:
        torch.distributed.barrier()
    for artifact in snapshot.artifacts:
        assert (directory / "at once" / artifact.path).read_bytes() == (
            directory / "later" / artifact.path
        ).read_bytes()
