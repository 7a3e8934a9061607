"""`lastgood relay`: ask for a gate run when storage says that a generation was committed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click
import msgspec
from click.core import ParameterSource

from lastgood.cli.settings import config_option, configured
from lastgood.config import RelaySettings, RelaySource
from lastgood.errors import UsageError
from lastgood_prefect.watch_command import (
    chosen_families,
    listing_option,
    log_to_stderr,
    patience_option,
    stopped_by_signals,
)

__all__ = ["relay_command"]

BELONGS_TO: Final = {
    "queue_url": ("sqs",),
    "host": ("webhook",),
    "port": ("webhook",),
    "spool": ("webhook",),
    "poll_seconds": ("poll", "watch"),
    "metrics": ("sqs", "webhook"),
}
"""Option → the sources that read it."""


@click.command("relay", short_help="Ask for a save-gate run when storage announces a commit.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--source",
    default=None,
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
    help="webhook: keeps what was accepted, on a local disk.  [default: lastgood-relay beside the configuration file]",
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
    /,
    names: tuple[str, ...],
    config: Path | None,
    **_: object,  # read from the context: what was said on the command line counts, and no default
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

    What is not said here is what the table [relay] of lastgood.toml says. The server is the one of PREFECT_API_URL; it
    may be away for any time, and so may the relay. As a run of the server: the deployment `relay/served`.
    """  # noqa: D301 - the backspace tells click to keep the lines of that paragraph
    from lastgood_prefect.relay.serving import serve

    settings = _settings(context, config)
    families = chosen_families(names, config)
    log_to_stderr()
    serve(families, settings, stopped_by_signals())
    return 0


def _settings(context: click.Context, config: Path | None) -> RelaySettings:
    """What the table [relay] says, and over it what was said on the command line."""
    said = {
        name: value
        for name, value in context.params.items()
        if name in RelaySettings.__struct_fields__ and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    for name in {"spool", "metrics"} & said.keys():
        said[name] = str(Path(said[name]).absolute())
    if "source" in said:
        said["source"] = RelaySource(said["source"])
    settings = msgspec.structs.replace(configured(config).relay, **said)
    for name in BELONGS_TO.keys() & said.keys():
        if settings.source is not None and settings.source not in BELONGS_TO[name]:
            # Refused, rather than let do nothing.
            raise UsageError(
                f"--{name.replace('_', '-')} belongs to --source {' or '.join(BELONGS_TO[name])}, "
                f"found --source {settings.source}"
            )
    return settings
