"""Room on the machines for a replica: slots of the global concurrency limit `gpu-headroom`, taken strictly.

Decides whether a replica may start: when its slots are free, or not at all. Rules: no limit, no replica (left to
itself, Prefect goes on without a word where the limit is missing: measured); waiting is bounded; the slots of a killed
holder come back within the wait, for its lease is the shortest that Prefect grants. A lease that could not be renewed
ends nothing: whoever lost its server ends by its lifeline.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Final

import httpx
from prefect.client.orchestration import get_client
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_logger

from lastgood.errors import LastgoodError
from lastgood_prefect import escape
from lastgood_prefect.pools import HEADROOM

__all__ = ["NoHeadroom", "headroom"]

LEASE_SECONDS: Final = 60.0
WAIT: Final = timedelta(minutes=5)


class NoHeadroom(LastgoodError):
    """The slots that a replica needs were not to be had; nothing was started."""

    exit_code = 2


@contextmanager
def headroom(slots: int, *, wait: timedelta = WAIT) -> Iterator[None]:
    """Hold slots while a replica runs.

    Args:
        slots: How many, by the family's `replica.headroom`.
        wait: The longest to wait for them.

    Raises:
        NoHeadroom: They were not free in time, there are not so many, the limit does not exist, or nobody could tell.
    """
    _require_limit(slots)
    held = concurrency(
        HEADROOM,
        occupy=slots,
        timeout_seconds=wait.total_seconds(),
        lease_duration=LEASE_SECONDS,
        strict=True,
        raise_on_lease_renewal_failure=False,
    )
    try:
        held.__enter__()
    except TimeoutError:
        raise NoHeadroom(
            f"no headroom: {HEADROOM}: expected {slots} free slots within {wait.total_seconds():g} s, found fewer",
            hint="other restores or drills hold them; see the limit under Concurrency in the UI",
        ) from None
    except ConcurrencySlotAcquisitionError as error:
        raise NoHeadroom(f"no headroom: {HEADROOM}: {escape.line(str(error))}") from error
    with ExitStack() as stack:

        def give_back(
            kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
        ) -> bool:
            try:
                return bool(held.__exit__(kind, error, traceback))
            except httpx.HTTPError as lost:
                # What was judged under these slots stands; the server takes them back when the lease has run out.
                get_logger("lastgood").warning("slots of %s not given back: %s", HEADROOM, escape.line(str(lost)))
                return False

        stack.push(give_back)
        yield


def _require_limit(slots: int) -> None:
    try:
        with get_client(sync_client=True) as client:
            limit = client.read_global_concurrency_limit_by_name(HEADROOM).limit
    except ObjectNotFound:
        raise NoHeadroom(
            f"no headroom: the global concurrency limit {HEADROOM} does not exist", hint="`lastgood deploy` creates it"
        ) from None
    except httpx.HTTPError as error:
        raise NoHeadroom(f"no headroom: {HEADROOM} cannot be asked: {escape.line(str(error))}") from error
    if limit < slots:
        raise NoHeadroom(
            f"no headroom: {HEADROOM}: expected {slots} slots, there are {limit}",
            hint="raise the limit, or lower `replica.headroom` of the family",
        )
