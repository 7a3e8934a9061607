"""What the reference trainer writes into its manifests: identities, counters, and what it promises of a resume.

Decides the job description and the promises: exact where a resumed run was measured to equal an uninterrupted one bit
for bit (tests/replica/test_resume.py), a tolerance with its reason elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from functools import cache
from pathlib import Path

import torch

from lastgood.job import component_promises, content_id, current_environment
from lastgood.manifest import (
    AbsentComponent,
    Component,
    Counter,
    CounterMeaning,
    ExplainedKey,
    Identity,
    JobDescription,
    Purpose,
    Topology,
)
from lastgood.replica.trainer.build import Training
from lastgood.replica.trainer.parallel import World
from lastgood.replica.trainer.settings import Settings, Strategy

__all__ = ["describe"]

TOLERANCE = 0.01
"""Largest relative difference of a loss or norm after a resume whose sums may be ordered otherwise; fixed in advance.
Rounding differs by 1e-7 at the first such step and grows; over the few steps of a smoke run it stays far below this."""


def describe(
    training: Training,
    settings: Settings,
    world: World,
    *,
    run: str,
    components: Collection[Component],
    absent: tuple[AbsentComponent, ...],
    explained: tuple[ExplainedKey, ...],
) -> JobDescription:
    """The running job, as of now.

    Args:
        training: For its identities and counters.
        settings: For its configuration.
        world: For its topology.
        run: The lineage, from the checkpoint that was resumed or new.
        components: What the snapshot holds.
        absent: What it leaves out on purpose.
        explained: Keys that a strict load accepts.
    """
    configuration = json.dumps(settings.configuration(), sort_keys=True)
    cuda = world.device.type == "cuda"
    return JobDescription(
        run=run,
        counters=_counters(training),
        code=_code_id(),
        configuration=content_id(configuration.encode()),
        environment=current_environment(
            torch=str(torch.__version__),
            cuda=torch.version.cuda if cuda else None,
            device=torch.cuda.get_device_name(world.device) if cuda else "cpu",
            image_digest=os.environ.get("LASTGOOD_IMAGE_DIGEST") or None,
        ),
        topology=Topology(
            world_size=world.world_size,
            strategy=settings.strategy.value,
            layout={"data_parallel": world.world_size},
        ),
        model=Identity(name="byte-transformer", revision=content_id(repr(settings.shape).encode())),
        tokenizer=Identity(name="utf-8-bytes", revision="1"),
        dataset=training.corpus.identity,
        purpose=Purpose.RESUMABLE,
        promises=component_promises(components, inexact=_inexact(settings, world), tolerance=TOLERANCE),
        absent=absent,
        explained=explained,
    )


def _inexact(settings: Settings, world: World) -> str | None:
    """Why sums may be ordered otherwise after a resume, or None."""
    if settings.threads == 0:
        return "the number of threads is not pinned, and another number orders sums otherwise"
    if settings.strategy is Strategy.DDP and settings.stock_ddp and world.world_size > 2:
        return "stock DDP rebuilds its buckets after the first backward, which reorders sums over more than two ranks"
    if world.device.type == "cuda" and world.world_size > 1:
        return "NCCL chooses its algorithms at every start; that it chooses alike is not established"
    return None


def _counters(training: Training) -> tuple[Counter, ...]:
    cursor = training.cursor
    return (
        Counter(name="optimizer_step", value=training.step, names=CounterMeaning.COMPLETED),
        Counter(name="scheduler_step", value=training.scheduler.last_epoch, names=CounterMeaning.COMPLETED),
        Counter(name="epoch", value=cursor.epoch, names=CounterMeaning.NEXT),
        Counter(name="epoch_samples", value=cursor.consumed, names=CounterMeaning.COMPLETED),
    )


@cache
def _code_id() -> str:
    """A digest of this package's sources: what trains, rather than what a version claims."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(f"{path.name}\0".encode() + path.read_bytes())
    return f"lastgood.replica.trainer@sha256:{digest.hexdigest()}"
