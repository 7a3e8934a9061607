"""What lies in a family's directory and was not published by us: checkpoints that another framework wrote.

Decides by what a foreign checkpoint is known again, and when it counts as written anew after a rollback. Leaves what
they are to `formats`. Rules: a rollback lists them, for they belong to the branch that it cuts; one of them stays cut
while any file of it is as old as what lay there, so neither a link, another owner or mode, nor the rest of a save that
was under way makes a new one of it (docs/protocol.md, ADR 0011).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from lastgood.digest import hash_bytes
from lastgood.identity import FamilyKeys, GenerationId, is_lawful_key
from lastgood.stores.port import ObjectKind, Store, StoredObject

__all__ = ["is_given_up", "listing_digest", "unsealed"]


def unsealed(store: Store, keys: FamilyKeys) -> dict[str, datetime]:
    """Name → when the newest of its files was written, of all that is neither hidden nor a generation of ours.

    What was sealed is among them: it may have been written anew since, and a seal that is kept is asked first.

    Raises:
        StoreError: The store could not tell.
    """
    lying = store.names(keys.family)
    names = [name for name in (*lying.directories, *lying.files) if not name.startswith(".") and is_lawful_key(name)]
    newest = {}
    for name in names:
        if GenerationId.find(name) is None:
            found = _lying(store, f"{keys.family}/{name}")
            written = max((one.written_at for one in found if one.written_at is not None), default=None)
            if written is not None:
                newest[name] = written
    return newest


def is_given_up(store: Store, key: str, newest: datetime) -> bool:
    """Whether any file of a checkpoint is as old as what lay there: then it is that, or a mixture with it.

    Args:
        store: Where.
        key: Of its directory, or of the single file that it is.
        newest: When the newest of the files that lay there was written.

    Raises:
        StoreError: The store could not tell.
    """
    return any(one.written_at is None or one.written_at <= newest for one in _lying(store, key))


def listing_digest(store: Store, key: str) -> str:
    """A text that changes when a file comes, goes, is written anew, or has another length.

    Raises:
        StoreError: The store could not tell.
    """
    lines = [f"{one.kind} {one.bytes} {one.key}" for one in _lying(store, key)]
    changed = store.last_changed(key)
    return str(hash_bytes("\n".join([*sorted(lines), changed.isoformat() if changed else ""]).encode()))


def _lying(store: Store, key: str) -> Iterable[StoredObject]:
    top = store.stat(key)
    return [top] if top is not None and top.kind is not ObjectKind.OTHER else store.walk(key)
