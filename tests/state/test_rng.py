"""Random streams: each kind saved as JSON, put back exactly, peeked without being moved, hostile states refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from lastgood.errors import RegistrationError
from lastgood.state import RankIdentity, codec
from lastgood.state.rng import (
    NumpyGlobalStream,
    PythonStream,
    Stream,
    TorchStream,
    derive_streams,
    named_stream,
    other_device_streams,
    standard_streams,
)
from lastgood.verdict import NoteReason, Reason
from tests.state.rewrite import rewrite_document
from tests.state.small import Small

Draw = Callable[[], list[float]]


def kinds() -> dict[str, tuple[Stream, Draw]]:
    """Every kind of stream on the CPU, and a way to draw that leaves half-used words and cached normals behind."""
    own, state = random.Random(3), numpy.random.RandomState(3)
    torch_generator = torch.Generator().manual_seed(3)
    kinds: dict[str, tuple[Stream, Draw]] = {
        "python": (PythonStream(), lambda: [random.random(), random.gauss(0, 1), random.getrandbits(7)]),
        "random.Random": (named_stream("x", own), lambda: [own.random(), own.gauss(0, 1)]),
        "numpy": (NumpyGlobalStream(), lambda: [numpy.random.rand(), numpy.random.randn()]),
        "RandomState": (named_stream("x", state), lambda: [state.rand(), state.randn()]),
        "torch": (TorchStream(), lambda: [*torch.rand(3).tolist(), *torch.randn(1).tolist()]),
        "torch.Generator": (
            named_stream("x", torch_generator),
            lambda: torch.randn(5, generator=torch_generator).tolist(),
        ),
    }
    for bits in (
        numpy.random.PCG64,
        numpy.random.PCG64DXSM,
        numpy.random.MT19937,
        numpy.random.Philox,
        numpy.random.SFC64,
    ):
        generator = numpy.random.Generator(bits(3))

        def draw(generator: numpy.random.Generator = generator) -> list[float]:
            return [generator.random(), generator.normal(), int(generator.integers(0, 7, dtype=numpy.uint32))]

        kinds[bits.__name__] = named_stream("x", generator), draw
    return kinds


KINDS = kinds()


def through_json(saved: Any) -> Any:
    """What a document file makes of a state."""
    return codec.decode(json.loads(json.dumps(codec.encode(saved), allow_nan=False)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_continues_where_it_was_saved(kind: str) -> None:
    """Through JSON and back, the next draws are the same, cached halves included."""
    stream, draw = KINDS[kind]
    draw()
    saved = through_json(stream.save())
    expected = [draw() for _ in range(3)]
    assert list(stream.validate(saved)) == []
    stream.load(saved)
    assert [draw() for _ in range(3)] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_peek_tells_states_apart_and_moves_nothing(kind: str) -> None:
    """Expectations are peeked on a live run: one consumed draw would change the run that is being saved."""
    stream, draw = KINDS[kind]
    before = codec.encode(stream.save())
    first = stream.peek()
    assert first == stream.peek()
    assert len(set(first)) > 1
    assert codec.encode(stream.save()) == before
    draw()
    assert stream.peek() != first


@pytest.mark.parametrize("kind", KINDS)
def test_peeked_draws_fit_a_document(kind: str) -> None:
    """The manifest's strict parser takes 64-bit integers at most."""
    stream, _ = KINDS[kind]
    assert all(isinstance(draw, int | float) and abs(draw) < 2**63 for draw in stream.peek())


@pytest.mark.parametrize("kind", KINDS)
def test_a_derived_stream_is_reproducible_and_its_own(kind: str) -> None:
    """On another number of ranks streams begin anew: the same every time, and differently on every rank."""
    stream, _ = KINDS[kind]
    draws = []
    for rank in (0, 1, 0):
        derive_streams({"s": stream}, b"saved", RankIdentity(rank=rank, world_size=4))
        draws.append(stream.peek())
    assert draws[0] == draws[2] != draws[1]


@pytest.mark.parametrize(
    "kind", ["python", "random.Random", "numpy", "RandomState", "MT19937", "PCG64", "Philox", "SFC64", "torch"]
)
def test_an_all_zero_state_is_refused(kind: str) -> None:
    """Python and NumPy accept it and then draw 0.0 for ever."""
    stream, _ = KINDS[kind]
    assert list(stream.validate(zeroed(stream.save())))


def zeroed(value: Any) -> Any:
    """The same shape with zeros."""
    if isinstance(value, dict):
        return {key: zeroed(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, numpy.ndarray):
        return numpy.zeros_like(value)
    return 0 if isinstance(value, int) and not isinstance(value, bool) else value


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("python", {"position": 625}),
        ("python", {"position": -1}),
        ("python", {"version": 2}),
        ("python", {"words": numpy.ones(624, dtype=numpy.int64)}),
        ("python", {"words": numpy.ones(623, dtype=numpy.uint32)}),
        ("python", {"gauss": 1}),
        ("numpy", {"bit_generator": "PCG64"}),
        ("numpy", {"has_gauss": 2}),
        ("numpy", {"extra": 1}),
        ("PCG64", {"has_uint32": 7}),
        ("PCG64", {"uinteger": 2**32}),
        ("PCG64", {"state": {"state": 2**128, "inc": 1}}),
        ("PCG64", {"state": {"state": 5, "inc": 2}}),
    ],
)
def test_values_out_of_range_are_refused(kind: str, change: dict[str, Any]) -> None:
    """Each of these is taken by a setter somewhere, or ends in a traceback."""
    stream, _ = KINDS[kind]
    assert list(stream.validate({**stream.save(), **change}))


@pytest.mark.parametrize("saved", [None, 3, "x", [], {}, {"words": 1}])
@pytest.mark.parametrize("kind", ["python", "numpy", "PCG64", "torch"])
def test_states_of_another_kind_are_refused(kind: str, saved: Any) -> None:
    """Any JSON may stand there; None must not pass for "nothing to check"."""
    stream, _ = KINDS[kind]
    assert list(stream.validate(saved))


def test_a_torch_state_that_torch_refuses_is_a_finding() -> None:
    """Torch checks its own states; its refusal must not come as a traceback in the middle of a load."""
    stream, _ = KINDS["torch.Generator"]
    broken = stream.save()
    broken[8:16] = 255
    assert list(stream.validate(broken))


def test_unknown_generators_cannot_be_registered() -> None:
    """A generator without a state cannot be resumed, and must not look as if it could."""
    with pytest.raises(RegistrationError, match="SystemRandom"):
        named_stream("entropy", random.SystemRandom())
    with pytest.raises(RegistrationError, match="not a generator: thing is a int"):
        named_stream("thing", 5)


def test_the_standard_streams_are_always_there() -> None:
    """Any library may draw from them, so no run may leave them out."""
    assert {"python", "numpy", "torch.cpu"} <= standard_streams().keys()


def show_devices(monkeypatch: pytest.MonkeyPatch, count: int, current: int = 0) -> tuple[torch.Generator, ...]:
    """Let torch show so many devices, whose streams live on the CPU here; the streams, each of a seed of its own."""
    generators = tuple(torch.Generator().manual_seed(100 + device) for device in range(count))
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "default_generators", generators, raising=False)
    return generators


def saved_on(directory: Path, monkeypatch: pytest.MonkeyPatch, count: int, current: int = 0) -> Path:
    """A checkpoint of a host with so many devices, each of whose streams has drawn."""
    for device, generator in enumerate(show_devices(monkeypatch, count, current)):
        generator.manual_seed(device)
    Small.build(1).registry.capture(0).write(directory)
    return directory


@pytest.mark.parametrize(
    ("saved", "current", "loads", "now", "restored", "notes"),
    [
        (4, 0, 4, 0, {0: 0, 1: 1, 2: 2, 3: 3}, []),
        (
            4,
            3,
            1,
            0,
            {0: 3},
            ["saved, and no such device is visible: left out: torch.cuda.0, torch.cuda.1, torch.cuda.2"],
        ),
        (1, 0, 2, 1, {1: 0}, ["not saved, for no such device was visible: left as they are: torch.cuda.0"]),
        (1, 0, 1, 0, {0: 0}, []),
    ],
    ids=["same", "fewer", "more", "one"],
)
def test_a_rank_s_own_device_comes_back_on_any_host(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    saved: int,
    current: int,
    loads: int,
    now: int,
    restored: dict[int, int],
    notes: list[str],
) -> None:
    """Another number of devices on a host is no fault of a checkpoint: the rank's own stream is what training draws
    from, and what could not be put back of the others is said.
    """
    saved_on(tmp_path, monkeypatch, saved, current)
    generators = show_devices(monkeypatch, loads, now)
    report = Small.build(2).registry.load(tmp_path)
    assert report.findings == ()
    seeds = {device: generator.initial_seed() for device, generator in enumerate(generators)}
    assert seeds == {device: restored.get(device, 100 + device) for device in range(loads)}
    assert [note.message for note in report.notes] == [f"other devices' streams {text}" for text in notes]
    assert {note.reason for note in report.notes} <= {NoteReason.DEVICES_CHANGED}


@pytest.mark.parametrize(("saved", "loads"), [(1, 0), (0, 1)])
def test_a_rank_s_own_device_is_no_optional_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: int, loads: int
) -> None:
    """A run that moves between devices and the CPU draws from other streams than were saved."""
    saved_on(tmp_path, monkeypatch, saved)
    show_devices(monkeypatch, loads)
    report = Small.build(2).registry.load(tmp_path)
    assert [(one.reason, one.offender) for one in report.findings] == [(Reason.STATE_INVALID, "rng")]
    assert "stream torch.cuda was" in report.findings[0].message
    assert not report.changed


def test_a_damaged_stream_of_another_device_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Optional is whether the device is there, not whether what was saved of it is whole."""
    file = saved_on(tmp_path, monkeypatch, 2) / "rng/rank-00000.json"
    rewrite_document(file, lambda document: document["states"]["rng"].update({"torch.cuda.1": 5}))
    assert [one.offender for one in Small.build(2).registry.load(tmp_path).findings] == ["rng"]


def test_another_device_s_stream_is_read_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That hosts may differ in their devices excuses no stream that both have and that was not put back."""
    saved_on(tmp_path, monkeypatch, 2)
    show_devices(monkeypatch, 2)
    run = Small.build(2)
    other = torch.cuda.default_generators[1]
    load = TorchStream.load
    monkeypatch.setattr(TorchStream, "load", lambda one, saved: None if other in one.owns else load(one, saved))
    findings = run.registry.load(tmp_path).findings
    assert [(one.reason, one.offender) for one in findings] == [(Reason.STATE_NOT_RESTORED, "rng")]


def test_another_ranks_device_is_never_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A draw makes a context: eight ranks on eight devices would lose gigabytes of each to the first save."""
    show_devices(monkeypatch, 2, current=1)
    registry = Small.build(1).registry
    assert "torch.cuda" in registry.observe(0).rank.rng_draws
    assert not {"torch.cuda.0", "torch.cuda.1"} & registry.observe(0).rank.rng_draws.keys()
    own = standard_streams()["torch.cuda"].peek()
    assert own == TorchStream(torch.Generator().manual_seed(101)).peek()


@pytest.mark.gpu
def test_every_cuda_device_has_a_stream() -> None:
    """Each device's dropout draws from its own stream."""
    current = torch.cuda.current_device()
    streams = {current: standard_streams()["torch.cuda"]}
    streams |= {int(name.rpartition(".")[2]): stream for name, stream in other_device_streams().items()}
    assert streams.keys() == set(range(torch.cuda.device_count()))
    for device, stream in streams.items():
        saved = through_json(stream.save())
        expected = torch.rand(5, device=f"cuda:{device}").tolist()
        assert list(stream.validate(saved)) == []
        stream.load(saved)
        assert torch.rand(5, device=f"cuda:{device}").tolist() == expected


@pytest.mark.gpu
def test_a_peek_leaves_a_cuda_stream_where_it_is() -> None:
    """What is expected of the next draws on the rank's own device must consume none of them."""
    stream = standard_streams()["torch.cuda"]
    saved = through_json(stream.save())
    peeked = stream.peek()
    expected = torch.rand(5, device="cuda").tolist()
    stream.load(saved)
    assert stream.peek() == peeked
    assert torch.rand(5, device="cuda").tolist() == expected
