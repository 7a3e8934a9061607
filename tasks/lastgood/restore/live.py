"""What the live run did in the very steps that a restore repeats.

Decides which life is the control: the one that made the generation, for only it went on without an interruption. Its
trace is evidence of production and may be absent, torn or of another version: that takes the control away and is said,
and never fails the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping

from lastgood.errors import FormatError, StoreError
from lastgood.location import Location
from lastgood.replica.trace import Step, TraceReader
from lastgood.restore.evidence import Request

__all__ = ["live_steps"]


def live_steps(location: Location, request: Request) -> tuple[Mapping[int, Mapping[int, Step]], str | None]:
    """Rank → completed step → the live run's record, for the steps of the request; and why there are none, if that
    is known.
    """
    incarnation = request.manifest.incarnation
    found: dict[int, dict[int, Step]] = {}
    wanted = request.smoke_steps
    try:
        reader = TraceReader(location.store.local_directory(location.keys.family))
        for rank in reader.ranks(incarnation):
            steps = reader.steps_between(incarnation, rank, wanted.start, wanted.stop - 1)
            if steps:
                found[rank] = dict(steps)
    except (FormatError, StoreError) as error:
        return {}, error.message
    return found, None
