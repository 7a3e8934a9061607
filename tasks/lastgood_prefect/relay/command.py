"""`lastgood relay`: ask for a gate run when storage says that a generation was committed."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from lastgood.cli.settings import config_option
from lastgood.config import DEFAULT_FILE
from lastgood.errors import UsageError
from lastgood.text import printable
from lastgood_prefect.watch_command import (
    chosen_families,
    listing_option,
    log_to_stderr,
    patience_option,
    stopped_by_signals,
    watcher_of,
)

if TYPE_CHECKING:
    from lastgood_prefect.hints import HintSource
    from lastgood_prefect.relay.reading import Reader
    from lastgood_prefect.settings import ConfiguredFamily

__all__ = ["relay_command"]

SPOOL: Final = "lastgood-relay"
NOTIFIED: Final = ("sqs", "webhook")
"""The sources that are told by somebody; the others look themselves."""
BELONGS_TO: Final = {
    "queue_url": ("sqs",),
    "host": ("webhook",),
    "port": ("webhook",),
    "spool": ("webhook",),
    "poll_seconds": ("poll", "watch"),
    "metrics": NOTIFIED,
}
"""Option → the sources that read it."""

_log = logging.getLogger("lastgood.watch")


@click.command("relay", short_help="Ask for a save-gate run when storage announces a commit.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--source",
    required=True,
    type=click.Choice(["sqs", "webhook", "poll", "watch"]),
    help="Who says that something was committed: an SQS queue, HTTP requests, listings, or the file system.",
)
@click.option("--queue-url", default=None, help="sqs: the queue's URL. Credentials and endpoint are boto3's.")
@click.option("--host", default="127.0.0.1", show_default=True, help="webhook: where to listen; put TLS before others.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8787,
    show_default=True,
    help="webhook: where to listen, for POST /events; 0: a free one.",
)
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    default=None,
    help=f"webhook: keeps what was accepted, on a local disk.  [default: {SPOOL} beside the configuration file]",
)
@click.option(
    "--poll-seconds",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    help="poll, watch: how often to list the names of commits where nothing notifies.",
)
@click.option(
    "--metrics",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="sqs, webhook: a file for Prometheus' textfile collector, e.g. lastgood-relay.prom.",
)
@listing_option
@patience_option
@config_option
@click.pass_context
def relay_command(
    context: click.Context,
    names: tuple[str, ...],
    source: str,
    queue_url: str | None,
    host: str,
    port: int,
    spool: Path | None,
    poll_seconds: float,
    metrics: Path | None,
    listing_seconds: float,
    patience_seconds: float,
    config: Path | None,
) -> int:
    """Look after families of lastgood.toml (all, or those NAMEd) when storage announces commits, until told to end.

    An event only makes us look sooner: what is due is read from storage, and every family is listed each
    --listing-seconds, whatever was announced. So lost, doubled, late and forged events change no verdict.

    \b
    sqs      S3, SNS or EventBridge notifications in an SQS queue. A message
             is deleted once the server acknowledged a run for it; one that
             cannot be decoded is left to the queue's redrive policy.
    webhook  POST /events from MinIO, Ceph or SeaweedFS, authorised by
             `Bearer SECRET` (Ceph: by the topic's opaque data). The secret
             is LASTGOOD_RELAY_SECRET in the environment.
    poll     No notifications: lists the names of commits.
    watch    As `lastgood watch`: inotify on local disks, listings elsewhere.

    The server is the one of PREFECT_API_URL; it may be away for any time, and so may the relay.
    """  # noqa: D301 - the backspace tells click to keep the lines of that paragraph
    _refuse_strangers(context, source)
    if source == "sqs" and not queue_url:
        raise UsageError("no queue: expected --queue-url with --source sqs")
    families = chosen_families(names, config)
    log_to_stderr()
    reader = _reader(families) if source in NOTIFIED else None
    with watcher_of(
        families, poll_seconds=poll_seconds, listing_seconds=listing_seconds, patience_seconds=patience_seconds
    ) as watcher:
        stop = stopped_by_signals()
        hints: HintSource | None = None
        if reader is not None:
            if source == "sqs":
                notified = _queue(reader, stop, str(queue_url))
            else:
                directory = spool or (config or Path(DEFAULT_FILE)).absolute().parent / SPOOL
                notified = _webhook(reader, host, port, directory)
            hints = _told(notified, reader, metrics)
        elif source == "poll":
            hints = _listing(families, stop, poll_seconds)
        watcher.run(stop, hints)
    return 0


def _refuse_strangers(context: click.Context, source: str) -> None:
    """Refuse options that another source reads, rather than let them do nothing."""
    for name, sources in BELONGS_TO.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE and source not in sources:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} belongs to --source {' or '.join(sources)}, found --source {source}")


def _reader(families: Sequence[ConfiguredFamily]) -> Reader:
    from lastgood_prefect.relay.reading import CommitKeys, Reader, bucket_of

    elsewhere = [one.name for one in families if bucket_of(one.settings.root) is None]
    if len(elsewhere) == len(families):
        raise UsageError(
            f"no event can announce these families: {', '.join(elsewhere)}: expected a root s3://bucket/prefix",
            hint="`lastgood watch` is for file systems, and --source poll for any store",
        )
    for name in elsewhere:
        _log.info("%s: not in a bucket: listed each --listing-seconds, and announced by nobody", name)
    return Reader(CommitKeys.of(families))


def _listing(families: Sequence[ConfiguredFamily], stop: threading.Event, poll_seconds: float) -> HintSource:
    from lastgood_prefect.relay.listing import ListingHints

    return ListingHints({one.name: one.location for one in families}, stop, poll=timedelta(seconds=poll_seconds))


def _queue(reader: Reader, stop: threading.Event, queue_url: str) -> HintSource:
    if find_spec("boto3") is None:
        raise UsageError("not installed: boto3", hint="pip install 'lastgood[s3]'")
    from lastgood_prefect.relay.sqs import SqsHints, connect

    source = SqsHints(reader, connect(queue_url), queue_url, stop)
    _log.info("receiving from %s", printable(queue_url))
    return source


def _webhook(reader: Reader, host: str, port: int, directory: Path) -> HintSource:
    from lastgood_prefect.relay.spool import Spool
    from lastgood_prefect.relay.webhook import PATH, SECRET_VARIABLE, WebhookHints, check_secret

    secret = check_secret(os.environ.get(SECRET_VARIABLE))
    source = WebhookHints(reader, Spool(directory), secret=secret, host=host, port=port)
    _log.info("listening on http://%s:%d%s", f"[{host}]" if ":" in host else host, source.port, PATH)
    return source


def _told(source: HintSource, reader: Reader, metrics: Path | None) -> HintSource:
    from lastgood_prefect.relay.telling import Told

    return Told(source, reader.counters, metrics)
