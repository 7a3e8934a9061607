"""Each opcode of a pickle, and the loop over them.

Decides what each opcode does to the stack and memo of a `Machine`. Leaves numbers and text to `literals`. Rules:
opcodes are those of protocols 0 to 5; the extension registry, textual persistent ids and out-of-band buffers are
refused. Source: `pickletools` describes each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from struct import Struct
from typing import Any

from lastgood.formats.containers.literals import LITERALS, Handler, decimal
from lastgood.formats.containers.machine import MAXIMUM_NAME_CHARACTERS, Machine, TooMuch, Unlawful
from lastgood.formats.containers.reading import beyond, malformed
from lastgood.formats.containers.stubs import GlobalStub, ObjectStub

__all__ = ["execute"]

MAXIMUM_MARKS = 1_000  # one or two for each level of nesting
MAXIMUM_MEMO_GAP = 1_000
_HIGHEST_PROTOCOL = 5
_MAXIMUM_REASON = 120
_UNSET = object()
_UNSIGNED_4 = Struct("<I")

_HANDLERS: list[Handler | None] = [LITERALS.get(opcode) for opcode in range(256)]
_STOP = ord(".")


def execute(machine: Machine) -> Any:
    """Execute up to STOP and return the one value left; `machine.position` is then the first byte behind it.

    Raises:
        FormatError: The stream is no lawful pickle.
        ReadLimitError: It exceeds a limit.
    """
    data, place = machine.data, machine.position
    try:
        for _ in range(machine.limits.opcodes):
            place = machine.position
            machine.position = place + 1
            handler = _HANDLERS[data[place]]
            if handler is None:
                if data[place] == _STOP:
                    return _result(machine)
                raise Unlawful(f"opcode unknown or refused: {data[place : place + 1]!r}")
            handler(machine)
        raise TooMuch(f"too many opcodes: expected at most {machine.limits.opcodes}")
    except TooMuch as error:
        raise beyond(machine.where, "pickle not read", f"byte {place}: {error}") from None
    except Unlawful as error:
        reason = str(error)
    except IndexError:
        reason = "ends, or pops, too early"
    except (ValueError, OverflowError, struct.error) as error:  # a UnicodeError is a ValueError
        reason = f"operand malformed: {str(error)[:_MAXIMUM_REASON]}"  # it quotes the operand
    raise malformed(machine.where, "pickle refused", f"byte {place}: {reason}")


def _result(machine: Machine) -> Any:
    if len(machine.stack) != 1 or machine.outer:
        raise Unlawful(f"expected one value at STOP, found {len(machine.stack)} and {len(machine.outer)} marks")
    return machine.stack.pop()


def _on(*opcodes: bytes) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        for opcode in opcodes:
            _HANDLERS[opcode[0]] = handler
        return handler

    return register


# Framing and stack


@_on(b"\x80")
def _protocol(machine: Machine) -> None:
    machine.protocol = machine.number(1)
    if machine.protocol > _HIGHEST_PROTOCOL:
        raise Unlawful(f"protocol unknown: expected at most {_HIGHEST_PROTOCOL}, found {machine.protocol}")


@_on(b"\x95")
def _frame(machine: Machine) -> None:
    length = machine.number(8)
    if length > len(machine.data) - machine.position:
        raise Unlawful(f"frame beyond the end: expected {length} bytes, found {len(machine.data) - machine.position}")


@_on(b"(")
def _mark(machine: Machine) -> None:
    if len(machine.outer) >= MAXIMUM_MARKS:
        raise TooMuch(f"nested too deeply: expected at most {MAXIMUM_MARKS} marks")
    machine.charge(64)
    machine.outer.append(machine.stack)
    machine.stack = []


@_on(b"0")
def _pop(machine: Machine) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()


@_on(b"1")
def _pop_mark(machine: Machine) -> None:
    machine.pop_mark()


@_on(b"2")
def _duplicate(machine: Machine) -> None:
    machine.stack.append(machine.stack[-1])


# Memo


def _remember(machine: Machine, index: int) -> None:
    memo, value = machine.memo, machine.stack[-1]
    if index < len(memo):
        memo[index] = value
        return
    gap = index - len(memo)
    if gap > MAXIMUM_MEMO_GAP:
        raise Unlawful(f"memo index jumps: expected at most {len(memo) + MAXIMUM_MEMO_GAP}, found {index}")
    machine.charge(8 * gap)  # entries that are put one after another cost a byte of the stream each
    memo.extend([_UNSET] * gap)
    memo.append(value)


def _recall(machine: Machine, index: int) -> None:
    value = machine.memo[index] if 0 <= index < len(machine.memo) else _UNSET
    if value is _UNSET:
        raise Unlawful(f"memo holds nothing under {index}")
    machine.stack.append(value)


@_on(b"q")
def _binput(machine: Machine) -> None:
    index = machine.data[machine.position]
    machine.position += 1
    if index == len(machine.memo):
        machine.memo.append(machine.stack[-1])
    else:
        _remember(machine, index)


@_on(b"r")
def _long_binput(machine: Machine) -> None:
    (index,) = _UNSIGNED_4.unpack_from(machine.data, machine.position)
    machine.position += 4
    if index == len(machine.memo):
        machine.memo.append(machine.stack[-1])
    else:
        _remember(machine, index)


@_on(b"\x94")
def _memoize(machine: Machine) -> None:
    _remember(machine, len(machine.memo))


@_on(b"p")
def _put(machine: Machine) -> None:
    _remember(machine, decimal(machine))


@_on(b"h")
def _binget(machine: Machine) -> None:
    index = machine.data[machine.position]
    machine.position += 1
    _recall(machine, index)


@_on(b"j")
def _long_binget(machine: Machine) -> None:
    _recall(machine, machine.number(4))


@_on(b"g")
def _get(machine: Machine) -> None:
    _recall(machine, decimal(machine))


# Containers


@_on(b")")
def _empty_tuple(machine: Machine) -> None:
    machine.stack.append(())


@_on(b"t")
def _tuple(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.charge(180 + 8 * len(items))
    machine.stack.append(tuple(items))


def _small_tuple(size: int) -> Handler:
    def handler(machine: Machine) -> None:
        stack = machine.stack
        if len(stack) < size:
            raise Unlawful("pops too much")
        machine.charge(180 + 8 * size)
        stack[-size:] = [tuple(stack[-size:])]

    return handler


_on(b"\x85")(_small_tuple(1))
_on(b"\x86")(_small_tuple(2))
_on(b"\x87")(_small_tuple(3))


@_on(b"]")
def _empty_list(machine: Machine) -> None:
    machine.charge(220)
    machine.stack.append([])


@_on(b"l")
def _list(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.charge(220 + 8 * len(items))
    machine.stack.append(items)


def _extend(machine: Machine, items: list[Any]) -> None:
    target = machine.stack[-1]
    machine.charge(16 * len(items))
    if type(target) is list:
        target.extend(items)
    elif type(target) is ObjectStub:
        target.items.extend(items)
    else:
        raise Unlawful(f"items appended to {type(target).__name__}")


@_on(b"a")
def _append(machine: Machine) -> None:
    _extend(machine, [machine.stack.pop()])


@_on(b"e")
def _appends(machine: Machine) -> None:
    _extend(machine, machine.pop_mark())


@_on(b"}")
def _empty_dict(machine: Machine) -> None:
    machine.charge(260)
    machine.stack.append({})


@_on(b"d")
def _dict(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.charge(64)
    target: dict[Any, Any] = {}
    machine.set_items(target, items)
    machine.stack.append(target)


@_on(b"s")
def _setitem(machine: Machine) -> None:
    value = machine.stack.pop()
    key = machine.stack.pop()
    target = machine.stack[-1]
    if type(target) is dict:  # the common case, without a list
        machine.charge(120)
        if type(key) is not str:
            machine.check_key(key)
        target[key] = value
    else:
        machine.set_items(target, [key, value])


@_on(b"u")
def _setitems(machine: Machine) -> None:
    items = machine.pop_mark()
    machine.set_items(machine.stack[-1], items)


@_on(b"\x8f")
def _empty_set(machine: Machine) -> None:
    machine.stack.append(machine.new_set([]))


@_on(b"\x90")
def _additems(machine: Machine) -> None:
    items = machine.pop_mark()
    target = machine.stack[-1]
    if type(target) is set:
        target |= machine.new_set(items)
    elif type(target) is ObjectStub:
        machine.charge(16 * len(items))
        target.items.extend(items)
    else:
        raise Unlawful(f"items added to {type(target).__name__}")


@_on(b"\x91")
def _frozenset(machine: Machine) -> None:
    members = frozenset(machine.new_set(machine.pop_mark()))
    machine.stack.append(members)


# Names, calls and state


def _find(machine: Machine, module: Any, name: Any) -> GlobalStub:
    if type(module) is not str or type(name) is not str or not module or not name:
        raise Unlawful(f"name computed: expected text, found {type(module).__name__} and {type(name).__name__}")
    if len(module) + len(name) > MAXIMUM_NAME_CHARACTERS:
        raise Unlawful(f"name too long: expected at most {MAXIMUM_NAME_CHARACTERS} characters")
    return machine.meaning.find(module, name)


@_on(b"c")
def _global(machine: Machine) -> None:
    module, name = machine.line().decode("utf-8"), machine.line().decode("utf-8")
    machine.stack.append(_find(machine, module, name))


@_on(b"\x93")
def _stack_global(machine: Machine) -> None:
    name = machine.stack.pop()
    module = machine.stack.pop()
    machine.stack.append(_find(machine, module, name))


def _call(machine: Machine, type_: Any, arguments: Any, keywords: Any = None) -> None:
    machine.charge(160)
    machine.stack.append(machine.meaning.construct(machine, type_, arguments, keywords))


@_on(b"R", b"\x81")
def _reduce(machine: Machine) -> None:
    arguments = machine.stack.pop()
    _call(machine, machine.stack.pop(), arguments)


@_on(b"\x92")
def _newobj_ex(machine: Machine) -> None:
    keywords = machine.stack.pop()
    arguments = machine.stack.pop()
    _call(machine, machine.stack.pop(), arguments, keywords)


@_on(b"i")
def _inst(machine: Machine) -> None:
    module, name = machine.line().decode("utf-8"), machine.line().decode("utf-8")
    arguments = tuple(machine.pop_mark())
    _call(machine, _find(machine, module, name), arguments)


@_on(b"o")
def _obj(machine: Machine) -> None:
    items = machine.pop_mark()
    if not items:
        raise Unlawful("nothing to call")
    _call(machine, items[0], tuple(items[1:]))


@_on(b"b")
def _build(machine: Machine) -> None:
    state = machine.stack.pop()
    machine.meaning.build(machine, machine.stack[-1], state)


@_on(b"Q")
def _binpersid(machine: Machine) -> None:
    identity = machine.stack.pop()
    machine.charge(160)
    machine.stack.append(machine.meaning.persistent(identity))
