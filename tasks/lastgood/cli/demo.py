"""`lastgood demo`: the whole promise in a few minutes."""

from __future__ import annotations

import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path

import click

from lastgood.cli.output import complain, emit_json, json_option, say, table
from lastgood.errors import UsageError

__all__ = ["demo_command"]


@click.command("demo")
@click.option("--keep", is_flag=True, help="Leave the demo's directory, to look around in.")
@json_option
def demo_command(keep: bool, as_json: bool) -> int:
    """Train a small replica, verify each save, restore one, kill a job and recover it, and refuse damaged copies.

    Needs torch (`pip install 'lastgood[demo]'`) and takes a few minutes on two cores. Leaves nothing running.
    """
    missing = [name for name in ("torch", "torchdata", "safetensors", "numpy") if find_spec(name) is None]
    if missing:
        raise UsageError(f"not installed: {', '.join(missing)}", hint="pip install 'lastgood[demo]'")
    from lastgood.demo.story import run_demo, summary

    directory = Path(tempfile.mkdtemp(prefix="lastgood-demo-"))
    try:
        outcome = run_demo(directory, lambda line: complain(line, None) if as_json else say(line))
        figures = summary(outcome)
        if as_json:
            emit_json({"problems": outcome.problems, "figures": figures})
        else:
            say("\n" + table(list(figures.items()), ("what", "measured")))
        for problem in outcome.problems:
            complain(f"the demo did not do what it says: {problem}", None)
        if not outcome.problems and not as_json:
            say("\nall of it held; nothing is left running" + ("" if keep else ", and nothing is left on disk"))
        return 1 if outcome.problems else 0
    finally:
        if keep:
            say(f"kept in {directory}: try `lastgood status {directory}/runs/demo`")
        else:
            shutil.rmtree(directory, ignore_errors=True)
