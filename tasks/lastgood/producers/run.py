"""One life of a job whose framework saves by itself: what it did, step by step, beside what it saved.

    run = SealedRun("/runs/llm")
    ...                                           # the framework builds, and loads what it resumes
    run.resumed(model, [optimizer], step=step, path=asked.resume)
    while step < run.last_step(asked.steps):
        ...                                       # forward, backward, optimizer.step()
        run.step(step, loss)
        if step % 100 == 0:
            accelerator.save_state(path)
            run.save(path)
    run.close()

Decides what of such a job goes into its trace, and by which name a restore finds it: a nonce that is drawn for this
life and stands in the COMMIT of each of its seals, since it claims no number. Leaves sealing to `saving`. Rules: every
rank calls everything; a replica saves where it was told, or does not begin; it trains once, and ends where its script
trains again; a save that could not be sealed stops every rank; a life vouches for no checkpoint that it resumed from,
nor for any once it went back. Source: ADR 0013.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any, ClassVar, Final, NoReturn

from lastgood.errors import LastgoodError, StoreError, UsageError
from lastgood.formats.sealing import Sealed
from lastgood.identity import GenerationId
from lastgood.location import Location, locate_place
from lastgood.producers.observing import Arriving, Updates, count_tensors, is_on_device
from lastgood.producers.ranks import JobRanks
from lastgood.producers.saving import seal_save
from lastgood.replica.contract import ReplicaEnvironment
from lastgood.replica.events import Discovered, Loaded, Mark, Phase, Step, StopReason, measured
from lastgood.replica.shipping import TraceHome
from lastgood.replica.tracing import RunTrace
from lastgood.text import printable

__all__ = ["SealedRun", "admit"]

_log = logging.getLogger("lastgood.trace")

REFUSED: Final = "refused: "
"""What rank 0 tells the others in the place of a generation; no generation begins like it."""


class SealedRun:
    """One rank's life.

    Args:
        directory: Where the framework saves: the family, as a path or `s3://…`.

    Raises:
        UsageError: This process is a replica and would save elsewhere than it was told; or no lawful directory; or the
            ranks have not joined yet.
        StoreError: The trace cannot be written.
        SystemExit: This process is a replica that has trained already: see `admit`.
    """

    of_replica: ClassVar[SealedRun | None] = None
    """The one life of this process, if that is a replica: a second one would look as if it had died in between."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        told = ReplicaEnvironment.from_environ(os.environ)
        self.family = _family(os.fspath(directory))
        admit(directory)
        self._ranks = JobRanks.joined(os.environ)
        self._is_replica = told.is_replica
        self._stop_step = told.stop_step
        self.nonce = self._ranks.broadcast(secrets.token_hex(16))
        self._step = self._began_step = 0
        self._resumed_step = -1
        self._has_gone_back = self._has_warned = False
        self._began_ns = time.monotonic_ns()
        self._updates: Updates | None = None
        self._trace = self._begin() if told.trace else None
        if told.is_replica:
            SealedRun.of_replica = self

    def last_step(self, wished: int) -> int:
        """The completed step to stop after: the job's own last one, or the one that a restore asks for."""
        return wished if self._stop_step is None else min(wished, self._stop_step)

    def stops_at(self, step: int) -> bool:
        """Whether a restore asked to stop, and to save, once this step is completed."""
        return self._stop_step is not None and step >= self._stop_step

    @property
    def completed(self) -> int:
        """The last completed step that this life was told of."""
        return self._step

    @property
    def is_done(self) -> bool:
        """Whether a restore has what it asked for."""
        return self.stops_at(self._step)

    def resumed(
        self, model: Any, optimizers: Iterable[Any], *, step: int, path: str | os.PathLike[str] | None = None
    ) -> None:
        """Say where this life stands, once the framework has loaded what it resumes, or nothing.

        Said again before any step was made, it takes the place of what was said before: a framework may build anew
        once its first batch did not fit into memory.

        Args:
            model: A module; counted.
            optimizers: Looked at from now on; torch's, or what the framework wrapped around them.
            step: Completed; 0 for a fresh start.
            path: What was resumed; None for a fresh start.

        Raises:
            UsageError: The ranks have joined since this was made.
            SystemExit: A replica goes back.
        """
        self._ranks.require_unchanged()
        if self._updates is not None:
            self._updates.close()
            if not self._began_step == self._step == step:
                self._goes_back(step)
        self._updates = Updates(optimizers)
        self._step = self._began_step = step
        self._resumed_step = step if path else -1
        # A name in a directory below, or that directory itself: of `checkpoint-500/` the same as of `checkpoint-500`.
        name = PurePath(os.fspath(path)).name if path else None
        found = self._ranks.broadcast(self._generation(name, step) if name and not self._ranks.rank else None)
        generation = (found or name) if name else None
        if self._trace is None:
            return
        self._trace.write(
            Discovered(
                at=Mark.now(), spans=self._trace.timeline.take(), generation=generation, step=step if name else None
            )
        )
        if generation is None:
            return
        # Frameworks build and load in one go, and tell nobody where the one ends.
        self._trace.timeline.add(Phase.LOAD, self._began_ns, time.monotonic_ns())
        self._trace.write(
            Loaded(
                at=Mark.now(),
                spans=self._trace.timeline.take(),
                generation=generation,
                step=step,
                keys={"model": count_tensors(model), "optimizer": self._updates.count_states()},
                expectations=None,
                learning_rates=self._updates.rates(),
                optimizer_steps=self._updates.steps(),
                scalars={},
            )
        )

    def step(
        self,
        step: int,
        *losses: Any,
        grad_norm: float | None = None,
        sample_ids: Sequence[Sequence[str | int]] = (),
    ) -> None:
        """Say that an optimizer step is completed.

        Args:
            step: The completed step; of the same number again nothing is told, so that a loop may call this in every
                microbatch.
            losses: Of this rank's microbatches in the step, in their order: numbers, or tensors of one element, which
                are read without waiting for a device.
            grad_norm: Before clipping, if the loop has it on the host.
            sample_ids: One sequence a microbatch, if the loop knows them.

        Raises:
            UsageError: No loss.
            SystemExit: A replica goes back.
        """
        if not self._completes(step) or self._trace is None or self._updates is None:
            return
        if not losses:
            raise UsageError(f"step without a loss: {step}", hint="hand over what the model or the loop computed")
        at, spans = self._trace.step_ends()
        rates, made = self._updates.take()
        counted = self._updates.steps()
        loss = Arriving(losses)
        ids = tuple(tuple(one) for one in sample_ids)

        def record() -> Step:
            return Step(
                at=at,
                spans=spans,
                step=step,
                loss=measured(loss.get()),
                grad_norm=None if grad_norm is None else measured(grad_norm),
                learning_rates=rates,
                sample_ids=ids,
                optimizer_steps=counted,
                scalars={"skipped": int(not made)},
            )

        if is_on_device():
            self._trace.step_later(record)
        else:
            self._trace.write(record())

    def untold(self, step: int, why: str) -> None:
        """Say that an optimizer step is completed of which nothing can be traced; the log says why, once.

        Raises:
            SystemExit: A replica goes back.
        """
        if self._completes(step):
            self._warn(f"no step is traced: {why}")

    def save(self, path: str | os.PathLike[str], *, step: int | None = None) -> Sealed | None:
        """Seal what the framework just saved, as `seal_save` does, and say so.

        Raises:
            SealRefused: It cannot be resumed as it lies there (rank 0).
            StoreError: It could not be flushed or sealed; or, on another rank, rank 0 raised.
            UsageError: The ranks have joined since this was made, or parted.
        """
        self._ranks.require_unchanged()
        try:
            sealed = seal_save(path, step=step, life=self.nonce if self._vouches else None)
        except LastgoodError as error:
            # The other ranks wait for an answer, and train no further than the save that failed.
            self._ranks.broadcast(REFUSED + printable(error.message)[:1000])
            self._fail(error.message)
            raise
        told = self._ranks.broadcast(str(sealed.location.require_generation()) if sealed is not None else None)
        if told.startswith(REFUSED):
            self._fail(told.removeprefix(REFUSED))
            raise StoreError(f"rank 0 could not seal {os.fspath(path)}: {told.removeprefix(REFUSED)}")
        if self._trace is not None:
            self._trace.saved(GenerationId.parse(told))
        return sealed

    def close(self) -> None:
        """End this life; it trained to its end, or to where a restore asked it to stop."""
        if self._updates is not None:
            self._updates.close()
        if self._trace is not None:
            self._trace.stopped(StopReason.FINISHED, self._step)
            self._trace.close()

    def _fail(self, message: str) -> None:
        """Say that this rank ends for a save that could not be sealed, so that a restore knows why it did."""
        if self._trace is not None:
            self._trace.stopped(StopReason.FAILED, self._step, printable(message))

    @property
    def _vouches(self) -> bool:
        """Whether this life made what it saves now: of what it resumed, it went on as every restore does."""
        return not self._has_gone_back and self._step > self._resumed_step

    def _completes(self, step: int) -> bool:
        """Whether this step is told for the first time."""
        if step == self._step:
            return False  # a microbatch of the next one; it was told once, when it was completed
        if step < self._step:
            self._goes_back(step)
        elif step > self._step + 1:
            self._warn(f"step {step} comes after step {self._step}, and a restore asks for each")
        self._step = step
        return True

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("no restore of what this job saves will be proven (tier 2): %s", why)

    def _goes_back(self, step: int) -> None:
        """What follows resumed from what this life saved: to agree with that would prove nothing, so it is not told."""
        if self._is_replica:
            message = f"replica goes back: step {step} comes after step {self._step}"
            self._fail(message)
            _end_replica(UsageError.exit_code, f"{message}; a restore follows one training, from what it resumes on")
        self._has_gone_back = True
        if self._trace is not None:
            _log.warning("no step is traced any more: step %d comes after step %d in one life", step, self._step)
            self._trace.close()
            self._trace = None

    def _begin(self) -> RunTrace:
        home = TraceHome(self.family, self.nonce, self._ranks.rank)
        return RunTrace(
            home.family,
            0,
            life=self.nonce,
            rank=self._ranks.rank,
            world_size=self._ranks.world_size,
            lag_steps=1 if is_on_device() else 0,
            ship=home.ship,
        )

    def _generation(self, name: str, step: int) -> str | None:
        """The generation that lies under a name, if it was sealed; of several, after a rollback, the newest."""
        commits = map(GenerationId.find, self.family.store.names(self.family.keys.commits).files)
        found = [one for one in commits if one is not None and (one.name, one.step) == (name, step)]
        return str(max(found)) if found else None


def admit(directory: str | os.PathLike[str]) -> None:
    """See that a replica saves where it was told, and trains once.

    Raises:
        UsageError: It would save elsewhere; or no lawful directory.
        SystemExit: It has trained, or is about to. Once it has done what a restore asked for, whatever its script does
            then is no part of the restore and ends well. Before that nobody knows which training was meant, so that
            its exit code leaves the checkpoint undecided.
    """
    told, family = ReplicaEnvironment.from_environ(os.environ), _family(os.fspath(directory))
    earlier = SealedRun.of_replica
    if not told.is_replica:
        return
    if earlier is not None and earlier.is_done:
        _end_replica(0, f"replica ends: what was asked for is done, and its script trains again: {family.family_uri}")
    elsewhere = told.family is not None and _family(told.family).family_uri != family.family_uri
    if elsewhere and earlier is None:
        raise UsageError(
            f"replica saves elsewhere: expected {told.family}, found {family.family_uri}",
            hint="its framework's clean-up would reach what lies there: put {family} into the replica's command",
        )
    if earlier is not None:
        _end_replica(
            UsageError.exit_code,
            f"replica trains twice in one process: expected one, in {earlier.family.family_uri}, found another "
            f"after step {earlier.completed}, in {family.family_uri}; train once where LASTGOOD_REPLICA is set",
        )


def _end_replica(code: int, message: str) -> NoReturn:
    """End this process: an exception of ours would be taken for a crash, and so for a fail of the checkpoint."""
    _log.warning("%s", message)
    raise SystemExit(code)


def _family(directory: str) -> Location:
    """The family that a checkpoint in this directory belongs to once it is sealed."""
    family = locate_place(f"{directory.rstrip('/') or '/'}/checkpoint").family
    if family is None:
        raise UsageError(f"not a directory of checkpoints: {directory}: expected <root>/<family>")
    return family
