"""`lastgood watch`: ask for a gate run whenever a family has something unjudged."""

from __future__ import annotations

import logging
import signal
import threading
from pathlib import Path

import click

from lastgood.cli.settings import config_option, configured
from lastgood.errors import UsageError

__all__ = ["watch_command"]

COULD_NOT_TELL = 2


@click.command("watch", short_help="Ask for a save-gate run whenever a generation is committed.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--once", is_flag=True, help="List every family once, ask for what is due, and exit; for cron.")
@click.option(
    "--poll-seconds",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="How often to list what lies on file systems that notify of nothing (NFS, Lustre, GPFS, FUSE, ...).",
)
@click.option(
    "--listing-seconds",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    help="How often to list every family, whatever was notified.",
)
@click.option(
    "--patience-seconds",
    type=click.FloatRange(min=1.0),
    default=900.0,
    show_default=True,
    help="How long a run that was begun, or taken by a worker, may judge nothing before another is asked for.",
)
@config_option
def watch_command(
    names: tuple[str, ...],
    once: bool,
    poll_seconds: float,
    listing_seconds: float,
    patience_seconds: float,
    config: Path | None,
) -> int:
    """Watch families of lastgood.toml (all, or those NAMEd) until SIGTERM or Ctrl-C; one line on stderr a decision.

    The server is the one of PREFECT_API_URL. It may be away for any time, and so may the watcher: what is due is read
    from storage, so that nothing is missed and nothing judged twice.

    With --once: exit 2 when a family could not be read or the server did not answer.
    """
    from datetime import timedelta

    from lastgood_prefect import events
    from lastgood_prefect.requests import Patience
    from lastgood_prefect.runs import PrefectGateRuns
    from lastgood_prefect.settings import ConfiguredFamily
    from lastgood_prefect.watcher import Cadence, Watcher

    configuration = configured(config)
    families = []
    for name in dict.fromkeys(names or configuration.families):
        settings = configuration.settings(name)
        families.append(
            ConfiguredFamily(name=name, location=configuration.locate(settings.uri(name)), settings=settings)
        )
    if not families:
        raise UsageError(
            "no family configured",
            hint="add [families.NAME] with a root to lastgood.toml, or name the file: --config FILE",
        )
    _log_to_stderr()
    patience = timedelta(seconds=patience_seconds)
    with PrefectGateRuns() as runs:
        watcher = Watcher(
            families,
            runs,
            announce=lambda family, generation: events.generation_committed(
                family.name, generation, uri=family.location.generation_uri(generation)
            ),
            patience=Patience(pending=patience, running=patience),
            cadence=Cadence(poll=timedelta(seconds=poll_seconds), listing=timedelta(seconds=listing_seconds)),
        )
        if once:
            return 0 if watcher.once() else COULD_NOT_TELL
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        watcher.run(stop)
    return 0


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("lastgood.watch")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
