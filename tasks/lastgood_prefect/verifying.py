"""Tier 1 as a Prefect task: one task verifies one generation, and keeps what it found.

Decides how often a gate asks again: only where the store said that asking again may help, a verdict that such trouble
left inconclusive included; the last try keeps what it has. Leaves what is wrong with a checkpoint to `lastgood.verify`,
and what a verdict changes to `lastgood.records`. Rules: whoever judges asks storage first under which attempt it does,
so of two gates at one generation the store takes one conclusive record; nothing is cached and no result is persisted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import TaskRun
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.context import TaskRunContext

from lastgood.errors import LastgoodError, StoreError, StoreTransientError
from lastgood.identity import GenerationId
from lastgood.records import Kept, Record
from lastgood.verdict import Tier, Verdict
from lastgood.verify import Depth
from lastgood_prefect import artifacts, escape, events
from lastgood_prefect.origin import current_origin
from lastgood_prefect.settings import ConfiguredFamily, read_settings
from lastgood_prefect.sharding import spread_reading
from lastgood_prefect.states import final_state

__all__ = ["Answer", "conclude", "due", "judge_once", "show", "verify", "verify_each", "verify_generation"]

MAXIMUM_GENERATIONS = 1000
NEWEST = 100
"""Whose evidence a run looks at, so that a family of many saves costs an event no more than one of few. Whatever came
out inconclusive longer ago is for the sweep, which looks at all of it.
"""
RETRY_DELAYS_SECONDS = (2.0, 10.0, 60.0)
TIMEOUT = timedelta(hours=6)
"""A terabyte at 50 MB/s; whoever reads more slowly has another trouble than this checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of one generation: it was judged, or skipped, or there is no verdict.

    Args:
        generation: Which; None: what is said is about the listing of generations.
        kept: The verdict, on record.
        skipped: Why there was nothing to judge.
        standing: The conclusive record for which it was skipped.
        error: Why there is no verdict.
    """

    generation: GenerationId | None
    kept: Kept | None = None
    skipped: str | None = None
    standing: Record | None = None
    error: LastgoodError | None = None

    @property
    def record(self) -> Record | None:
        """The record of the verdict that was reached, if there is one."""
        return self.kept.record if self.kept is not None else None

    @property
    def verdict(self) -> Verdict | None:
        """What is known of the generation now: a fail that stands is as red as one that was found."""
        known = self.record or self.standing
        return known.verdict if known is not None else None


def due(family: ConfiguredFamily, named: Sequence[GenerationId] = ()) -> Iterator[GenerationId]:
    """What a run is to judge: the generations that it names, else each without any record, and of the newest each
    without a conclusive verdict, oldest first, those committed meanwhile included; and then what owes a slice to the
    saves since. Each once.

    At most `MAXIMUM_GENERATIONS`: whoever saves faster than we judge must still see a run end and report.
    """
    tried = set(named)
    yield from named
    while not named and (
        fresh := family.family.unjudged(besides=tried, newest=NEWEST)[: MAXIMUM_GENERATIONS - len(tried)]
    ):
        for generation in fresh:
            tried.add(generation)
            yield generation
    yield from (one for one in family.family.owing()[:MAXIMUM_GENERATIONS] if one not in tried)


def verify(family: ConfiguredFamily, generation: GenerationId, depth: Depth = Depth.FULL) -> Answer:
    """Run the task for one generation; its answer, whatever it ended as.

    Raises:
        StoreError: The server gave no slot for it, as while it is down: nobody looked at the generation.
    """
    try:
        state: State[Any] = verify_generation(family, generation, depth, return_state=True)
    except ConcurrencySlotAcquisitionError as none:
        raise StoreError(
            f"no verdict: {generation}: {escape.line(str(none))}",
            hint="is the Prefect server up? its limits are under Concurrency in the UI",
        ) from none
    # `_sync`, which is not in its signature: Prefect would hand a coroutine flow a coroutine.
    answer = state.result(raise_on_failure=False, _sync=True)  # type: ignore[call-overload]
    if isinstance(answer, Answer):
        return answer
    # A timeout, or a defect of ours: its traceback is in the log of the task.
    error = StoreError(f"no verdict: {generation}: {escape.line(state.message or str(state.name))}")
    return Answer(generation=generation, error=error)


def verify_each(family: ConfiguredFamily, generations: Iterable[GenerationId], depth: Depth) -> list[Answer]:
    """Run the task for one generation after the other; trouble between them costs none of the verdicts before it."""
    answers: list[Answer] = []
    try:
        for generation in generations:
            answers.append(verify(family, generation, depth))
    except LastgoodError as error:
        answers.append(Answer(generation=None, error=error))
    return answers


def show(family: ConfiguredFamily, answers: Sequence[Answer]) -> None:
    """Put the verdicts on the page of the run."""
    kept = [answer.kept for answer in answers if answer.kept is not None]
    artifacts.show_verdicts(
        family.name, family.location.store.uri, kept, tier=int(Tier.MANIFEST), report=read_settings().report
    )


def conclude(answers: Sequence[Answer]) -> State[None]:
    """The final state of a run that has these answers."""
    skipped = [answer.skipped for answer in answers if answer.skipped is not None]
    if not answers:
        skipped.append("nothing to judge: conclusive evidence stands for every committed generation")
    return final_state(
        (answer.verdict for answer in answers if answer.verdict is not None),
        errors=[answer.error for answer in answers if answer.error is not None],
        remarks=skipped,
    )


def _may_help(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
    answer = state.result(raise_on_failure=False)
    return isinstance(answer, Answer) and isinstance(answer.error, StoreTransientError)


@task(
    name="verify-generation",
    task_run_name="verify {generation}",
    tags=["tier1"],
    retries=len(RETRY_DELAYS_SECONDS),
    retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
    retry_condition_fn=_may_help,
    timeout_seconds=TIMEOUT.total_seconds(),
    cache_policy=NO_CACHE,
    persist_result=False,
)
def verify_generation(family: ConfiguredFamily, generation: GenerationId, depth: Depth = Depth.FULL) -> State[Answer]:
    """Tier 1 of one generation, on record; the state of the task is the verdict's."""
    context = TaskRunContext.get()
    last = context is None or context.task_run.run_count > len(RETRY_DELAYS_SECONDS)
    answer = judge_once(family, generation, depth, last=last)
    return final_state(
        [answer.verdict] if answer.verdict is not None else [],
        errors=[answer.error] if answer.error is not None else [],
        remarks=[answer.skipped] if answer.skipped is not None else [],
        data=answer,
    )


def judge_once(family: ConfiguredFamily, generation: GenerationId, depth: Depth, *, last: bool = True) -> Answer:
    """Judge one generation if it is due, keep the verdict, and say so on the event bus.

    Args:
        family: Of the configuration.
        generation: Which.
        depth: How far to look; full evidence is due until a full verdict is on record.
        last: Keep a verdict even if asking the store again might make it conclusive.
    """
    try:
        return _judge(family, generation, depth, last)
    except LastgoodError as error:
        return Answer(generation=generation, error=error)


def _judge(family: ConfiguredFamily, generation: GenerationId, depth: Depth, last: bool) -> Answer:
    gate = family.family
    if gate.is_burned(generation):
        return Answer(generation=generation, skipped=f"{generation}: slot burned, nothing to judge")
    attempt = gate.due_attempt(generation, Tier.MANIFEST, full=depth is Depth.FULL)
    if attempt is None:
        standing = gate.standing_record(generation, Tier.MANIFEST, full=depth is Depth.FULL)
        outcome = standing.verdict.outcome.value if standing is not None else "judged"
        skipped = f"{generation}: skipped, conclusive evidence stands ({outcome})"
        return Answer(generation=generation, skipped=skipped, standing=standing)
    progress = _progress(family, generation)
    judged = gate.judge(generation, depth=depth, progress=progress, read=spread_reading(family, generation))
    progress.close()
    if judged.may_be_repeated and not last:
        unclear = [check for check in judged.verdict.checks if not check.outcome.is_conclusive]
        raise StoreTransientError(f"{generation}: " + "; ".join(f"{c.name}: {c.detail}" for c in unclear))
    kept = gate.keep(
        judged.verdict,
        generation,
        judged.started_at,
        judged.measurements,
        attempt=attempt,
        origin=current_origin(),
    )
    if attempt == 1:
        events.generation_committed(family.name, generation, uri=family.location.generation_uri(generation))
    events.announce(family.name, kept)
    return Answer(generation=generation, kept=kept)


def _progress(family: ConfiguredFamily, generation: GenerationId) -> artifacts.Progress:
    def total_bytes() -> int:
        lying = family.location.store.walk(family.location.keys.artifacts(generation))
        return sum(stored.bytes for stored in lying)

    key = artifacts.lawful_key("tier1-progress", family.name)
    return artifacts.Progress(key, f"Reading {escape.markdown(str(generation))}", total_bytes)
