"""Gate runs of a Prefect server: what `requests.GateRuns` asks for, over Prefect's own client.

Decides how Prefect's states read as ours, and that every failure to get an answer is an `Unanswered`; leaves what to
ask for to `requests`. Rule: the server is the one that is configured; without one, Prefect's client would quietly start
another with settings of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Final, Self
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Crashed

from lastgood.errors import UsageError
from lastgood_prefect.requests import GateRun, RunState, Unanswered

__all__ = ["SAVE_GATE", "PrefectGateRuns"]

SAVE_GATE: Final = "save-gate/on-commit"
ANSWER_SECONDS: Final = 15.0
"""A server that is silent for longer is asked again, later; others' families must not wait for it."""

_STATES: Final = {
    StateType.SCHEDULED: RunState.SCHEDULED,
    StateType.PENDING: RunState.PENDING,
    StateType.RUNNING: RunState.RUNNING,
    # Both may still do their work, or end.
    StateType.CANCELLING: RunState.RUNNING,
    StateType.PAUSED: RunState.RUNNING,
}


class PrefectGateRuns:
    """Asks the configured server for runs of one deployment. A context; not shared between threads.

    Args:
        deployment: `<flow>/<deployment>`, whose flow takes a family's name and drains it.

    Raises:
        UsageError: No server is configured.
    """

    def __init__(self, deployment: str = SAVE_GATE) -> None:
        if not PREFECT_API_URL.value():
            raise UsageError(
                "no Prefect server configured: PREFECT_API_URL is not set", hint="`lastgood up` starts one"
            )
        self._deployment = deployment
        self._id: UUID | None = None
        self._held = ExitStack()
        self._client: SyncPrefectClient | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._disconnect()

    def ask(self, key: str, family: str) -> GateRun:
        with self._answered() as client:
            if self._id is None:
                self._id = client.read_deployment_by_name(self._deployment).id
            try:
                run = client.create_flow_run_from_deployment(
                    self._id, parameters={"family": family}, idempotency_key=key, tags=[f"family:{family}"]
                )
            except httpx.HTTPStatusError as error:
                if error.response.status_code == httpx.codes.NOT_FOUND:
                    self._id = None  # deleted and perhaps made again; the next request looks it up
                raise
        return _described(run)

    def read(self, run: str) -> GateRun | None:
        with self._answered() as client:
            try:
                return _described(client.read_flow_run(UUID(run)))
            except ObjectNotFound:
                return None

    def bury(self, run: str, message: str) -> None:
        with self._answered() as client:
            try:
                client.set_flow_run_state(UUID(run), Crashed(message=message), force=True)
            except ObjectNotFound:
                return

    @contextmanager
    def _answered(self) -> Iterator[SyncPrefectClient]:
        """A client whose every failure is an `Unanswered`, after which the next exchange gets another one."""
        try:
            yield self._connect()
        except ObjectNotFound:
            raise Unanswered(
                f"no deployment {self._deployment} on {PREFECT_API_URL.value()}", hint="`lastgood deploy` creates it"
            ) from None
        except (httpx.HTTPError, OSError, ValueError) as error:
            self._disconnect()
            if isinstance(error, httpx.HTTPStatusError):
                said = f"{error.response.status_code} {error.response.reason_phrase}"
            else:
                said = (str(error) or type(error).__name__).splitlines()[0]
            raise Unanswered(f"no answer from {PREFECT_API_URL.value()}: {said}") from error

    def _connect(self) -> SyncPrefectClient:
        # Kept from one exchange to the next: making one takes longer than the exchange.
        if self._client is None:
            # The client would sleep between retries of its own for longer than we may stand still.
            self._held.enter_context(temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}))
            timeout = {"timeout": httpx.Timeout(ANSWER_SECONDS)}
            self._client = self._held.enter_context(get_client(httpx_settings=timeout, sync_client=True))
        return self._client

    def _disconnect(self) -> None:
        self._client = None
        self._held.close()


def _described(run: FlowRun) -> GateRun:
    # A run without a state is one that the server has only just inserted.
    state = RunState.SCHEDULED if run.state is None else _STATES.get(run.state.type, RunState.ENDED)
    return GateRun(id=str(run.id), state=state)
