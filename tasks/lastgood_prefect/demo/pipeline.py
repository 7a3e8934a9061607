"""The demo's pipeline: an embedded stack, everything deployed on it, who announces, and flow runs asked for over HTTP.

Decides how a run is asked for and when it counts as ended; leaves what runs to the deployments, and what must come of
it to `checks`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final

from lastgood.errors import LastgoodError
from lastgood_prefect.demo.place import Place
from lastgood_prefect.stack import LASTGOOD, Stack

__all__ = ["FlowRun", "Pipeline"]

RUN_TIMEOUT: Final = timedelta(minutes=4)
LOOK_SECONDS: Final = 0.25
_ENDED: Final = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """One run as the server tells it.

    Args:
        id: The server's.
        name: The two words that Prefect gave it.
        state: The name of its state, e.g. `Completed`, `Failed`, `Inconclusive`.
        message: Of that state.
        url: Its page.
    """

    id: str
    name: str
    state: str
    message: str
    url: str


class Pipeline:
    """A running stack on which everything is deployed, and beside it who announces commits. Made by `start`."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    @classmethod
    @contextlib.contextmanager
    def start(cls, directory: Path, configuration: Path, place: Place) -> Iterator[Pipeline]:
        """Start the stack, deploy, start the watcher or the relay; all of it ends with the context.

        Args:
            directory: Holds the stack's home and the logs.
            configuration: The `lastgood.toml` that the workers read.
            place: Where the families of that file lie.

        Raises:
            LastgoodError: Something did not start, with its last words.
        """
        environment = {"LASTGOOD_CONFIG": str(configuration), **place.environ, **place.announcer_environ}
        with Stack.start(directory / "stack", environment=environment) as stack:
            stack.deploy()
            stack.run(place.announcer[0], (*LASTGOOD, *place.announcer))
            yield cls(stack)

    def ask(self, deployment: str, parameters: Mapping[str, object]) -> FlowRun:
        """Ask for a run of `<flow>/<deployment>`, as the page of a deployment does, and wait until it has ended.

        Raises:
            LastgoodError: The server would not start it, or it did not end in time.
        """
        run = self.stack.ask(deployment, parameters)
        deadline = time.monotonic() + RUN_TIMEOUT.total_seconds()
        while True:
            state = self.flow_run(run["id"])
            if state is not None:
                return state
            if time.monotonic() > deadline:
                raise LastgoodError(
                    f"run of {deployment} did not end within {RUN_TIMEOUT.total_seconds():.0f} s: {run['name']}"
                )
            time.sleep(LOOK_SECONDS)

    def flow_run(self, id_: str) -> FlowRun | None:
        """The run, if it has ended."""
        run = self.stack.require("GET", f"/flow_runs/{id_}")
        state = run["state"]
        if state is None or state["type"] not in _ENDED:
            return None
        return FlowRun(
            id=id_, name=run["name"], state=state["name"], message=state["message"] or "", url=self.page(id_)
        )

    def page(self, id_: str) -> str:
        """Where people read about a run."""
        return f"{self.stack.ui_url}/runs/flow-run/{id_}"
