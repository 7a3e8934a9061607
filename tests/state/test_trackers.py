"""Foreign trackers by their interface: small faithful fakes here, the real ones where there is a device."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from lastgood.errors import RegistrationError, UsageError
from lastgood.state import codec
from lastgood.state.trackers import DTensorTracker, MegatronTracker


class CudaRNGStatesTracker:
    """Megatron-Core's interface: named states behind get_states and set_states; graph-safe ones hold generators."""

    def __init__(self, generators: bool) -> None:
        self.states_: dict[str, Any] = {}
        for number, name in enumerate(("model-parallel-rng", "expert-parallel-rng", "data-parallel-rng")):
            generator = torch.Generator().manual_seed(100 + number)
            self.states_[name] = generator if generators else generator.get_state()

    def get_states(self) -> dict[str, Any]:
        return dict(self.states_)

    def set_states(self, states: dict[str, Any]) -> None:
        self.states_ = states

    def draw(self, name: str) -> list[float]:
        """Draw as `fork(name)` lets its caller do."""
        state = self.states_[name]
        if isinstance(state, torch.Generator):
            drawn: list[float] = torch.rand(3, generator=state).tolist()
            return drawn
        generator = torch.Generator()
        generator.set_state(state)
        drawn = torch.rand(3, generator=generator).tolist()
        self.states_[name] = generator.get_state()
        return drawn


class OffsetBasedRNGTracker:
    """DTensor's interface since torch 2.9: the device's own Philox state, sixteen bytes of seed and offset."""

    def __init__(self) -> None:
        self.state = torch.tensor([7, 40], dtype=torch.int64).view(torch.uint8).clone()

    def _get_device_state(self) -> torch.Tensor:
        return self.state

    def _set_device_state(self, state: torch.Tensor) -> None:
        self.state = state.clone()


class NamedRNGTracker:
    """DTensor's interface before: states by name."""

    def __init__(self) -> None:
        self.rng_states = {"parallel-rng": torch.tensor([7, 40], dtype=torch.int64).view(torch.uint8).clone()}


def through_json(saved: Any) -> Any:
    return codec.decode(json.loads(json.dumps(codec.encode(saved))))


@pytest.mark.parametrize("generators", [False, True], ids=["states", "graph-safe"])
def test_megatrons_streams_come_back(generators: bool) -> None:
    """The expert-parallel stream was wrong on 252 of 256 ranks once: every named stream must come back."""
    tracker = CudaRNGStatesTracker(generators)
    stream = MegatronTracker(tracker)
    saved, peeked, objects = through_json(stream.save()), stream.peek(), dict(tracker.states_)
    expected = {name: tracker.draw(name) for name in tracker.states_}
    assert stream.peek() != peeked
    assert list(stream.validate(saved)) == []
    stream.load(saved)
    assert stream.peek() == peeked
    assert {name: tracker.draw(name) for name in tracker.states_} == expected
    if generators:
        assert all(tracker.states_[name] is objects[name] for name in objects), "a captured graph remembers generators"


def test_a_stream_that_megatron_lost_is_refused() -> None:
    """Fewer saved streams than live ones must be named, not filled in."""
    stream = MegatronTracker(CudaRNGStatesTracker(generators=False))
    saved = stream.save()
    del saved["expert-parallel-rng"]
    assert any("expert-parallel-rng" in fact for fact in stream.validate(saved))


@pytest.mark.parametrize("tracker", [OffsetBasedRNGTracker(), NamedRNGTracker()], ids=["device", "named"])
def test_dtensors_offset_comes_back(tracker: Any) -> None:
    """Seed and offset are the whole state, in both of torch's spellings."""
    stream = DTensorTracker(tracker)
    saved, peeked = through_json(stream.save()), stream.peek()
    state = tracker.state if isinstance(tracker, OffsetBasedRNGTracker) else tracker.rng_states["parallel-rng"]
    state[8:] = torch.tensor([44], dtype=torch.int64).view(torch.uint8)
    assert stream.peek() != peeked
    assert list(stream.validate(saved)) == []
    stream.load(saved)
    assert stream.peek() == peeked


@pytest.mark.parametrize("offset", [-4, 3])
def test_an_absurd_offset_is_refused(offset: int) -> None:
    """Philox advances in whole counters of four."""
    stream = DTensorTracker(OffsetBasedRNGTracker())
    saved = {"device": torch.tensor([7, offset], dtype=torch.int64).view(torch.uint8)}
    assert any("offset out of range" in fact for fact in stream.validate(saved))


def test_a_tracker_is_not_derived_for_other_ranks() -> None:
    """Its framework seeds it from the layout; a made-up stream would break the agreement between ranks."""
    with pytest.raises(UsageError, match="cannot be derived"):
        MegatronTracker(CudaRNGStatesTracker(generators=False)).reseed(1)
    with pytest.raises(UsageError, match="cannot be derived"):
        DTensorTracker(OffsetBasedRNGTracker()).reseed(1)


def test_things_that_are_no_trackers_are_refused() -> None:
    """A mistake at registration must not wait for the first save."""
    with pytest.raises(RegistrationError, match="lacks get_states or set_states"):
        MegatronTracker(object())
    with pytest.raises(RegistrationError, match="not a DTensor RNG tracker"):
        DTensorTracker(object())


@pytest.mark.gpu
def test_dtensors_real_tracker_comes_back() -> None:
    """The real tracker on a device, as DTensor's random operators advance it."""
    import torch.distributed.tensor._random as dtensor_random
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        tracker = dtensor_random.OffsetBasedRNGTracker(init_device_mesh("cuda", (1,)))
        stream = DTensorTracker(tracker)
        saved, peeked = through_json(stream.save()), stream.peek()
        expected = torch.rand(5, device="cuda").tolist()
        assert list(stream.validate(saved)) == []
        stream.load(saved)
        assert stream.peek() == peeked
        assert torch.rand(5, device="cuda").tolist() == expected
    finally:
        torch.distributed.destroy_process_group()
