"""What a run ends as: verdicts become one final Prefect state, and a user's mistake becomes one clear line.

Decides the state. Rules: pass → Completed; fail → Failed, with the reasons in its message; inconclusive → type FAILED
under the name `Inconclusive`, not run → under `NotRun`, because what was not proven is never green; of several the
worst decides. A configuration mistake ends Failed, a store that could not tell ends Inconclusive, both without a
traceback; only a defect of ours has one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, ParamSpec

from prefect import State
from prefect.states import Completed, Failed

from lastgood.errors import LastgoodError
from lastgood.redaction import clean_logs, redact_exception
from lastgood.verdict import WORST_FIRST, Outcome, Verdict
from lastgood_prefect import escape

__all__ = ["ended_at_once", "final_state", "refused", "state_of", "told_plainly"]

MAXIMUM_MESSAGE_CHARACTERS = 2000
MAXIMUM_FINDINGS_NAMED = 3
"""Of each verdict; the page's artifacts show more, the record all."""
MAXIMUM_PASSES_NAMED = 3

_NAMES = {Outcome.INCONCLUSIVE: "Inconclusive", Outcome.NOT_RUN: "NotRun"}

Parameters = ParamSpec("Parameters")


def final_state(
    verdicts: Iterable[Verdict],
    *,
    errors: Sequence[LastgoodError] = (),
    remarks: Iterable[str] = (),
    data: object = None,
) -> State[Any]:
    """The state of a run that reached these verdicts.

    Args:
        verdicts: What its gates said; none at all and no error: there was nothing to do.
        errors: What kept it from further verdicts.
        remarks: Further sentences for its message, e.g. what was skipped and why.
        data: What the state carries as its result.
    """
    judged = list(verdicts)
    outcomes = [*(verdict.outcome for verdict in judged), *(_outcome(error) for error in errors)]
    worst = next((outcome for outcome in WORST_FIRST if outcome in outcomes), Outcome.PASS)
    lines = [*(_spoken(error) for error in errors), *_told(judged), *remarks]
    return state_of(worst, "; ".join(lines), data=data)


def state_of(outcome: Outcome, message: str, *, data: object = None) -> State[Any]:
    """The state that an outcome is shown as.

    Args:
        outcome: Of the whole run.
        message: Why; made printable and bounded here.
        data: What the state carries as its result.
    """
    said = escape.line(message, limit=MAXIMUM_MESSAGE_CHARACTERS)
    if outcome is Outcome.PASS:
        return Completed(message=said, data=data)
    return Failed(name=_NAMES.get(outcome, "Failed"), message=said, data=data)


def refused(error: LastgoodError) -> State[Any]:
    """The state of a run that could not do its work at all."""
    return final_state((), errors=(error,))


def told_plainly(function: Callable[Parameters, State[Any]]) -> Callable[Parameters, State[Any]]:
    """Decorate the function of a flow (under `@flow`): what lastgood raises on purpose becomes its final state.

    Neither that state nor any log of the process carries a secret.
    """

    @functools.wraps(function)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> State[Any]:
        clean_logs()
        try:
            return function(*args, **kwargs)
        except LastgoodError as error:
            return refused(error)
        except Exception as error:
            # Prefect makes a state and a log of a defect's words.
            redact_exception(error)
            raise

    # Prefect reads parameters off what it decorates; the names in their annotations are known in the flow's file alone.
    run.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]  # any callable may have one
    return run


def ended_at_once(
    function: Callable[Parameters, State[Any]],
) -> Callable[Parameters, Coroutine[Any, Any, State[Any]]]:
    """Decorate the function of a flow (under `@flow`): its run ends when its work does.

    Prefect joins the heartbeat thread of a synchronous flow, which looks up once a second; a coroutine's it only tells
    to stop. The work runs on the event loop's thread, which has nothing else to do.
    """

    @functools.wraps(function)
    async def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> State[Any]:
        return function(*args, **kwargs)

    return run


def _outcome(error: LastgoodError) -> Outcome:
    # What could not tell says so on the command line, too.
    return Outcome.INCONCLUSIVE if error.exit_code == Outcome.INCONCLUSIVE.exit_code else Outcome.FAIL


def _spoken(error: LastgoodError) -> str:
    return error.message + (f" (hint: {error.hint})" if error.hint else "")


def _told(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """The worst first; of many that passed, how many."""
    for outcome in WORST_FIRST:
        alike = [verdict for verdict in verdicts if verdict.outcome is outcome]
        if outcome is Outcome.PASS and len(alike) > MAXIMUM_PASSES_NAMED:
            yield f"{len(alike)} passed"
        else:
            yield from map(_reasons, alike)


def _reasons(verdict: Verdict) -> str:
    said = f"{verdict.subject}: {verdict.outcome.value.replace('_', ' ')}"
    if verdict.outcome is Outcome.PASS:
        return said
    findings = verdict.findings
    why = [f"{finding.reason.value} ({finding.offender})" for finding in findings[:MAXIMUM_FINDINGS_NAMED]]
    if len(findings) > MAXIMUM_FINDINGS_NAMED:
        why.append(f"{len(findings) - MAXIMUM_FINDINGS_NAMED} more findings")
    if not findings:
        # Without a finding it is the checks that could not be made, or were not, which say why.
        why = [f"{check.name}: {check.detail}" for check in verdict.checks if check.outcome is verdict.outcome][
            :MAXIMUM_FINDINGS_NAMED
        ]
    return f"{said}: {', '.join(why)}" if why else said
