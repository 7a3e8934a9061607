"""What is more than anybody here reads is unknown: it is neither called damaged nor passed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lastgood.errors import LastgoodError, ReadLimitError
from lastgood.formats.containers import pickles
from lastgood.formats.containers.machine import MAXIMUM_COMPOSITE_KEYS
from lastgood.formats.description import Restorability
from lastgood.formats.examination import Examination, examine, open_place
from lastgood.formats.sealing import Wish, seal
from lastgood.formats.structural import choose_structurally
from lastgood.formats.verdicts import judge_checkpoint
from lastgood.location import locate_place
from lastgood.reasons import Reason
from lastgood.testing.foreign.archives import edit_pickle
from lastgood.verdict import Outcome
from lastgood.verify import Depth
from tests.formats.readers import layouts

LARGE = {
    "longer than a pickle may be": lambda: {"text": "x" * (65 * 2**20)},
    "longer than one description reads": lambda: {"text": "x" * (50 * 2**20)},
    "more keys than are compared": lambda: {(number, "x"): number for number in range(MAXIMUM_COMPOSITE_KEYS + 1)},
}


def saved(path: Path, steps: int, **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    model, optimizer, _ = layouts.states(steps)
    torch.save({"model": model, "optimizer": optimizer, "step": steps, **more}, path)
    return path


def looked(path: Path, depth: Depth = Depth.METADATA) -> Examination:
    return examine(open_place(locate_place(str(path))), depth=depth)


@pytest.mark.parametrize("make", LARGE.values(), ids=LARGE)
@pytest.mark.parametrize("depth", list(Depth))
def test_a_limit_of_ours_is_no_damage(tmp_path: Path, make: Callable[[], Any], depth: Depth) -> None:
    """A healthy checkpoint that is large in an unusual way must not cost a team its newest save."""
    examined = looked(saved(tmp_path / "run" / "state.pt", 8, extra=make()), depth)
    assert examined.findings == ()
    assert examined.restorability is Restorability.UNKNOWN
    assert "state.pt" in examined.classification.reasons[0]
    assert judge_checkpoint("run/state.pt", examined).outcome is Outcome.INCONCLUSIVE


def test_damage_beside_what_is_too_large_is_still_damage(tmp_path: Path) -> None:
    """Whoever writes one huge file must not hide a torn one behind it."""
    path = tmp_path / "run" / "checkpoint-8"
    layouts.trainer(path, 8)
    torch.save(LARGE["more keys than are compared"](), path / "scheduler.pt")
    assert looked(path).restorability is Restorability.UNKNOWN
    (path / "optimizer.pt").write_bytes(b"")
    examined = looked(path)
    assert examined.restorability is Restorability.DAMAGED
    assert {one.reason for one in examined.findings} == {Reason.CONTAINER_MALFORMED}


def test_a_file_that_is_left_unread_leaves_the_others_their_budget(tmp_path: Path) -> None:
    """What is missing for want of a look is not missing, and what was seen missing beside it is not concluded from."""
    path = tmp_path / "run" / "checkpoint-8"
    layouts.trainer(path, 8)
    torch.save(LARGE["longer than one description reads"](), path / "training_args.bin")
    examined = looked(path)
    assert (examined.step, examined.findings) == (8, ())
    assert examined.restorability is Restorability.RESUMABLE
    assert any("training_args.bin" in sentence for sentence in examined.unknowable)
    (path / "scheduler.pt").unlink()
    assert looked(path).restorability is Restorability.UNKNOWN


def test_nothing_older_is_offered_in_its_place(tmp_path: Path) -> None:
    """Hours of training would be given up in silence for a limit of a tool."""
    for steps in (8, 16):
        layouts.trainer(tmp_path / "run" / f"checkpoint-{steps}", steps)
    place = locate_place(str(tmp_path / "run"))
    assert choose_structurally(place).name == "checkpoint-16"
    torch.save(LARGE["more keys than are compared"](), tmp_path / "run" / "checkpoint-16" / "scheduler.pt")
    with pytest.raises(ReadLimitError, match=r"checkpoint-16.*scheduler.pt") as caught:
        choose_structurally(place)
    assert caught.value.exit_code == 2


def test_nothing_is_sealed_that_nobody_could_look_into(tmp_path: Path) -> None:
    """And that is no verdict on it: whoever asks is told to ask elsewhere, by the code for it."""
    path = saved(tmp_path / "run" / "state.pt", 8, extra=LARGE["more keys than are compared"]())
    with pytest.raises(ReadLimitError, match="could not tell") as caught:
        seal(locate_place(str(path)), Wish(step=8, world_size=1))
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("pickle", "most"), [(b"\x80\x02" + b"N0" * 1_000 + b"0.", 2), (None, 1)])
def test_what_is_costly_to_refuse_is_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pickle: bytes | None, most: int
) -> None:
    """Seconds for each of many files, several times over, are what a stranger could cost whoever asks."""
    path = saved(tmp_path / "run" / "state.pt", 8, extra=LARGE["more keys than are compared"]())
    if pickle is not None:
        edit_pickle(path, lambda _: pickle)
    times = 0
    execute = pickles.execute

    def counted(machine: Any) -> Any:
        nonlocal times
        times += 1
        return execute(machine)

    monkeypatch.setattr(pickles, "execute", counted)
    looked(path)
    assert times <= most
    times = 0
    with pytest.raises(LastgoodError):
        seal(locate_place(str(path)), Wish(step=8, world_size=1))
    assert times <= most
