"""One round of reconciling as Prefect tasks: pointers and leftovers, saves that no event announced, stale evidence.

Decides what a round shows and ends as; leaves what is removed and what is stale to `lastgood.reconcile`, and judging to
`verifying`. Rules: a family in trouble keeps nobody from the next one; stale evidence is an event and a line on the
page, since the run that found it did its work, and a run that is red every ten minutes is read by nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.logging import get_logger
from prefect.runtime import flow_run

from lastgood.errors import LastgoodError, StoreError, StoreTransientError
from lastgood.identity import GenerationId
from lastgood.reconcile import Stale, Tidied, find_stale, tidy
from lastgood.verdict import Outcome, Tier
from lastgood_prefect import artifacts, escape, events
from lastgood_prefect.settings import ConfiguredFamily, read_settings
from lastgood_prefect.states import final_state
from lastgood_prefect.stuck import Freed, Patience, find_elder, free_stuck_runs
from lastgood_prefect.verifying import Answer, verify

__all__ = ["Round", "conclude", "elder_at_work", "free_runs", "reconcile_family", "show"]

RETRY_DELAYS_SECONDS = (2.0, 10.0)
TIMEOUT = timedelta(hours=1)
MAXIMUM_NAMED = 20
"""Keys and generations of one family that the page names."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round did for one family."""

    family: ConfiguredFamily
    tidied: Tidied = field(default_factory=Tidied)
    answers: tuple[Answer, ...] = ()
    stale: tuple[Stale, ...] = ()
    errors: tuple[LastgoodError, ...] = ()


def reconcile_family(family: ConfiguredFamily, *, older_than: timedelta) -> Round:
    """Tidy a family, judge what has no verdict, and name stale evidence."""
    errors: list[LastgoodError] = []

    def attempt(work: Callable[[], _Answer], otherwise: _Answer) -> _Answer:
        try:
            return work()
        except LastgoodError as error:
            errors.append(error)
            return otherwise

    if not attempt(family.family.exists, False):
        return Round(family=family, errors=tuple(errors))  # nothing was saved there yet, or nobody can tell
    tidied = attempt(lambda: _result(tidy_family(family, older_than, return_state=True), Tidied), Tidied())
    nothing: tuple[GenerationId, ...] = ()
    answers = [verify(family, generation) for generation in attempt(family.family.unjudged, nothing)]
    # Asked after the others were judged: of a save that waited, all that it owes has been read by now.
    answers += [verify(family, generation) for generation in attempt(family.family.owing, nothing)]
    stale = attempt(lambda: _result(find_stale_evidence(family, return_state=True), tuple), ())
    return Round(family=family, tidied=tidied, answers=tuple(answers), stale=stale, errors=(*tidied.errors, *errors))


def _result(state: State[Any], kind: type[_Answer]) -> _Answer:
    """What a task of this module brought, or its error raised."""
    answer = state.result(raise_on_failure=False)
    if isinstance(answer, kind):
        return answer
    if isinstance(answer, LastgoodError):
        raise answer
    raise StoreError(f"no answer: {escape.line(state.message or str(state.name))}")


def _may_help(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    return isinstance(state.result(raise_on_failure=False), StoreTransientError)


@task(
    name="tidy-family",
    task_run_name="tidy {family.name}",
    tags=["sweep"],
    retries=len(RETRY_DELAYS_SECONDS),
    retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
    retry_condition_fn=_may_help,
    timeout_seconds=TIMEOUT.total_seconds(),
    cache_policy=NO_CACHE,
    persist_result=False,
)
def tidy_family(family: ConfiguredFamily, older_than: timedelta) -> State[Any]:
    """Mend pointers, give up publishes that nobody can finish, remove what they left."""
    try:
        tidied = tidy(family.location, older_than=older_than)
    except LastgoodError as error:
        return final_state((), errors=(error,), data=error)
    # What could not be removed was not asked for by anybody: it is on the page, and the rest was done.
    return final_state((), remarks=_done(tidied), data=tidied)


@task(
    name="find-stale-evidence",
    task_run_name="evidence of {family.name}",
    tags=["evidence"],
    retries=len(RETRY_DELAYS_SECONDS),
    retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
    retry_condition_fn=_may_help,
    timeout_seconds=TIMEOUT.total_seconds(),
    cache_policy=NO_CACHE,
    persist_result=False,
)
def find_stale_evidence(family: ConfiguredFamily) -> State[Any]:
    """Name the tiers whose evidence is older than the family's objectives, and say so on the event bus."""
    now = datetime.now(UTC)
    try:
        stale = find_stale(family.family, family.settings.objectives, now=now)
    except LastgoodError as error:
        return final_state((), errors=(error,), data=error)
    for one in stale:
        events.evidence_stale(
            family.name,
            tier=one.tier,
            age_seconds=one.age.total_seconds(),
            limit_seconds=one.limit.total_seconds(),
            message=one.message,
            now=now,
        )
    return final_state((), remarks=[one.message for one in stale], data=stale)


@task(
    name="free-stuck-runs",
    tags=["sweep"],
    timeout_seconds=300,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def free_runs(patience: Patience) -> tuple[Freed, ...]:
    """Call runs crashed that nobody will ever end; a server that does not answer keeps no family waiting."""
    try:
        return free_stuck_runs(patience, but=_own())
    except Exception as error:  # noqa: BLE001 - whatever the client raises; the families are what this run is for
        get_logger("lastgood").warning("stuck runs not freed: %s", escape.line(str(error)))
        return ()


def elder_at_work() -> str | None:
    """The name of a run that does the same already; None also when the server does not say."""
    own = _own()
    try:
        return find_elder(own) if own is not None else None
    except Exception as error:  # noqa: BLE001 - as above; two rounds at once do no harm
        get_logger("lastgood").warning("cannot tell who else reconciles: %s", escape.line(str(error)))
        return None


def _own() -> UUID | None:
    return UUID(flow_run.id) if flow_run.id is not None else None


def show(rounds: Sequence[Round], freed: Sequence[Freed]) -> None:
    """Put the round on the page of the run: one row a family and freed run, and the verdicts."""
    report = read_settings().report
    artifacts.show_table("reconcile", [_row(one) for one in rounds], description="What was reconciled")
    if freed:
        rows = [{"run": escape.markdown(run.name), "called crashed": escape.markdown(run.why)} for run in freed]
        artifacts.show_table("reconcile-runs", rows, description="Runs that nobody would have ended")
    for one in rounds:
        kept = [answer.kept for answer in one.answers if answer.kept is not None]
        artifacts.show_verdicts(
            one.family.name, one.family.location.store.uri, kept, tier=int(Tier.MANIFEST), report=report
        )


def conclude(rounds: Sequence[Round], freed: Sequence[Freed]) -> State[Any]:
    """The final state of a run that reconciled these families."""
    answers = [answer for one in rounds for answer in one.answers]
    remarks = [f"run {run.name} called crashed: {run.why}" for run in freed]
    for one in rounds:
        remarks += [f"{one.family.name}: {done}" for done in _done(one.tidied)]
        remarks += [stale.message for stale in one.stale]
    return final_state(
        (answer.verdict for answer in answers if answer.verdict is not None),
        errors=[
            *(error for one in rounds for error in one.errors),
            *(answer.error for answer in answers if answer.error is not None),
        ],
        remarks=remarks or ["nothing to reconcile"],
    )


def _done(tidied: Tidied) -> list[str]:
    counted = (
        (len(tidied.repaired), "pointers mended"),
        (len(tidied.burned), "dead publishes given up"),
        (len(tidied.removed), "leftovers removed"),
        (len(tidied.errors), "things not done"),
    )
    return [f"{count} {what}" for count, what in counted if count]


def _row(one: Round) -> dict[str, str]:
    outcomes = [answer.record.verdict.outcome for answer in one.answers if answer.record is not None]
    judged = [f"{outcomes.count(outcome)} {outcome.value}" for outcome in Outcome if outcome in outcomes]
    return {
        "family": escape.markdown(one.family.name),
        "judged": ", ".join(judged).replace("_", " "),
        "stale": _named([stale.message for stale in one.stale]),
        "mended": _named(one.tidied.repaired),
        "given up": _named([str(generation) for generation in one.tidied.burned]),
        "removed": _named(one.tidied.removed),
        "trouble": _named([error.message for error in one.errors]),
    }


def _named(texts: Sequence[str]) -> str:
    shown = [escape.markdown(text) for text in texts[:MAXIMUM_NAMED]]
    if len(texts) > len(shown):
        shown.append(f"and {len(texts) - len(shown)} more")
    return "; ".join(shown)
