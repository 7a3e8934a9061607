"""Which checkpoints in a family's directory belong to the branch that its last rollback gave up.

Decides by what the rollback saw lying there, by the seals that it cut, and by when files were written. Leaves what
lies there now to readers, and the words of a refusal to whoever asks. Rule: a name is free again when all of its files
are younger than what was given up under it (docs/protocol.md, ADR 0011).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from lastgood import documents
from lastgood.location import Location
from lastgood.markers import Claim
from lastgood.protocol import Survey
from lastgood.unsealed import is_given_up
from lastgood.verify.reading import read_document

__all__ = ["GivenUp"]


class GivenUp:
    """The names of one family. A seal that is kept is asked before it: such a name is not given up.

    Args:
        family: Its location.
        survey: What was found of it.

    Raises:
        FormatError: The newest decision is not lawful.
        StoreError: The store could not tell.
    """

    def __init__(self, family: Location, survey: Survey) -> None:
        self._family = family
        self._fenced = survey.fenced
        self._lay_there = _lay_there(family, survey)

    def holds(self, name: str) -> bool:
        """Whether a part of it lay there at the rollback, or is as old as a seal of that name that was cut.

        Raises:
            StoreError: The store could not tell.
        """
        store, keys = self._family.store, self._family.keys
        sealed = (store.last_changed(keys.commit(one)) for one in self._fenced if one.name == name)
        moments = [moment for moment in (self._lay_there.get(name), *sealed) if moment is not None]
        return bool(moments) and is_given_up(store, f"{keys.family}/{name}", max(moments))


def _lay_there(family: Location, survey: Survey) -> Mapping[str, datetime]:
    """Name → when the newest of its files was written, as the rollback found it."""
    if not survey.cut.rollback:
        return {}
    key = family.keys.claim(survey.cut.decided_by)
    claim = documents.parse(Claim, read_document(family.store, key) or b"", key)
    return claim.rollback.unsealed if claim.rollback is not None else {}
