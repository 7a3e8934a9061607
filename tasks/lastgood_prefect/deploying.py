"""`lastgood deploy`: pools, queues, limits, deployments and automations on any Prefect server, as often as one likes.

Decides what is created, what is brought up to date and what is left as people made it; leaves what is deployed to the
files of the project. Rules:

- Everything has a name that stays, so a second run finds what the first one made and changes nothing.
- What people tune on the server is theirs: an existing pool keeps its job template and its limit, a queue its priority,
  a limit its slots, unless they are named on purpose.
- Deployments are made by Prefect's own command from `deployments/prefect.yaml`: one file, one way to read it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import (
    GlobalConcurrencyLimitCreate,
    GlobalConcurrencyLimitUpdate,
    WorkPoolCreate,
    WorkPoolUpdate,
)
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL

from lastgood.errors import LastgoodError, UsageError
from lastgood_prefect.automations import ensure_automation, find_block, shipped_automations
from lastgood_prefect.pools import HEADROOM, POOLS, Pool, PoolType, job_template
from lastgood_prefect.project import DEPLOYMENTS, project_directory
from lastgood_prefect.server import connected

__all__ = ["Change", "Deployed", "Wish", "deploy", "ensure_infrastructure", "read_deployments"]

DEPLOY_SECONDS: Final = 300
DEFAULT_HEADROOM: Final = 1
FORGETFUL: Final = (
    "this server keeps leases in memory, so slots that are taken when it restarts are never free again; give it "
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE (….lease_storage.filesystem, or prefect_redis.lease_storage)"
)
MAXIMUM_DEPLOYMENTS: Final = 200

# What a server says of a deployment that is not what somebody asked for: ids of parts, times, health.
_VOLATILE: Final = frozenset(
    {"created", "updated", "status", "last_polled", "created_by", "updated_by", "version_id", "version_info", "branch"}
)


class Change(StrEnum):
    """What became of one thing on the server."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    KEPT = "kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """One thing on the server.

    Args:
        kind: `pool`, `queue`, `limit`, `deployment` or `automation`.
        name: Its name.
        change: What was done to it.
        note: Why it was kept, or what to know about it.
    """

    kind: str
    name: str
    change: Change
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is asked for.

    Args:
        type: Of the pools that are created.
        image: For pools whose runs are containers or pods.
        replace_pools: Give existing pools the shipped job template and limit.
        headroom: Slots of `gpu-headroom`; None: as it is, or one.
        notify: Name of a notification block, `<type>/<name>`; None: no notification beyond the server's own pages.
        pools_only: Leave deployments and automations alone.
    """

    type: PoolType = PoolType.PROCESS
    image: str | None = None
    replace_pools: bool = False
    headroom: int | None = None
    notify: str | None = None
    pools_only: bool = False


def deploy(wish: Wish, *, environment: Mapping[str, str] | None = None) -> tuple[Deployed, ...]:
    """Set up everything on the configured server; may be repeated.

    Args:
        wish: What is asked for.
        environment: For Prefect's own command; None: ours.

    Raises:
        UsageError: No usable server, a pool of another type, a block that is not there; nothing half-done matters,
            since a repeated run continues.
        Unanswered: The server cannot be reached.
        LastgoodError: Prefect refused the deployments; its words are in the message.
    """
    with connected() as client:
        block = None if wish.notify is None else find_block(client, wish.notify)
        done = [*_ensure_pools(client, wish), *_ensure_queues(client), _ensure_headroom(client, wish.headroom)]
        if not wish.pools_only:
            before = read_deployments(client)
            _run_prefect_deploy(os.environ if environment is None else environment)
            done += _compared("deployment", before, read_deployments(client))
            for shipped in shipped_automations():
                change = Change(ensure_automation(client, shipped, block))
                done.append(Deployed(kind="automation", name=shipped.name, change=change))
    return tuple(done)


def ensure_infrastructure() -> dict[str, str]:
    """The build step of every deployment: create what is missing of pools, queues and limits; change nothing."""
    with connected() as client:
        for pool in POOLS:
            if _read_pool(client, pool) is None:
                _create_pool(client, pool, Wish())
        _ensure_queues(client)
        _ensure_headroom(client, None)
    return {}


def read_deployments(client: SyncPrefectClient) -> dict[str, Any]:
    """`<flow>/<deployment>` → what the server holds of each deployment of ours, without what changes by itself."""
    body = {"deployments": {"tags": {"all_": ["lastgood"]}}, "limit": MAXIMUM_DEPLOYMENTS}
    found = client.request("POST", "/deployments/filter", json=body).json()
    flows = {one["flow_id"] for one in found}
    names = {
        one["id"]: one["name"]
        for one in client.request("POST", "/flows/filter", json={"flows": {"id": {"any_": sorted(flows)}}}).json()
    }
    return {f"{names[one['flow_id']]}/{one['name']}": _steady(one) for one in found}


def _steady(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _steady(one) for key, one in value.items() if key not in _VOLATILE}
    if isinstance(value, list):
        return [_steady(one) for one in value]
    return value


def _compared(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Deployed]:
    def change(name: str) -> Change:
        if name not in before:
            return Change.CREATED
        return Change.UNCHANGED if before[name] == after[name] else Change.UPDATED

    return [Deployed(kind=kind, name=name, change=change(name)) for name in sorted(after)]


def _ensure_pools(client: SyncPrefectClient, wish: Wish) -> list[Deployed]:
    existing = {pool.name: _read_pool(client, pool) for pool in POOLS}
    # All of them are looked at before the first is touched: a refusal leaves the server as it was.
    for name, found in existing.items():
        if found is not None and found.type != wish.type:
            raise UsageError(
                f"pool of another type: {name}: expected {wish.type}, found {found.type}",
                hint=f"`lastgood deploy --type {found.type}` uses it as it is"
                if found.type in tuple(PoolType)
                else "delete it, or rename it, for deployments find their pool by its name",
            )
    return [_ensure_pool(client, pool, existing[pool.name], wish) for pool in POOLS]


def _ensure_pool(client: SyncPrefectClient, pool: Pool, found: Any, wish: Wish) -> Deployed:
    if found is None:
        _create_pool(client, pool, wish)
        return Deployed(kind="pool", name=pool.name, change=Change.CREATED)
    if wish.type.needs_image and wish.image is None:
        # Without an image there is nothing to compare with; the pool has one, or its deployments would be refused.
        return Deployed(kind="pool", name=pool.name, change=Change.UNCHANGED)
    template = job_template(pool, wish.type, wish.image)
    if found.base_job_template == template and found.concurrency_limit == pool.concurrency_limit:
        return Deployed(kind="pool", name=pool.name, change=Change.UNCHANGED)
    if not wish.replace_pools:
        note = "differs from what is shipped; --replace-pools makes it the same"
        return Deployed(kind="pool", name=pool.name, change=Change.KEPT, note=note)
    update = WorkPoolUpdate(
        description=pool.description, base_job_template=template, concurrency_limit=pool.concurrency_limit
    )
    client.update_work_pool(pool.name, update)
    return Deployed(kind="pool", name=pool.name, change=Change.UPDATED)


def _read_pool(client: SyncPrefectClient, pool: Pool) -> Any:
    try:
        return client.read_work_pool(pool.name)
    except ObjectNotFound:
        return None


def _create_pool(client: SyncPrefectClient, pool: Pool, wish: Wish) -> None:
    client.create_work_pool(
        WorkPoolCreate(
            name=pool.name,
            description=pool.description,
            type=wish.type.value,
            base_job_template=job_template(pool, wish.type, wish.image),
            concurrency_limit=pool.concurrency_limit,
        )
    )


def _ensure_queues(client: SyncPrefectClient) -> list[Deployed]:
    done = []
    for pool in POOLS:
        known = {queue.name for queue in client.read_work_queues(work_pool_name=pool.name)}
        for name, priority in pool.queues.items():
            if name not in known:
                client.create_work_queue(name=name, priority=priority, work_pool_name=pool.name)
            change = Change.UNCHANGED if name in known else Change.CREATED
            done.append(Deployed(kind="queue", name=f"{pool.name}/{name}", change=change))
    return done


def _ensure_headroom(client: SyncPrefectClient, slots: int | None) -> Deployed:
    note = FORGETFUL if _forgets_leases(client) else ""
    try:
        found = client.read_global_concurrency_limit_by_name(HEADROOM)
    except ObjectNotFound:
        client.create_global_concurrency_limit(
            GlobalConcurrencyLimitCreate(name=HEADROOM, limit=slots or DEFAULT_HEADROOM)
        )
        return Deployed(kind="limit", name=HEADROOM, change=Change.CREATED, note=note)
    if slots is None or found.limit == slots:
        return Deployed(kind="limit", name=HEADROOM, change=Change.UNCHANGED, note=note)
    client.update_global_concurrency_limit(HEADROOM, GlobalConcurrencyLimitUpdate(limit=slots))
    return Deployed(kind="limit", name=HEADROOM, change=Change.UPDATED, note=note)


def _forgets_leases(client: SyncPrefectClient) -> bool:
    settings = client.request("GET", "/admin/settings").json()
    storage = settings.get("server", {}).get("concurrency", {}).get("lease_storage", "")
    return str(storage).endswith(".lease_storage.memory")


def _run_prefect_deploy(environment: Mapping[str, str]) -> None:
    command = (sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", DEPLOYMENTS)
    told = {**environment, "PREFECT_API_URL": str(PREFECT_API_URL.value()), "NO_COLOR": "1", "COLUMNS": "200"}
    try:
        done = _run(command, told)
    except subprocess.TimeoutExpired:
        raise LastgoodError(f"deployments not made within {DEPLOY_SECONDS} s") from None
    if done.returncode != 0:
        raise LastgoodError(f"deployments not made: {_last_words(done.stdout + done.stderr)}")


def _last_words(output: str) -> str:
    """What a program said last, without the marks of a traceback."""
    lines = [line.strip() for line in output.splitlines()]
    return " / ".join([line for line in lines if line.strip("^~ ") and line != "An exception occurred."][-2:])


def _run(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=project_directory(),
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEPLOY_SECONDS,
    )
