"""One generation read by many workers: the shares of a reading as tasks of a Dask task runner.

Decides when a reading is spread, by `[dask]` in lastgood.toml, and where its shares go. Leaves the cutting and the
putting together to `lastgood.verify.shares`, and everything else of the verification to the run itself, so the record
is the one that a single worker would leave. Rules: a worker opens the family's store by its URI, with its own
credentials, and writes nothing; a worker that is lost, or that sees another tree under that URI, is trouble of the
store and never a finding; nobody is waited for where nobody is left who could answer.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.task_runners import TaskRunner

import lastgood
from lastgood.digest import HashRequest
from lastgood.errors import LastgoodError, StoreError, StorePermanentError, StoreTransientError, UsageError
from lastgood.identity import GenerationId
from lastgood.stores import Store, StoreSettings, open_store
from lastgood.stores.port import Hashed, Progress
from lastgood.verify import Read, Share, cut_shares, merge_shares, read_share
from lastgood_prefect import escape
from lastgood_prefect.settings import ConfiguredFamily, read_settings

__all__ = ["spread_reading", "task_runner"]

HINT = "pip install 'lastgood[dask]' where the flows run"
HOST = "127.0.0.1"
LOOK_SECONDS = 10.0
PATIENCE_SECONDS = 60.0
"""How long nobody may be there to read: whoever starts lost workers again has done it by then."""


def task_runner() -> TaskRunner[Any] | None:
    """The task runner of a flow that verifies, made when its file is loaded; None: Prefect's own.

    A configuration that cannot be read is none here: the run itself says what is wrong with it.
    """
    with contextlib.suppress(LastgoodError):
        settings = read_settings().dask
        if settings is not None:
            # Imported when it is asked for: it takes two seconds, and most gates read alone.
            with contextlib.suppress(ModuleNotFoundError):
                from prefect_dask.task_runners import DaskTaskRunner

                if settings.address is not None:
                    return DaskTaskRunner(address=settings.address)
                processes = {"n_workers": settings.workers, "threads_per_worker": 1, "processes": True}
                # Left alone its page takes a port that another run may hold; on any free one it is in nobody's way.
                return DaskTaskRunner(cluster_kwargs={**processes, "host": HOST, "dashboard_address": f"{HOST}:0"})
    return None


def spread_reading(family: ConfiguredFamily, generation: GenerationId) -> Read | None:
    """What reads in the place of the store, for a gate in a flow run; None where it is to read alone.

    Raises:
        UsageError: The configuration asks for workers that this run has no way to reach.
    """
    context = FlowRunContext.get()
    settings = read_settings().dask if context is not None else None
    if context is None or settings is None:
        return None
    runner: Any = context.task_runner
    if type(runner).__name__ != "DaskTaskRunner":
        raise UsageError(
            "cannot spread a reading: lastgood.toml has [dask], and prefect-dask is not installed", hint=HINT
        )
    workers, store, spoken = settings.workers, family.location.store, family.store_settings

    def read(prefix: str, requests: Sequence[HashRequest], progress: Progress | None = None, /) -> Iterator[Hashed]:
        cut = cut_shares(requests, workers, lambda request: request.size_bytes or 0)
        # Of each share one artifact shows whether a worker looks at what this run looks at.
        seen = [store.last_changed(f"{prefix}/{share[0].path}") for share in cut]
        with _said_plainly("no Dask scheduler answers"):
            client = runner.client
            pending = [
                read_one_share.submit(
                    f"{generation}: {number} of {len(cut)}",
                    lastgood.__version__,
                    store.uri,
                    spoken,
                    prefix,
                    _packed(share),
                    moment,
                )
                for number, (share, moment) in enumerate(zip(cut, seen, strict=True), start=1)
            ]
        return merge_shares((_share(future, client) for future in pending), progress)

    return read


def _packed(requests: Sequence[HashRequest]) -> bytes:
    """Requests as what neither Prefect nor Dask looks into: they would search a million of them for futures."""
    return msgspec.json.encode(requests)


def _share(future: Any, client: Any) -> Share:
    """What a worker read, waited for as long as there is one.

    Args:
        future: Of Prefect's Dask runner.
        client: Of Dask.
    """
    manned = time.monotonic()
    while not future.wrapped_future.done():
        if _has_workers(client):
            manned = time.monotonic()
        elif time.monotonic() - manned > PATIENCE_SECONDS:
            raise StoreTransientError(f"cannot read: no Dask worker was there for {PATIENCE_SECONDS:g} s")
        future.wait(LOOK_SECONDS)
    with _said_plainly("a worker did not answer"):
        share: Share = future.result()
    return share


def _has_workers(client: Any) -> bool:
    """Whether somebody is there who may read; a scheduler that does not answer has nobody."""
    if client.status != "running":
        return False
    try:
        return bool(client.sync(client.scheduler.ncores, callback_timeout=LOOK_SECONDS))
    except OSError:
        return False


@contextlib.contextmanager
def _said_plainly(what: str) -> Iterator[None]:
    """What Dask and its connections raise, as trouble of the store; a mistake of ours stays one."""
    try:
        yield
    except ImportError as error:
        # The worker's: what is sent to it was imported here.
        raise StorePermanentError(f"cannot read: a worker lacks what it needs: {escape.line(str(error))}") from error
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] != "distributed":
            raise
        raise StoreTransientError(f"cannot read: {what}: {escape.line(str(error))}") from error


@task(
    name="read-share",
    task_run_name="read {which}",
    tags=["tier1"],
    cache_policy=NO_CACHE,
    persist_result=False,
)
def read_one_share(
    which: str,
    version: str,
    uri: str,
    settings: StoreSettings | None,
    prefix: str,
    packed: bytes,
    changed: datetime | None,
) -> Share:
    """Read one share of a generation, wherever this worker runs.

    Args:
        which: For people.
        version: Of the lastgood that asks. What is called here is the worker's own, which may judge otherwise.
        uri: Of the store.
        settings: How it is spoken to.
        prefix: Of the artifacts.
        packed: Requests.
        changed: When the first artifact changed last. No copy of a tree carries that along, so a worker that sees
            another moment has another tree under the same name, whose bytes say nothing of this one.
    """
    try:
        if version != lastgood.__version__:
            raise StorePermanentError(f"lastgood {lastgood.__version__} runs there, and {version} asks")
        store, requests = open_store(uri, settings), msgspec.json.decode(packed, type=tuple[HashRequest, ...])
        _check_tree(store, f"{prefix}/{requests[0].path}", changed)
        share = read_share(store, prefix, requests)
    except LastgoodError as failure:
        # What is missing at a worker is no mistake in the configuration of the run.
        error = failure if isinstance(failure, StoreError) else StorePermanentError(failure.message, hint=failure.hint)
        share = Share(hashed=(), read_bytes=0, error=error)
    return share if share.error is None else replace(share, error=_placed(share.error))


def _check_tree(store: Store, witness: str, changed: datetime | None) -> None:
    found = store.last_changed(witness)
    if found != changed:
        raise StorePermanentError(
            f"another tree lies there under {store.uri}: {witness}: expected one that changed {changed}, found {found}"
        )


def _placed(error: StoreError) -> StoreError:
    """The same error, with where it was met."""
    return type(error)(f"Dask worker on {socket.gethostname()}: {error.message}", hint=error.hint)
