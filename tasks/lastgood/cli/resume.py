"""`lastgood latest` and `lastgood exec`: what a launch script asks before it starts a trainer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from lastgood.cli.output import answer, complain, emit_json, json_option
from lastgood.cli.settings import config_option, find_location
from lastgood.errors import FormatError, StoreError, UsageError
from lastgood.family import Family, Offer
from lastgood.protocol import Policy
from lastgood.verdict import Reason

__all__ = ["exec_command", "latest_command"]

EXIT_NOTHING = 1

policy_option = click.option(
    "--policy",
    type=click.Choice([policy.value for policy in Policy]),
    default=Policy.VERIFIED.value,
    show_default=True,
    help="verified: the newest that nothing refuses; proven: the newest that a full restore passed.",
)
deep_option = click.option("--deep", is_flag=True, help="Also read every byte of what is offered.")


@click.command("latest")
@click.argument("what", metavar="URI|NAME")
@policy_option
@deep_option
@config_option
@json_option
def latest_command(what: str, policy: str, deep: bool, config: Path | None, as_json: bool) -> int:
    """Print the newest generation of the family URI that may be resumed.

    Nothing is printed on stdout when nothing may be resumed (exit 1) or nobody can tell (exit 2). In a shell:

        g=$(lastgood latest URI) || exit

    Never inline as `--resume "$(lastgood latest URI)"`: a shell drops the exit code there. NAME is a family of
    lastgood.toml.
    """
    offer = _ask(what, policy, deep, config)
    if as_json:
        emit_json(_described(offer))
    explain(offer)
    if offer.uri is None:
        return EXIT_NOTHING
    if not as_json:
        answer(offer.uri)
    return 0


class _DividedCommand(click.Command):
    """Demands `--`: without it, an option of the trainer that is called like one of ours would vanish."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" not in args and not {"-h", "--help"} & set(args):
            raise click.UsageError("no `--` before COMMAND: expected `exec [OPTIONS] URI -- COMMAND...`", ctx)
        return super().parse_args(ctx, args)


@click.command("exec", cls=_DividedCommand)
@click.argument("what", metavar="URI|NAME")
@policy_option
@deep_option
@config_option
@click.option("--allow-fresh", is_flag=True, help="Start at step zero if, and only if, the family holds no commit.")
@click.option("--json", "as_json", is_flag=True, help="Explain in one JSON document, on stderr: stdout is COMMAND's.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(
    what: str,
    policy: str,
    deep: bool,
    config: Path | None,
    allow_fresh: bool,
    as_json: bool,
    command: tuple[str, ...],
) -> int:
    """Replace this process by COMMAND, with {generation} filled in; start nothing when nothing may be resumed.

        lastgood exec /checkpoints/llm-7b -- torchrun train.py --resume {generation}

    With --allow-fresh, and only on a family without any commit, {generation} becomes empty text. NAME is a family of
    lastgood.toml.
    """
    offer = _ask(what, policy, deep, config)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(_described(offer)), ensure_ascii=True), err=True)
    else:
        explain(offer)
    fresh = allow_fresh and offer.lineage_is_empty
    if offer.uri is None and not fresh:
        if not as_json:
            complain("nothing started", Reason.FRESH_REFUSED.hint if allow_fresh else None)
        return EXIT_NOTHING
    arguments = [argument.replace("{generation}", offer.uri or "") for argument in command]
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvp(arguments[0], arguments)
    except OSError as error:
        raise UsageError(f"cannot start {arguments[0]}: {os.strerror(error.errno or 0).lower()}") from error
    except ValueError as error:
        raise UsageError(f"cannot start {arguments[0]!r}: {error}") from error


def explain(offer: Offer) -> None:
    """Say on stderr what was passed over and why, newest first, then notes."""
    for skipped in offer.skipped[:20]:
        for finding in skipped.findings[:3]:
            complain(f"passed over: {finding.reason}: {finding.message}", None)
    if len(offer.skipped) > 20:
        complain(f"passed over {len(offer.skipped) - 20} more", None)
    for finding in offer.findings:
        complain(f"{finding.reason}: {finding.message}", finding.hint)
    for note in offer.notes:
        complain(f"note: {note.reason}: {note.message}", None)


def _ask(what: str, policy: str, deep: bool, config: Path | None) -> Offer:
    location = find_location(what, config)
    if location.generation is not None:
        raise UsageError(f"names a generation, not a family: {what}", hint=f"ask {location.family_uri}")
    family = Family(location)
    if not location.store.is_root():
        raise StoreError(f"root is not a directory: {location.store.uri}", hint="is the file system mounted?")
    try:
        return family.latest(policy=Policy(policy), deep=deep)
    except FormatError as error:
        # What decides cannot be read. To a script, 1 would say that there is nothing here.
        raise StoreError(f"could not tell: {error.message}", hint="`lastgood verify` names what is wrong") from error


def _described(offer: Offer) -> dict[str, Any]:
    return {
        "generation": str(offer.generation) if offer.generation else None,
        "uri": offer.uri,
        "step": offer.generation.step if offer.generation else None,
        "findings": list(offer.findings),
        "notes": list(offer.notes),
        "passed_over": [
            {"generation": str(skipped.generation), "findings": list(skipped.findings)} for skipped in offer.skipped
        ],
    }
