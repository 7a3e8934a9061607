"""Random streams: what each of them is, how it is saved, put back and peeked.

Decides the spelling and the lawful values of Python's, NumPy's and torch's generators. Leaves foreign trackers to
`trackers`, and which streams a run has to the registry. Rules: an initial seed is no state; a peek leaves a stream
where it was; an all-zero Mersenne twister, which Python and NumPy accept and which yields 0.0 for ever, is refused. A
rank trains on one device, whose stream must come back; how many others are visible is the host's business, so theirs
are saved and put back where both hosts have them, and said where not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import numpy
import torch
from blake3 import blake3

from lastgood.errors import RegistrationError
from lastgood.manifest import Component
from lastgood.state import codec
from lastgood.state.parts import DocumentPart, Scope
from lastgood.state.ranks import RankIdentity
from lastgood.state.tensorfile import tensor_bytes
from lastgood.verdict import Note, NoteReason

__all__ = [
    "NumpyGeneratorStream",
    "NumpyGlobalStream",
    "PythonStream",
    "Stream",
    "TorchStream",
    "check_torch_state",
    "cuda_stream",
    "derive_streams",
    "digest_words",
    "named_stream",
    "other_device_streams",
    "rng_part",
    "standard_streams",
]

PEEKED_DRAWS = 4
_TWISTER_WORDS = 624
_WORD = 2**32
_OTHER_DEVICE = re.compile(r"torch\.cuda\.[0-9]{1,4}")


class Stream(Protocol):
    """One random stream of one rank."""

    owns: tuple[object, ...]

    def save(self) -> Any:
        """The whole state as values that `codec` can spell."""

    def load(self, saved: Any) -> None:
        """Put a validated state back."""

    def validate(self, saved: Any) -> Iterator[str]:
        """What is wrong with a saved state, without touching the stream."""

    def peek(self) -> tuple[int | float, ...]:
        """The next draws; the stream stays where it is."""

    def reseed(self, seed: int) -> None:
        """Begin a new stream from 0 ≤ seed < 2**63, where the saved ones belong to other ranks.

        Raises:
            UsageError: The stream's rule is another framework's to set.
        """


class PythonStream:
    """The module-level `random`, or a `random.Random` of the run's own."""

    def __init__(self, generator: random.Random | None = None) -> None:
        self._random: Any = generator or random
        self.owns: tuple[object, ...] = () if generator is None else (generator,)

    def save(self) -> Any:
        version, words, gauss = self._random.getstate()
        return {
            "version": version,
            "words": numpy.array(words[:-1], dtype=numpy.uint32),
            "position": words[-1],
            "gauss": gauss,
        }

    def load(self, saved: Any) -> None:
        words = (*(int(word) for word in saved["words"]), saved["position"])
        self._random.setstate((saved["version"], words, saved["gauss"]))

    def validate(self, saved: Any) -> Iterator[str]:
        problems = list(codec.differences(self.save(), saved, "python"))
        yield from problems
        if not problems:
            yield from _check_twister(saved["words"], saved["position"])
            if saved["version"] != 3:
                yield f"version: expected 3, found {saved['version']!r}"
            if not (saved["gauss"] is None or isinstance(saved["gauss"], float)):
                yield "gauss: expected a number or nothing"

    def peek(self) -> tuple[int | float, ...]:
        state = self._random.getstate()
        try:
            return tuple(self._random.getrandbits(32) for _ in range(PEEKED_DRAWS))
        finally:
            self._random.setstate(state)

    def reseed(self, seed: int) -> None:
        self._random.seed(seed)


class NumpyGlobalStream:
    """NumPy's legacy global state, or a `RandomState` of the run's own."""

    def __init__(self, generator: numpy.random.RandomState | None = None) -> None:
        # numpy.random's functions are the bound methods of one hidden RandomState: numpy offers no public name for it.
        self._random: Any = generator or numpy.random
        self.owns: tuple[object, ...] = () if generator is None else (generator,)

    def save(self) -> Any:
        return dict(self._random.get_state(legacy=False))

    def load(self, saved: Any) -> None:
        self._random.set_state(saved)

    def validate(self, saved: Any) -> Iterator[str]:
        problems = list(codec.differences(self.save(), saved, "numpy"))
        yield from problems
        if not problems:
            yield from _check_bit_generator(self.save(), saved)
            if saved["has_gauss"] not in (0, 1):
                yield f"has_gauss: expected 0 or 1, found {saved['has_gauss']!r}"

    def peek(self) -> tuple[int | float, ...]:
        state = self._random.get_state(legacy=False)
        try:
            return tuple(int(draw) for draw in self._random.randint(0, _WORD, size=PEEKED_DRAWS, dtype=numpy.uint64))
        finally:
            self._random.set_state(state)

    def reseed(self, seed: int) -> None:
        self._random.seed([seed & (_WORD - 1), seed >> 32])


class NumpyGeneratorStream:
    """A `numpy.random.Generator`, whatever bit generator it stands on."""

    def __init__(self, generator: numpy.random.Generator) -> None:
        self._bits: Any = generator.bit_generator
        self.owns: tuple[object, ...] = (generator, generator.bit_generator)

    def save(self) -> Any:
        return dict(self._bits.state)

    def load(self, saved: Any) -> None:
        self._bits.state = saved

    def validate(self, saved: Any) -> Iterator[str]:
        problems = list(codec.differences(self.save(), saved, "numpy generator"))
        yield from problems
        if not problems:
            yield from _check_bit_generator(self.save(), saved)

    def peek(self) -> tuple[int | float, ...]:
        state = self._bits.state
        try:
            # Signed, so that every draw fits a document's integers.
            return tuple(int(draw) - 2**63 for draw in self._bits.random_raw(PEEKED_DRAWS))
        finally:
            self._bits.state = state

    def reseed(self, seed: int) -> None:
        self._bits.state = type(self._bits)(seed).state


class TorchStream:
    """A `torch.Generator`; torch's global CPU stream is one of them."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self._generator = torch.default_generator if generator is None else generator
        self.owns: tuple[object, ...] = (self._generator,)

    def save(self) -> Any:
        return self._generator.get_state()

    def load(self, saved: Any) -> None:
        self._generator.set_state(saved)

    def validate(self, saved: Any) -> Iterator[str]:
        yield from check_torch_state(self._generator.get_state(), saved, str(self._generator.device))

    def peek(self) -> tuple[int | float, ...]:
        # A copy draws, so that not even an interrupt can move the run's stream.
        copy = torch.Generator(device=self._generator.device)
        copy.set_state(self._generator.get_state())
        draws = torch.randint(
            0, _WORD, (PEEKED_DRAWS,), generator=copy, device=self._generator.device, dtype=torch.int64
        )
        return tuple(draws.tolist())

    def reseed(self, seed: int) -> None:
        self._generator.manual_seed(seed)


def cuda_stream(device: int) -> TorchStream:
    """The global stream of one CUDA device."""
    torch.cuda.init()
    return TorchStream(torch.cuda.default_generators[device])


def standard_streams() -> dict[str, Stream]:
    """The streams that any library may draw from: Python, NumPy, torch on the CPU and on this rank's current device."""
    streams: dict[str, Stream] = {"python": PythonStream(), "numpy": NumpyGlobalStream(), "torch.cpu": TorchStream()}
    if torch.cuda.device_count():
        streams["torch.cuda"] = cuda_stream(torch.cuda.current_device())
    return streams


def other_device_streams() -> dict[str, Stream]:
    """The streams of the other visible devices by index: another rank's, or those of a model spread over several.

    They are never peeked: a draw makes a context, which costs hundreds of megabytes on each device from each rank.
    """
    others = [device for device in range(torch.cuda.device_count()) if device != torch.cuda.current_device()]
    return {f"torch.cuda.{device}": cuda_stream(device) for device in others}


def named_stream(name: str, generator: object) -> Stream:
    """The stream of a generator that the run made itself.

    Raises:
        RegistrationError: Not a kind of generator that is known here.
    """
    makers: Mapping[type, Callable[[Any], Stream]] = {
        torch.Generator: TorchStream,
        numpy.random.Generator: NumpyGeneratorStream,
        numpy.random.RandomState: NumpyGlobalStream,
        random.Random: PythonStream,
    }
    if isinstance(generator, random.SystemRandom):
        raise RegistrationError(f"generator without state: {name} is a SystemRandom, which cannot be resumed")
    for kind, maker in makers.items():
        if isinstance(generator, kind):
            return maker(generator)
    raise RegistrationError(
        f"not a generator: {name} is a {type(generator).__qualname__}",
        hint="pass a random.Random, a NumPy Generator or RandomState, or a torch.Generator",
    )


def check_torch_state(live: torch.Tensor, saved: Any, place: str) -> Iterator[str]:
    """What is wrong with the saved bytes of a torch generator, given the live ones."""
    problems = list(codec.differences(live, saved, place))
    yield from problems
    if not problems:
        # Seed 0 at offset 0 is a lawful Philox state of 16 zero bytes; a zero Mersenne twister is not.
        if saved.numel() > 16 and not bool(saved.any()):
            yield f"{place}: the state is all zero"
        try:
            torch.Generator(device=_device(place)).set_state(saved)
        except RuntimeError as error:
            yield f"{place}: torch refuses it: {str(error).splitlines()[0]}"


def digest_words(states: Mapping[str, torch.Tensor]) -> tuple[int, ...]:
    """Words that tell states apart where their streams cannot be drawn from.

    Args:
        states: Name → uint8 `[bytes]`, cpu.
    """
    digest = blake3(b"".join(name.encode() + bytes(tensor_bytes(state)) for name, state in states.items())).digest()
    return tuple(int.from_bytes(digest[start : start + 4], "little") for start in range(0, 4 * PEEKED_DRAWS, 4))


def _device(place: str) -> str:
    return place if place.startswith("cuda") else "cpu"


def _check_twister(words: Any, position: Any) -> Iterator[str]:
    if type(position) is not int or not 0 <= position <= _TWISTER_WORDS:
        yield f"position: expected 0..{_TWISTER_WORDS}, found {position!r}"
    # Only the top bit of the first word takes part in the recurrence: with all others zero, so is every draw.
    if not numpy.any(words[1:]) and not int(words[0]) >> 31:
        yield "words: the state is all zero and yields nothing but zeros"


def _check_bit_generator(live: Mapping[str, Any], saved: Mapping[str, Any]) -> Iterator[str]:
    if saved["bit_generator"] != live["bit_generator"]:
        yield f"bit_generator: expected {live['bit_generator']}, found {str(saved['bit_generator'])[:40]!r}"
        return
    state = saved["state"]
    if "key" in state and "pos" in state:
        yield from _check_twister(state["key"], state["pos"])
    for name, value in state.items():
        if isinstance(value, int) and not 0 <= value < 2**128:
            yield f"state.{name}: expected 0..2**128, found {value}"
    if state.get("inc") is not None and state["inc"] % 2 == 0:
        yield "state.inc: expected an odd increment"
    if not any(bool(numpy.any(value)) for value in state.values()):
        yield "state: the state is all zero"
    if "has_uint32" in saved and saved["has_uint32"] not in (0, 1):
        yield f"has_uint32: expected 0 or 1, found {saved['has_uint32']!r}"
    if "uinteger" in saved and not 0 <= saved["uinteger"] < _WORD:
        yield f"uinteger: expected 0..{_WORD - 1}, found {saved['uinteger']}"


def rng_part(streams: Mapping[str, Stream], identity: RankIdentity, *, others: Mapping[str, Stream]) -> DocumentPart:
    """All streams of this rank, in a file of its own.

    Args:
        streams: Those that must come back, and no more than those.
        identity: This rank.
        others: Of other devices, which may lawfully be missing at the save or now.
    """
    everything = {**streams, **others}

    def validate(saved: Any) -> Iterator[str | Note]:
        if not isinstance(saved, dict):
            yield f"expected the streams by name, found {type(saved).__name__}"
            return
        for name in sorted(streams.keys() - saved.keys()):
            yield f"stream {name} was not saved"
        gone = {name for name in saved.keys() - everything.keys() if _OTHER_DEVICE.fullmatch(name)}
        for name in sorted(saved.keys() - everything.keys() - gone):
            yield f"stream {name[:80]} was saved, and the run has none of that name"
        if gone:
            yield _devices_changed(gone, "saved, and no such device is visible: left out")
        if added := others.keys() - saved.keys():
            yield _devices_changed(added, "not saved, for no such device was visible: left as they are")
        for name in sorted(saved.keys() & everything.keys()):
            for fact in everything[name].validate(saved[name]):
                yield f"stream {name}: {fact}"

    def load(saved: Any) -> None:
        for name in saved.keys() & everything.keys():
            everything[name].load(saved[name])

    return DocumentPart(
        component=Component.RNG,
        name="rng",
        file=f"rng/{identity.file_stem}.json",
        scope=Scope.PER_RANK,
        save=lambda: {name: stream.save() for name, stream in everything.items()},
        validate=validate,
        load=load,
        owns=tuple(owned for stream in everything.values() for owned in stream.owns),
        keys_vary=True,
    )


def _devices_changed(names: Collection[str], fact: str) -> Note:
    shown = ", ".join(sorted(names)[:8]) + (", …" if len(names) > 8 else "")
    return Note(reason=NoteReason.DEVICES_CHANGED, message=f"other devices' streams {fact}: {shown}", offender="rng")


def derive_streams(streams: Mapping[str, Stream], saved: bytes, identity: RankIdentity) -> None:
    """Begin every stream anew for another number of ranks: reproducibly, and differently on every rank.

    Args:
        streams: Of this rank.
        saved: The first saved rank's file, so that another checkpoint begins other streams.
        identity: This rank.
    """
    for name, stream in streams.items():
        digest = blake3(saved + f"\0{name}\0{identity.rank}\0{identity.world_size}".encode()).digest()
        stream.reseed(int.from_bytes(digest[:8], "little") >> 1)
