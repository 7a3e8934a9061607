"""Walking live objects: by name from given roots, over everything alive, and up to whoever holds an object.

Decides which objects can be seen and what a place is called. Leaves what they mean to `audit`. Rules: nothing is
called, only attributes that lie in dictionaries, slots and containers are followed; every walk has a named bound.
"""

from __future__ import annotations

import functools
import gc
import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

__all__ = ["alive", "frame_values", "holders", "is_library", "reach"]

MAXIMUM_WALK = 500_000
MAXIMUM_HOLDERS = 2_000
_REFERENTS_AT_ONCE = 10_000
_TRACKED = 1 << 14  # Py_TPFLAGS_HAVE_GC: the collector knows objects of this type
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), type, ModuleType, torch.Tensor, torch.dtype)


def reach(
    roots: Iterable[tuple[str, object]], descend: Callable[[object], bool] = lambda _: True
) -> Iterator[tuple[str, object]]:
    """Every object that can be reached from the roots, with the first path found to it.

    Args:
        roots: (name, object).
        descend: Whether to look inside an object; asked once for each.
    """
    queue = deque(roots)
    seen: set[int] = set()
    while queue and len(seen) < MAXIMUM_WALK:
        path, thing = queue.popleft()
        if id(thing) in seen or isinstance(thing, _LEAVES):
            continue
        seen.add(id(thing))
        yield path, thing
        if descend(thing):
            queue.extend(_inside(path, thing))


def _inside(path: str, thing: object) -> Iterator[tuple[str, object]]:
    if isinstance(thing, Mapping) and isinstance(thing, dict):
        for key, value in list(thing.items()):
            yield f"{path}[{key!r}]" if isinstance(key, str | int) else f"{path}[…]", value
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        for number, value in enumerate(list(thing)):
            yield f"{path}[{number}]", value
    elif isinstance(thing, MethodType):
        yield path, thing.__self__
    elif isinstance(thing, FunctionType):
        for cell in thing.__closure__ or ():
            try:
                yield f"{path}.<closure>", cell.cell_contents
            except ValueError:  # the cell is not filled yet
                continue
    for name, value in _attributes(thing):
        yield f"{path}.{name}", value


def _attributes(thing: object) -> Iterator[tuple[str, object]]:
    try:
        attributes = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        attributes = {}
    if isinstance(attributes, dict):
        yield from list(attributes.items())
    for kind in type(thing).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            member = kind.__dict__.get(name)
            if member is not None and hasattr(member, "__get__") and name not in ("__dict__", "__weakref__"):
                try:
                    yield name, member.__get__(thing, type(thing))
                except AttributeError:  # the slot is empty
                    continue


def alive(kinds: tuple[type, ...]) -> list[Any]:
    """Every live object of these kinds, those that the collector does not track itself included."""
    containers = gc.get_objects()
    # A heap has a million objects and a few thousand types, so the question is put to the types.
    wanted = {kind for kind in set(map(type, containers)) if issubclass(kind, kinds)}
    found = {id(thing): thing for thing in containers if type(thing) in wanted}
    untracked = {kind for kind in kinds if not _is_tracked(kind)}
    for start in range(0, len(containers), _REFERENTS_AT_ONCE) if untracked else ():
        referents = gc.get_referents(*containers[start : start + _REFERENTS_AT_ONCE])
        found.update({id(thing): thing for thing in referents if type(thing) in untracked})
    return list(found.values())


def _is_tracked(kind: type) -> bool:
    flags: int = kind.__flags__
    return bool(flags & _TRACKED)


def frame_values() -> Iterator[tuple[str, object]]:
    """The local variables of every function that is running, in every thread."""
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            ours = str(frame.f_globals.get("__name__")).startswith("lastgood.state.")
            if not ours and frame.f_locals is not frame.f_globals:  # a module's own names are told as such
                for name, value in list(frame.f_locals.items()):
                    yield f"local {name} of {frame.f_code.co_qualname}", value
            frame = frame.f_back


def holders(thing: object) -> Iterator[tuple[str, str]]:
    """(module, attribute) of the module-level names through which an object is held, directly or by a few steps.

    A walk upwards costs a pass over the heap a step, so it is only taken for the few objects that nobody owns.
    """
    modules: dict[int, str] = {}
    for name, module in list(sys.modules.items()):
        modules.setdefault(id(getattr(module, "__dict__", None)), name)  # the first name is not an alias
    level: list[object] = [thing]
    seen = {id(thing), id(level)}
    for _ in range(6):
        above = gc.get_referrers(*level)
        seen.add(id(above))
        following: list[object] = []
        for referrer in above:
            if id(referrer) in seen or isinstance(referrer, FrameType):
                continue
            seen.add(id(referrer))
            if id(referrer) in modules and isinstance(referrer, dict):
                ids = {id(one) for one in level}
                for attribute, value in list(referrer.items()):
                    if id(value) in ids:
                        yield modules[id(referrer)], str(attribute)
            else:
                following.append(referrer)
        seen.update((id(following), id(level)))
        level = following
        if not level or len(seen) > MAXIMUM_HOLDERS:
            return


def is_library(module_name: str, training_packages: frozenset[str]) -> bool:
    """Whether a module is the standard library's or an installed package's that is not part of the training code."""
    if module_name == "__main__" or module_name.partition(".")[0] in training_packages:
        return False
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return file is None or str(file).startswith(_library_paths(tuple(sys.path)))


@functools.lru_cache(maxsize=8)
def _library_paths(search_path: tuple[str, ...]) -> tuple[str, ...]:
    """Where installers put packages: this interpreter's own places, and whatever else on the path holds their metadata.

    An image's packages under a virtual environment that sees them, a user's site and `pip install --target` are none of
    the interpreter's own places. An editable checkout keeps its metadata elsewhere, and so does a working directory.
    """
    own = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    others = {entry for entry in search_path if entry and next(Path(entry).glob("*.dist-info"), None) is not None}
    return tuple(f"{path.rstrip('/')}/" for path in own | others)
