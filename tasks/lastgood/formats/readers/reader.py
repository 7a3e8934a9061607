"""What a reader of one framework's checkpoints answers.

Decides nothing. A reader must not raise on whatever a stranger's files hold: what it cannot make sense of is a finding
of its description. Only the store may stop it.
"""

from __future__ import annotations

from typing import Protocol

from lastgood.formats.description import Description
from lastgood.formats.root import Choice, Root
from lastgood.formats.source import Source

__all__ = ["Reader"]


class Reader(Protocol):
    """One framework, or a few that share a layout."""

    def recognises(self, source: Source) -> bool:
        """Whether it is a checkpoint of this framework, by names and at most one small file; asked in the order of
        `readers.READERS`, so what an earlier one takes need not be told apart here.

        Raises:
            StoreError: The store could not tell.
        """

    def describe(self, source: Source) -> Description:
        """What it is, what it holds, what is missing; it need not read payloads.

        Raises:
            StoreError: The store could not tell.
        """

    def choose(self, root: Root) -> Choice | None:
        """The framework's own rule over a directory of checkpoints; None where nothing there is named as by it.

        Raises:
            StoreError: The store could not tell.
        """
