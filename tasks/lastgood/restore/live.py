"""What the live run did in the very steps that a restore repeats.

Decides which life is the control: the one that made the generation, for only it went on without an interruption. Its
trace is evidence of production and may be absent, torn or of another version: that takes the control away and is said,
and never fails the checkpoint.
"""

from __future__ import annotations

from lastgood.errors import FormatError, StoreError
from lastgood.location import Location
from lastgood.replica.shipping import traces_at_hand
from lastgood.replica.trace import TraceReader
from lastgood.restore.evidence import Control, Request

__all__ = ["read_control"]


def read_control(location: Location, request: Request) -> Control:
    """The live run's records of the steps of the request, as far as there are any."""
    incarnation = request.manifest.incarnation
    wanted = request.smoke_steps
    first, last = wanted.start, wanted.stop - 1
    try:
        with traces_at_hand(location, incarnation, first, last) as family:
            reader = TraceReader(family)
            ranks = reader.ranks(incarnation)
            steps = {rank: found for rank in ranks if (found := reader.steps_between(incarnation, rank, first, last))}
            started = reader.started(incarnation, ranks[0]) if ranks else None
    except (FormatError, StoreError) as error:
        return Control(trouble=error.message)
    return Control(steps=steps, settings=started.settings if started else {})
