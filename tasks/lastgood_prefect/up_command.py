"""`lastgood up`: the whole pipeline on one machine, until Ctrl-C."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Final

import click

from lastgood.cli.output import complain, say
from lastgood.cli.settings import config_option
from lastgood.errors import UsageError

__all__ = ["up_command"]

DEFAULT_PORT: Final = 4200
HOME: Final = "lastgood-stack"
LOOK_SECONDS: Final = 1.0
REPORT: Final = "readiness-report/hourly"
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


@click.command("up", short_help="Run server, workers and watcher on this machine, until Ctrl-C.")
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=None,
    help=f"Database, settings and logs.  [default: {HOME} beside the configuration file]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Of the server, on 127.0.0.1; 0: one that is free.",
)
@click.option(
    "--headroom",
    type=click.IntRange(min=1),
    default=None,
    help="Slots of the gpu-headroom limit.  [default: as it is; 1 for a new home]",
)
@config_option
def up_command(home: Path | None, port: int, headroom: int | None, config: Path | None) -> int:
    """Start the embedded stack, deploy everything on it, watch the families of lastgood.toml, and end it all by Ctrl-C.

    The server listens on this machine alone. What ends by itself is started again. Nothing is left running, whatever
    ends this command.
    """
    from lastgood.config import DEFAULT_FILE, read_configuration
    from lastgood_prefect.stack import LASTGOOD, Stack
    from lastgood_prefect.supervision import Supervision

    host = os.environ.get("PREFECT_SERVER_API_HOST", LOOPBACK[0])
    if host not in LOOPBACK:
        raise UsageError(
            f"serves this machine alone: expected a loopback address in PREFECT_SERVER_API_HOST, found {host}",
            hint="start a server of your own with PREFECT_SERVER_API_AUTH_STRING, and `lastgood deploy` to it",
        )
    path = (config or Path(DEFAULT_FILE)).absolute()
    configuration = read_configuration(path)
    if not configuration.families:
        raise UsageError(f"no family configured: {path}", hint="add [families.NAME] with a root")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    home = (home or path.parent / HOME).absolute()
    try:
        complain(f"starting server and workers in {home}", None)
        with Stack.start(home, environment={"LASTGOOD_CONFIG": str(path)}, port=port or None) as stack:
            complain("server and workers are up; deploying", None)
            wanted = () if headroom is None else ("--headroom", str(headroom))
            complain(f"deployed: {stack.deploy(*wanted)}", None)
            stack.run("watcher", (*LASTGOOD, "watch"))
            stack.ask(REPORT)
            say(f"server     {stack.ui_url}")
            say(f"API        export PREFECT_API_URL={stack.api_url}")
            say(f"families   {', '.join(configuration.families)} ({path})")
            say(f"report     {configuration.report.directory} (made now, and at five past each hour)")
            say(f"logs       {home / 'logs'}")
            say("Ctrl-C ends everything")
            supervision = Supervision(stack.processes, lambda line: complain(line, None))
            while True:
                supervision.look()
                time.sleep(LOOK_SECONDS)
    except KeyboardInterrupt:
        complain("ended; nothing is left running", None)
        return 0
