"""Who this process is among the ranks, and the few small collectives that registered state needs.

Decides nothing about checkpoints. Rule: a collective is always reached by every rank; a rank that failed before it
sends its failure instead of leaving the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

import torch.distributed

from lastgood import errors
from lastgood.errors import LastgoodError, RegistrationError

__all__ = ["RankIdentity", "Ranks"]

_Value = TypeVar("_Value")
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankIdentity:
    """A stable name of one rank: rank-specific state is saved under it and goes back to nobody else.

    Args:
        rank: 0 ≤ rank < world_size.
        world_size: Number of ranks of the whole job.
        coordinates: Axis → index within it, e.g. `{"data_parallel": 3, "tensor_parallel": 0}`; may be empty.
    """

    rank: int
    world_size: int
    coordinates: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise RegistrationError(f"rank out of range: expected 0..{self.world_size - 1}, found {self.rank}")
        object.__setattr__(self, "coordinates", MappingProxyType(dict(sorted(self.coordinates.items()))))

    @classmethod
    def current(cls, coordinates: Mapping[str, int] | None = None) -> RankIdentity:
        """This process's identity in the default process group, or rank 0 of 1 where there is none."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        else:
            rank, world_size = 0, 1
        return cls(rank=rank, world_size=world_size, coordinates=coordinates or {})

    @property
    def file_stem(self) -> str:
        """`rank-00007`: the name of this rank's file of a component."""
        return f"rank-{self.rank:05d}"


class Ranks:
    """Object collectives over a process group; trivial when there is one rank.

    Args:
        identity: This rank.
        group: Any group that spans the job and can carry small objects; the default group if None.
    """

    def __init__(self, identity: RankIdentity, group: Any = None) -> None:
        self._identity = identity
        self._group = group
        if identity.world_size > 1 and not torch.distributed.is_initialized():
            raise RegistrationError(
                f"process group missing: rank {identity.rank} of {identity.world_size} registered its state "
                "before torch.distributed was initialised"
            )

    def gather(self, produce: Callable[[], _Value]) -> list[_Value]:
        """Give every rank what each rank produced, in rank order.

        Raises:
            LastgoodError: Some rank's `produce` failed; every rank raises, naming it.
        """
        if self._identity.world_size == 1:
            return [produce()]
        return self._exchange(_attempt(produce))

    def together(self, produce: Callable[[], _Value]) -> _Value:
        """Return what this rank produced, once every rank has; values stay where they are.

        Raises:
            LastgoodError: Some rank's `produce` failed; every rank raises, naming it.
        """
        if self._identity.world_size == 1:
            return produce()
        succeeded, value = _attempt(produce)
        self._exchange((succeeded, None if succeeded else value))
        produced: _Value = value
        return produced

    def distribute(self, produce: Callable[[], _Value], decide: Callable[[list[_Value]], list[_Answer]]) -> _Answer:
        """Let the coordinator turn what every rank produced into one answer a rank, and return this rank's.

        Raises:
            LastgoodError: `produce` failed on some rank, or `decide` on the coordinator; every rank raises.
        """
        if self._identity.world_size == 1:
            return decide([produce()])[0]
        coordinator = self._identity.rank == 0
        answers: list[Any] = [None] * self._identity.world_size
        attempts: list[Any] | None = [None] * self._identity.world_size if coordinator else None
        torch.distributed.gather_object(_attempt(produce), attempts, group=self._group, group_dst=0)
        if attempts is not None:
            gathered = attempts
            succeeded, result = _attempt(
                lambda: decide([_accept(rank, attempt) for rank, attempt in enumerate(gathered)])
            )
            answers = [(True, part) for part in result] if succeeded else [(False, result)] * len(answers)
        received: list[Any] = [None]
        torch.distributed.scatter_object_list(
            received, answers if coordinator else None, group=self._group, group_src=0
        )
        answer: _Answer = _accept(0, received[0])
        return answer

    def _exchange(self, attempt: tuple[bool, Any]) -> list[Any]:
        answers: list[Any] = [None] * self._identity.world_size
        torch.distributed.all_gather_object(answers, attempt, group=self._group)
        return [_accept(rank, answer) for rank, answer in enumerate(answers)]


def _attempt(produce: Callable[[], Any]) -> tuple[bool, Any]:
    try:
        return True, produce()
    except Exception as error:  # noqa: BLE001 - the other ranks wait for this one's answer: it must be sent, then raised
        return False, (type(error).__name__, str(error))


def _accept(rank: int, answer: tuple[bool, Any]) -> Any:
    succeeded, value = answer
    if succeeded:
        return value
    name, text = value
    # An error of ours stays what it was on every rank, so that all end with the same exit code.
    kind = getattr(errors, name, LastgoodError) if name in errors.__all__ else LastgoodError
    raise kind(f"rank {rank} failed while state was gathered: {name}: {text}")
