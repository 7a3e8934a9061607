"""`lastgood demo`: the whole promise in a few minutes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
from importlib.util import find_spec
from pathlib import Path

import click

from lastgood.cli.output import complain, emit_json, json_option, say, table
from lastgood.errors import UsageError

__all__ = ["demo_command"]

NEEDED = ("torch", "torchdata", "safetensors", "numpy", "prefect", "watchfiles", "sqlalchemy", "great_expectations")
NEEDED_FOR = {"s3": ("boto3",)}


@click.command("demo", short_help="Run the whole pipeline on a small replica that is really killed.")
@click.option(
    "--store",
    type=click.Choice(["file", "s3"]),
    default="file",
    show_default=True,
    help="What is saved to: a directory, or a bucket of a SeaweedFS that the demo starts.",
)
@click.option("--keep", is_flag=True, help="Leave the stack up until Ctrl-C, and the directory for good.")
@json_option
def demo_command(store: str, keep: bool, as_json: bool) -> int:
    """Train a small replica through a kill, judge each save as it appears, restore one, drill, refuse damages.

    Everything runs through the flows, on an embedded Prefect server of its own (loopback, free ports). Needs
    `pip install 'lastgood[demo]'` and takes a few minutes on two cores. Leaves nothing running.
    """
    missing = [name for name in (*NEEDED, *NEEDED_FOR.get(store, ())) if find_spec(name) is None]
    if missing:
        raise UsageError(f"not installed: {', '.join(missing)}", hint="pip install 'lastgood[demo]'")
    from lastgood_prefect.demo.place import StoreKind
    from lastgood_prefect.demo.story import demo_running, summary

    directory = Path(tempfile.mkdtemp(prefix="lastgood-demo-"))
    try:
        tell = (lambda line: complain(line, None)) if as_json else say
        with demo_running(directory, StoreKind(store), tell) as (outcome, pipeline):
            figures = summary(outcome)
            if not as_json:
                say("\n" + table(list(figures.items()), ("what", "measured")))
            if keep and pipeline is not None:
                complain(f"look around: {pipeline.stack.ui_url}, {outcome.page or directory}; Ctrl-C ends it", None)
                if outcome.look is not None:
                    complain(f"and, in another shell: {outcome.look}", None)
                _await_interrupt()
        if as_json:
            emit_json({"problems": outcome.problems, "figures": figures})
        for problem in outcome.problems:
            complain(f"the demo did not do what it says: {problem}", None)
        if not outcome.problems and not as_json:
            say("\nall of it held; nothing is left running" + ("" if keep else ", and nothing is left on disk"))
        return 1 if outcome.problems else 0
    finally:
        if keep:
            complain(f"kept in {directory}", None)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def _await_interrupt() -> None:
    ended = threading.Event()
    former = signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with contextlib.suppress(KeyboardInterrupt):
        ended.wait()
    signal.signal(signal.SIGTERM, former)
