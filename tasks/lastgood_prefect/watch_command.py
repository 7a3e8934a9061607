"""`lastgood watch`: ask for a gate run whenever a family has something unjudged.

The parts that `lastgood relay` shares with it are public here.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lastgood.cli.settings import config_option, configured
from lastgood.errors import UsageError

if TYPE_CHECKING:
    # Loaded when a command runs: `lastgood --help` must not wait for Prefect.
    from lastgood_prefect.settings import ConfiguredFamily
    from lastgood_prefect.watcher import Watcher

__all__ = [
    "chosen_families",
    "listing_option",
    "log_to_stderr",
    "patience_option",
    "stopped_by_signals",
    "watch_command",
    "watcher_of",
]

COULD_NOT_TELL = 2


listing_option = click.option(
    "--listing-seconds",
    type=click.FloatRange(min=1.0),
    default=60.0,
    show_default=True,
    help="How often to list every family, whatever was notified.",
)
patience_option = click.option(
    "--patience-seconds",
    type=click.FloatRange(min=1.0),
    default=900.0,
    show_default=True,
    help="How long a run that was begun, or taken by a worker, may judge nothing before another is asked for.",
)


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
@listing_option
@patience_option
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
    families = chosen_families(names, config)
    log_to_stderr()
    with watcher_of(
        families, poll_seconds=poll_seconds, listing_seconds=listing_seconds, patience_seconds=patience_seconds
    ) as watcher:
        if once:
            return 0 if watcher.once() else COULD_NOT_TELL
        watcher.run(stopped_by_signals())
    return 0


def chosen_families(names: Sequence[str], config: Path | None) -> tuple[ConfiguredFamily, ...]:
    """The families of these names, each once; without a name: all of the configuration.

    Raises:
        UsageError: The configuration is wrong, names no family, or not one that was asked for.
    """
    from lastgood_prefect.settings import ConfiguredFamily

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
    return tuple(families)


@contextmanager
def watcher_of(
    families: Sequence[ConfiguredFamily], *, poll_seconds: float, listing_seconds: float, patience_seconds: float
) -> Iterator[Watcher]:
    """A watcher that asks the configured server for runs and announces commits there."""
    from lastgood_prefect import events
    from lastgood_prefect.requests import Patience
    from lastgood_prefect.runs import PrefectGateRuns
    from lastgood_prefect.watcher import Cadence, Watcher

    patience = timedelta(seconds=patience_seconds)
    with PrefectGateRuns() as runs:
        yield Watcher(
            families,
            runs,
            announce=lambda family, generation: events.generation_committed(
                family.name, generation, uri=family.location.generation_uri(generation)
            ),
            patience=Patience(pending=patience, running=patience),
            cadence=Cadence(poll=timedelta(seconds=poll_seconds), listing=timedelta(seconds=listing_seconds)),
        )


def stopped_by_signals() -> threading.Event:
    """Set once this process is told to end, by SIGTERM or Ctrl-C."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    return stop


def log_to_stderr() -> None:
    """Show what the watcher and its sources decide, a line each."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("lastgood.watch")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
