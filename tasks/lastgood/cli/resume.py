"""`lastgood latest` and `lastgood exec`: what a launch script asks before it starts a trainer."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from lastgood.cli.output import answer, complain, emit_json, json_option
from lastgood.cli.settings import config_option, find_location, find_place, look_deeper, where_to_ask
from lastgood.errors import FormatError, LastgoodError, StoreError, UsageError
from lastgood.family import Family, Offer
from lastgood.protocol import Policy
from lastgood.verdict import Finding, NoteReason, Reason

if TYPE_CHECKING:
    from lastgood.formats.structural import StructuralOffer

__all__ = ["exec_command", "latest_command"]

EXIT_NOTHING = 1
STRUCTURAL = "structural"
NOT_EMPTY = "step zero may lose what lies there: resume from it, or move away what is no checkpoint"

policy_option = click.option(
    "--policy",
    type=click.Choice([*(policy.value for policy in Policy), STRUCTURAL]),
    default=Policy.VERIFIED.value,
    show_default=True,
    help=(
        "verified: the newest that nothing refuses; proven: the newest that a full restore passed; structural: of "
        "checkpoints that nobody sealed, the newest that is whole."
    ),
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
        _point_on(offer, what, config)
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

    With --allow-fresh, and only on a family without any commit (or, by the structural policy, on a directory in which
    no save was ever finished), {generation} becomes empty text. NAME is a family of lastgood.toml.
    """
    offer = _ask(what, policy, deep, config, may_be_absent=allow_fresh)
    is_empty = offer.lineage_is_empty if isinstance(offer, Offer) else offer.is_empty
    fresh = allow_fresh and is_empty and offer.uri is None
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(_described(offer)), ensure_ascii=True), err=True)
    else:
        explain(offer, fresh=fresh)
    if offer.uri is None and not as_json:
        _point_on(offer, what, config)
    if offer.uri is None and not fresh:
        if not as_json:
            complain("nothing started", _fresh_refused(offer) if allow_fresh else None)
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


def _point_on(offer: Offer | StructuralOffer, what: str, config: Path | None) -> None:
    """Where nothing at all was found, perhaps another directory was meant, or what nobody published."""
    is_empty = offer.lineage_is_empty if isinstance(offer, Offer) else not offer.passed_over
    if _skipped(offer) or not is_empty:
        return
    try:
        place = find_place(what, config)
    except LastgoodError:
        return  # the answer stands: this was advice
    ask = where_to_ask if isinstance(offer, Offer) else look_deeper
    advice = ask(place.store, place.key, place.uri)
    if advice is not None:
        complain(advice, None)


def explain(offer: Offer | StructuralOffer, *, fresh: bool = False) -> None:
    """Say on stderr what was passed over and why, newest first, then notes; or that training begins, where it may."""
    skipped = _skipped(offer)
    for name, findings in skipped[:20]:
        where = "" if isinstance(offer, Offer) else f"{name}: "  # our own findings name their generation
        for finding in findings[:3]:
            complain(f"passed over: {where}{finding.reason}: {finding.message}", None)
    if len(skipped) > 20:
        complain(f"passed over {len(skipped) - 20} more", None)
    if fresh:
        # The other policies ask commits alone: whatever else lies there may well be finished.
        what = "committed" if isinstance(offer, Offer) else "finished"
        complain(f"starts at step zero: nothing was ever {what} here, and --allow-fresh allows it", None)
    for finding in () if fresh else offer.findings:
        complain(f"{finding.reason}: {finding.message}", _hint(offer, finding))
    for note in offer.notes:
        hint = note.reason.hint if note.reason is NoteReason.UNPUBLISHED_CONTENT else None  # the way on, for a launcher
        complain(f"note: {note.reason}: {note.message}", hint)


def _hint(offer: Offer | StructuralOffer, finding: Finding) -> str:
    """A directory to which nobody published is no family, of which `status` knows anything."""
    if finding.reason is not Reason.NOTHING_TO_RESUME:
        return finding.hint
    if isinstance(offer, Offer):
        return offer.hint
    return (
        "`lastgood inspect --recursive` of that directory says what lies there and why it cannot be resumed; "
        "--allow-fresh is for a directory in which no save was ever finished"
    )


def _fresh_refused(offer: Offer | StructuralOffer) -> str:
    if isinstance(offer, Offer):
        return Reason.FRESH_REFUSED.hint
    return NOT_EMPTY


def _skipped(offer: Offer | StructuralOffer) -> list[tuple[str, tuple[Finding, ...]]]:
    if isinstance(offer, Offer):
        return [(str(one.generation), one.findings) for one in offer.skipped]
    return [(one.name, one.findings) for one in offer.passed_over]


def _ask(
    what: str, policy: str, deep: bool, config: Path | None, *, may_be_absent: bool = False
) -> Offer | StructuralOffer:
    if policy == STRUCTURAL:
        return _ask_structurally(what, deep, config, may_be_absent)
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


def _ask_structurally(what: str, deep: bool, config: Path | None, may_be_absent: bool) -> StructuralOffer:
    place = find_place(what, config)
    if not place.store.is_root():
        raise StoreError(f"root is not a directory: {place.store.uri}", hint="is the file system mounted?")
    # Imported when it is asked for: a launch script pays for the start of each.
    from lastgood.formats.structural import choose_structurally

    try:
        return choose_structurally(place, deep=deep, may_be_absent=may_be_absent)
    except FormatError as error:
        raise StoreError(f"could not tell: {error.message}", hint="`lastgood verify` names what is wrong") from error


def _described(offer: Offer | StructuralOffer) -> dict[str, Any]:
    if isinstance(offer, Offer):
        name = str(offer.generation) if offer.generation else None
        step = offer.generation.step if offer.generation else None
    else:
        name, step = offer.name, offer.step
    return {
        "generation": name,
        "uri": offer.uri,
        "step": step,
        "findings": list(offer.findings),
        "notes": list(offer.notes),
        "passed_over": [{"generation": name, "findings": list(findings)} for name, findings in _skipped(offer)],
    }
