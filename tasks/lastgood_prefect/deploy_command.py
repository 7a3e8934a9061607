"""`lastgood deploy`: set up everything on a Prefect server, as often as one likes."""

from __future__ import annotations

import click

from lastgood.cli.output import complain, emit_json, json_option, say, table

__all__ = ["deploy_command"]


@click.command("deploy", short_help="Set up pools, limits, deployments and automations on a Prefect server.")
@click.option(
    "--type",
    "pool_type",
    type=click.Choice(("process", "docker", "kubernetes")),
    default="process",
    show_default=True,
    help="What the workers of the pools start for each run.",
)
@click.option("--image", default=None, help="For docker and kubernetes: an image that holds lastgood.")
@click.option("--replace-pools", is_flag=True, help="Give existing pools the job template and limit that are shipped.")
@click.option(
    "--headroom",
    type=click.IntRange(min=1),
    default=None,
    help="Slots of the gpu-headroom limit: replicas at a time, or devices.  [default: as it is; 1 for a new one]",
)
@click.option(
    "--notify",
    metavar="TYPE/NAME",
    default=None,
    help="Notification block that alarms go to, e.g. slack-webhook/on-call.  [default: those that are told already]",
)
@click.option("--pools-only", is_flag=True, help="Pools, queues and limits; no deployments, no automations.")
@json_option
def deploy_command(
    pool_type: str,
    image: str | None,
    replace_pools: bool,
    headroom: int | None,
    notify: str | None,
    pools_only: bool,
    as_json: bool,
) -> int:
    """Set up what is missing on the server of PREFECT_API_URL, and bring the rest up to date.

    What people tune there stays: job templates and limits of existing pools, priorities of queues, automations that
    were disabled. A second run says `unchanged` of everything.
    """
    from lastgood_prefect.deploying import Change, Wish, deploy
    from lastgood_prefect.pools import PoolType

    wish = Wish(
        type=PoolType(pool_type),
        image=image,
        replace_pools=replace_pools,
        headroom=headroom,
        notify=notify,
        pools_only=pools_only,
    )
    done = deploy(wish)
    if as_json:
        emit_json([{"kind": one.kind, "name": one.name, "change": one.change, "note": one.note} for one in done])
        return 0
    say(table([(one.kind, one.name, one.change.value) for one in done], ("what", "name", "change")))
    for one in done:
        if one.note:
            complain(f"{one.kind} {one.name}: {one.note}", None)
    counts = {change: sum(one.change is change for one in done) for change in Change}
    say(", ".join(f"{count} {change}" for change, count in counts.items() if count))
    return 0
