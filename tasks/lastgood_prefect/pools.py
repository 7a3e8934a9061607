"""The work pools that lastgood runs on, and how a job of each is described.

Decides which pools, queues and limits there are; leaves creating them to `deploying` and to `stack`. The job templates
are files of the project (`infra/work-pools/<type>/`), the ones that `prefect work-pool create --base-job-template`
takes. It imports no Prefect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from lastgood.errors import UsageError
from lastgood_prefect.project import project_directory

__all__ = ["HEADROOM", "POOLS", "Pool", "PoolType", "job_template", "pool_of"]

HEADROOM: Final = "gpu-headroom"
"""The global concurrency limit that restores and drills take slots of, strictly."""


class PoolType(StrEnum):
    """What a pool's worker starts for each flow run."""

    PROCESS = "process"
    DOCKER = "docker"
    KUBERNETES = "kubernetes"

    @property
    def needs_image(self) -> bool:
        """Whether a run brings its own file system."""
        return self is not PoolType.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A work pool: one kind of machine.

    Args:
        name: As deployments name it.
        description: For people.
        template: File name, without its ending, of the job template.
        queues: Queue → priority; 1 is served first.
        concurrency_limit: Runs at a time over all workers; None: as many as its workers take.
    """

    name: str
    description: str
    template: str
    queues: Mapping[str, int]
    concurrency_limit: int | None = None


POOLS: Final = (
    Pool(
        name="verify",
        description="lastgood: judges checkpoints (tier 1), sweeps and reports; CPU, and a fast way to storage",
        template="verify",
        queues={"saves": 1, "sweeps": 2, "reports": 3},
    ),
    Pool(
        name="restore-gpu",
        description="lastgood: restores checkpoints in fresh processes (tier 2); devices as training uses them",
        template="gpu",
        queues={"ad-hoc": 1, "scheduled": 2},
    ),
    Pool(
        name="drill-gpu",
        description="lastgood: kills a disposable replica and recovers it (tier 3); devices as training uses them",
        template="gpu",
        queues={"ad-hoc": 1, "scheduled": 2},
        # Two drills at a time would measure each other.
        concurrency_limit=1,
    ),
)


def pool_of(name: str) -> Pool | None:
    """The pool of this name, or None for one of somebody else's."""
    return next((pool for pool in POOLS if pool.name == name), None)


def job_template(pool: Pool, kind: PoolType, image: str | None = None) -> dict[str, Any]:
    """The base job template of a pool.

    Args:
        pool: Which.
        kind: What its worker starts.
        image: What a container or pod runs, where there is one.

    Raises:
        UsageError: An image is missing, or there is nothing that would run it.
    """
    if kind.needs_image and not image:
        raise UsageError(
            f"no image for a pool of type {kind}: {pool.name}", hint="name one that holds lastgood: --image IMAGE"
        )
    if image and not kind.needs_image:
        raise UsageError(f"an image means nothing to a pool of type {kind}: {image}")
    path = project_directory() / "infra" / "work-pools" / kind.value / f"{pool.template}.json"
    template: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if image:
        template["variables"]["properties"]["image"]["default"] = image
    return template
