"""A program that copies a family and is killed at the n-th call of the destination's store, or in the fetch before it.

Arguments: which call, source, destination. A call that fetched artifacts is killed with half of one more lying there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

from lastgood.copying import Selection, copy_family
from lastgood.location import Location, locate

MUTATING = frozenset({"create", "replace", "compare_and_swap", "prepare", "persist", "install", "discard", "delete"})


class Killing:
    """A store that kills this process before its n-th mutating call."""

    def __init__(self, store: Any, call: int) -> None:
        self._store = store
        self._left = call
        self._counting = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._store, name)
        if name not in MUTATING:
            return asked

        def counted(*arguments: Any, **options: Any) -> Any:
            with self._counting:
                self._left -= 1
                is_last = self._left == 0
            if is_last:
                if name == "persist":
                    (self._store.staging_path(arguments[0]).with_name("partial") / "half").write_bytes(b"half")
                os.kill(os.getpid(), signal.SIGKILL)
            return asked(*arguments, **options)

        return counted


def main() -> None:
    """Copy, and be killed."""
    source, target = locate(sys.argv[2]), locate(sys.argv[3])
    killing = Location(store=Killing(target.store, int(sys.argv[1])), keys=target.keys, generation=None)  # type: ignore[arg-type]
    copy_family(source, killing, Selection(newest=None))


if __name__ == "__main__":
    main()
