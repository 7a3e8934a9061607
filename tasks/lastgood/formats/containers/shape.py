"""How deep and how large a description is, counted without recursion, and the tensors in it.

Decides what may be handed to code that recurses. Rules: containers hold no cycle, are nested at most `MAXIMUM_DEPTH`
deep, and written out with nothing shared have at most `MAXIMUM_EXPANDED` values: lists of twins of twins are small in
memory and endless to walk. What an `ObjectStub` holds is counted apart, so a walk that enters one counts its own depth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from lastgood.formats.containers.machine import TooMuch, Unlawful
from lastgood.formats.containers.stubs import ArrayStub, ObjectStub, TensorStub

__all__ = ["MAXIMUM_DEPTH", "MAXIMUM_EXPANDED", "Path", "check_shape", "tensors_in"]

MAXIMUM_DEPTH = 200
MAXIMUM_EXPANDED = 50_000_000

Path: TypeAlias = tuple[Any, ...]
"""Keys and indexes that lead from the root to a value."""

_CONTAINERS = (dict, list, tuple, set, frozenset)


def check_shape(root: Any) -> None:
    """Refuse what nobody could walk.

    Raises:
        Unlawful: A cycle of containers, too deep, or too large once written out.
    """
    roots: list[Any] = [root]
    measured: dict[int, tuple[int, int]] = {}  # id → depth, values; the stubs keep everything alive meanwhile
    seen: set[int] = set()
    while roots:
        value = roots.pop()
        if isinstance(value, _CONTAINERS):
            _measure(value, measured, roots)
        elif isinstance(value, ObjectStub | ArrayStub) and id(value) not in seen:
            seen.add(id(value))
            roots.extend(_parts(value))


def _parts(stub: ObjectStub | ArrayStub) -> list[Any]:
    if isinstance(stub, ArrayStub):
        return [stub.objects]
    pairs = [part for entry in stub.entries for part in entry]
    return [stub.type, stub.arguments, stub.keywords, stub.state, stub.items, pairs]


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.keys()
        yield from value.values()
    else:
        yield from value


def _measure(root: Any, measured: dict[int, tuple[int, int]], roots: list[Any]) -> None:
    """Depth and size of a container and of all below it; the stubs met on the way become roots of their own."""
    if id(root) in measured:
        return
    path = [(root, _children(root), [1, 1])]
    open_ = {id(root)}
    while path:
        value, children, tally = path[-1]
        for child in children:
            if not isinstance(child, _CONTAINERS) or not child:
                tally[1] += 1
                if isinstance(child, ObjectStub | ArrayStub):
                    roots.append(child)
            elif (known := measured.get(id(child))) is not None:
                _add(tally, known)
            elif id(child) in open_:
                raise Unlawful("a container holds itself")
            elif len(path) >= MAXIMUM_DEPTH:
                raise TooMuch(f"nested too deeply: expected at most {MAXIMUM_DEPTH} levels")
            else:
                path.append((child, _children(child), [1, 1]))
                open_.add(id(child))
                break
        else:
            path.pop()
            open_.discard(id(value))
            measured[id(value)] = (tally[0], tally[1])
            if path:
                _add(path[-1][2], measured[id(value)])


def _add(tally: list[int], child: tuple[int, int]) -> None:
    tally[0] = max(tally[0], child[0] + 1)
    tally[1] += child[1]
    if tally[0] > MAXIMUM_DEPTH:
        raise TooMuch(f"nested too deeply: expected at most {MAXIMUM_DEPTH} levels")
    if tally[1] > MAXIMUM_EXPANDED:
        raise TooMuch(f"too large once written out: expected at most {MAXIMUM_EXPANDED} values")


def tensors_in(value: Any) -> Iterator[tuple[Path, TensorStub]]:
    """The tensors of a checked description in order, each with the keys that lead to it; objects are not entered."""
    waiting: list[tuple[Path, Any]] = [((), value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, TensorStub):
            yield path, value
        elif isinstance(value, dict):
            waiting.extend(((*path, key), item) for key, item in reversed(value.items()))
        elif isinstance(value, list | tuple):
            waiting.extend(((*path, index), value[index]) for index in reversed(range(len(value))))
