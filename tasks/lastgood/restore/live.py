"""What the live run did in the very steps that a restore repeats.

Decides which life is the control: the one that made the generation, for only it went on without an interruption. A
published generation bears the life's number, a sealed one the nonce of the job that saved and sealed it in its COMMIT.
Its trace is evidence of production and may be absent, torn or of another version: that takes the control away and is
said, and never fails the checkpoint.
"""

from __future__ import annotations

from lastgood.errors import FormatError, StoreError
from lastgood.location import Location
from lastgood.manifest import Manifest
from lastgood.protocol.requests import MAXIMUM_PROTOCOL_DOCUMENT_BYTES
from lastgood.protocol.survey import read_commit
from lastgood.replica.shipping import traces_at_hand
from lastgood.replica.trace import LifeName, TraceReader
from lastgood.restore.evidence import Control, Request

__all__ = ["read_control"]


def read_control(location: Location, request: Request) -> Control:
    """The live run's records of the steps of the request, as far as there are any."""
    wanted = request.smoke_steps
    first, last = wanted.start, wanted.stop - 1
    try:
        life = _life(location, request.manifest)
        with traces_at_hand(location, life, first, last) as family:
            reader = TraceReader(family)
            ranks = reader.ranks(life)
            steps = {rank: found for rank in ranks if (found := reader.steps_between(life, rank, first, last))}
            started = reader.started(life, ranks[0]) if ranks else None
    except (FormatError, StoreError) as error:
        return Control(trouble=error.message)
    return Control(steps=steps, settings=started.settings if started else {})


def _life(location: Location, manifest: Manifest) -> LifeName:
    if manifest.seal is None:
        return manifest.incarnation
    key = location.keys.commit(manifest.id)
    data = location.store.get(key, limit_bytes=MAXIMUM_PROTOCOL_DOCUMENT_BYTES)
    return read_commit(data, manifest.id, key).nonce
