"""A relay at work, for the command and for the flow: the source that the settings name, and the watcher that it wakes.

Decides which source is opened, and that settings which could hear of nothing are refused; leaves what the settings say
to `config` and to the command line, and when to end to whoever calls.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path

from lastgood.config import RelaySettings, RelaySource
from lastgood.errors import UsageError
from lastgood.text import printable
from lastgood_prefect.hints import HintSource
from lastgood_prefect.relay.reading import CommitKeys, Counters, Reader, bucket_of
from lastgood_prefect.settings import ConfiguredFamily
from lastgood_prefect.watch_command import watcher_of

__all__ = ["NOTIFIED", "serve"]

NOTIFIED = frozenset({RelaySource.SQS, RelaySource.WEBHOOK})
"""The sources that are told by somebody; the others look themselves."""

_log = logging.getLogger("lastgood.watch")


def serve(families: Sequence[ConfiguredFamily], settings: RelaySettings, stop: threading.Event) -> Counters | None:
    """Look after families when storage announces commits, until `stop` is set; what came of the notifications.

    Args:
        families: Which.
        settings: Who announces, and how often to look whatever was announced.
        stop: Set by whoever wants an end.

    Raises:
        UsageError: The settings name no source, or one that could not hear of these families.
        LastgoodError: The source ended by itself.
    """
    source = settings.source
    if source is None:
        raise UsageError("no source: expected --source, or `source` in [relay] of lastgood.toml")
    if source is RelaySource.SQS and not settings.queue_url:
        raise UsageError("no queue: expected --queue-url, or `queue_url` in [relay], with the source sqs")
    reader = _reader(families) if source in NOTIFIED else None
    with watcher_of(
        families,
        poll_seconds=settings.poll_seconds,
        listing_seconds=settings.listing_seconds,
        patience_seconds=settings.patience_seconds,
    ) as watcher:
        watcher.run(stop, _opened(source, families, settings, reader, stop))
    return reader.counters if reader is not None else None


def _opened(
    source: RelaySource,
    families: Sequence[ConfiguredFamily],
    settings: RelaySettings,
    reader: Reader | None,
    stop: threading.Event,
) -> HintSource | None:
    """The source; None: the families' own file systems."""
    if reader is not None:
        notified = _queue(reader, stop, settings) if source is RelaySource.SQS else _webhook(reader, settings)
        return _told(notified, reader, settings)
    return _listing(families, stop, settings.poll_seconds) if source is RelaySource.POLL else None


def _reader(families: Sequence[ConfiguredFamily]) -> Reader:
    elsewhere = [one.name for one in families if bucket_of(one.settings.root) is None]
    if len(elsewhere) == len(families):
        raise UsageError(
            f"no event can announce these families: {', '.join(elsewhere)}: expected a root s3://bucket/prefix",
            hint="`lastgood watch` is for file systems, and the source poll for any store",
        )
    for name in elsewhere:
        _log.info("%s: not in a bucket: listed each --listing-seconds, and announced by nobody", name)
    return Reader(CommitKeys.of(families))


def _listing(families: Sequence[ConfiguredFamily], stop: threading.Event, poll_seconds: float) -> HintSource:
    from lastgood_prefect.relay.listing import ListingHints

    return ListingHints({one.name: one.location for one in families}, stop, poll=timedelta(seconds=poll_seconds))


def _queue(reader: Reader, stop: threading.Event, settings: RelaySettings) -> HintSource:
    if find_spec("boto3") is None:
        raise UsageError("not installed: boto3", hint="pip install 'lastgood[s3]'")
    # Loaded where that source is asked for: the client takes half a second.
    from lastgood_prefect.relay.sqs import SqsHints, connect

    url = str(settings.queue_url)
    source = SqsHints(reader, connect(url), url, stop)
    _log.info("receiving from %s", printable(url))
    return source


def _webhook(reader: Reader, settings: RelaySettings) -> HintSource:
    from lastgood_prefect.relay.spool import Spool
    from lastgood_prefect.relay.webhook import PATH, SECRET_VARIABLE, WebhookHints, check_secret

    secret, host = check_secret(os.environ.get(SECRET_VARIABLE)), settings.host
    source = WebhookHints(reader, Spool(Path(settings.spool)), secret=secret, host=host, port=settings.port)
    _log.info("listening on http://%s:%d%s", f"[{host}]" if ":" in host else host, source.port, PATH)
    return source


def _told(source: HintSource, reader: Reader, settings: RelaySettings) -> HintSource:
    from lastgood_prefect.relay.telling import Told

    return Told(source, reader.counters, Path(settings.metrics) if settings.metrics else None)
