"""The table of measured loaders: lawful, complete, as its page shows it, and as what was once measured by hand."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from lastgood.formats.oracle import Cell, Consequence, Fault, Reaction, measured, reactions
from tests.oracle.page import page_of

ROOT = Path(__file__).resolve().parents[2]


def test_no_two_cells_answer_the_same_question() -> None:
    """Two answers to one question would make a finding depend on their order."""
    asked = Counter((cell.specimen, cell.fault, cell.target, cell.entry) for cell in measured().cells)
    assert [question for question, times in asked.items() if times > 1] == []


def test_the_page_shows_the_table() -> None:
    """People read the page and findings cite the table; `make oracle` writes both, and nobody may edit one of them."""
    assert (ROOT / "docs" / "oracle.md").read_text(encoding="utf-8") == page_of(measured())


def test_the_table_names_the_versions_that_are_installed_here() -> None:
    """A pin that moves makes the table a claim about another release until `make oracle` has run again."""
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line[:60])
    assert dict(measured().versions) == {name: pinned[name] for name in measured().versions}


def test_only_a_reaction_that_trained_on_has_consequences() -> None:
    """What raised has no steps to measure; a consequence there would come from somewhere else."""
    ended = {Reaction.RAISED, Reaction.RAISED_ON_SOME_RANKS, Reaction.HANG}
    assert [cell for cell in measured().cells if cell.reaction in ended and cell.effects] == []
    assert any(cell.swallowed for cell in measured().cells)


def test_every_loader_was_shown_every_fault_of_files() -> None:
    """A specimen that lacks a whole kind of damage would be counted as one that stands it."""
    kinds = {
        Fault.NONE,
        Fault.FILE_DELETED,
        Fault.FILE_TRUNCATED,
        Fault.FILE_EMPTY,
        Fault.BYTE_FLIPPED,
        Fault.OLDER_FILE,
    }
    shown: dict[str, set[Fault]] = {}
    for cell in measured().cells:
        shown.setdefault(cell.specimen, set()).add(cell.fault)
    assert {name: sorted(kinds - faults) for name, faults in shown.items() if kinds - faults} == {}


def test_numbers_of_a_path_match_any_number() -> None:
    """Rank 13 of a real run is answered by what was measured on rank 1."""
    cells = reactions("deepspeed", Fault.FILE_DELETED, target="zero_pp_rank_13_mp_rank_05_optim_states.pt")
    assert {cell.specimen for cell in cells} >= {"deepspeed_1", "deepspeed_2", "deepspeed_3"}
    assert reactions("deepspeed", Fault.FILE_DELETED, target="no_such_file.pt") == ()


def test_what_was_not_measured_has_no_answer() -> None:
    """Nobody may conclude from an absent cell that a loader would raise."""
    assert reactions("composer", Fault.FILE_DELETED) == ()


BASELINE = [
    ("hf_trainer", Fault.FILE_DELETED, "optimizer.pt", "silent", "learning_rate_restarted optimizer_empty"),
    ("hf_trainer", Fault.FILE_DELETED, "scheduler.pt", "silent", "learning_rate_restarted optimizer_empty"),
    ("hf_trainer", Fault.FILE_DELETED, "rng_state.pth", "silent", "rng_differs weights_differ"),
    ("hf_trainer", Fault.FILE_DELETED, "trainer_state.json", "raised", ""),
    ("hf_trainer", Fault.FILE_DELETED, "model.safetensors", "raised", ""),
    ("hf_trainer", Fault.FILE_TRUNCATED, "optimizer.pt", "raised", ""),
    ("hf_trainer", Fault.FILE_TRUNCATED, "model.safetensors", "raised", ""),
    ("hf_trainer", Fault.BYTE_FLIPPED, "model.safetensors", "silent", "weights_differ"),
    ("hf_trainer", Fault.BYTE_FLIPPED, "optimizer.pt", "silent", "optimizer_differs"),
    ("hf_trainer", Fault.NEWER_EMPTY_DIRECTORY, "", "raised", ""),
    ("hf_trainer", Fault.COUNTER_EDITED, "trainer_state.json", "silent", "step_differs"),
    ("accelerate", Fault.FILE_DELETED, "optimizer.bin", "raised", ""),
    ("accelerate", Fault.FILE_DELETED, "random_states_0.pkl", "silent", "rng_differs"),
    ("accelerate", Fault.FILE_TRUNCATED, "random_states_0.pkl", "silent", "rng_differs"),
    ("lightning", Fault.FILE_TRUNCATED, "../last.ckpt", "raised", ""),
    ("lightning", Fault.FILE_EMPTY, "../last.ckpt", "raised", ""),
    ("lightning", Fault.BYTE_FLIPPED, "../last.ckpt", "silent", "weights_differ"),
    ("deepspeed_1", Fault.FILE_DELETED, "zero_pp_rank_1_mp_rank_00_optim_states.pt", "raised_on_some_ranks", ""),
    ("deepspeed_3", Fault.FILE_DELETED, "zero_pp_rank_1_mp_rank_00_optim_states.pt", "raised", ""),
    ("deepspeed_1", Fault.BYTE_FLIPPED, "zero_pp_rank_1_mp_rank_00_optim_states.pt", "silent", "optimizer_differs"),
    ("deepspeed_1", Fault.FILE_DELETED, "../latest", "logged", "step_zero"),
    ("deepspeed_3", Fault.FILE_DELETED, "../latest", "logged", "step_zero"),
    ("deepspeed_1", Fault.POINTER_DANGLING, "../latest", "raised", ""),
    ("deepspeed_1", Fault.FEWER_RANKS, "", "raised", ""),
    ("torch_dcp", Fault.FILE_DELETED, ".metadata", "raised", ""),
    ("torch_dcp", Fault.FILE_DELETED, "__1_0.distcp", "raised", ""),
    ("torch_dcp", Fault.FILE_EMPTY, "__1_0.distcp", "raised", ""),
    ("torch_dcp", Fault.BYTE_FLIPPED, "__1_0.distcp", "silent", "model_differs"),
    ("torch_dcp", Fault.OLDER_FILE, "__1_0.distcp", "silent", "model_differs"),
]


@pytest.mark.parametrize(("specimen", "fault", "target", "reaction", "consequences"), BASELINE)
def test_what_was_once_measured_by_hand_is_measured_again(
    specimen: str, fault: Fault, target: str, reaction: str, consequences: str
) -> None:
    """These were found by hand before there was a table: a table that loses one has lost a way to look."""
    cell = _cell(specimen, fault, target)
    assert (cell.reaction, set(map(Consequence, consequences.split())) <= cell.consequences) == (reaction, True)


@pytest.mark.parametrize(
    ("entry", "fault", "reaction", "consequence"),
    [
        ("optimizer_states", Fault.ENTRY_REMOVED, Reaction.RAISED, None),
        ("lr_schedulers", Fault.ENTRY_REMOVED, Reaction.RAISED, None),
        ("lr_schedulers", Fault.ENTRY_EMPTIED, Reaction.SILENT, Consequence.LEARNING_RATE_RESTARTED),
        ("loops", Fault.ENTRY_REMOVED, Reaction.SILENT, Consequence.STEP_ZERO),
        ("callbacks", Fault.ENTRY_REMOVED, Reaction.SILENT, None),
    ],
)
def test_what_lightning_does_without_an_entry_is_measured_again(
    entry: str, fault: Fault, reaction: Reaction, consequence: Consequence | None
) -> None:
    """An empty list is swallowed where an absent one is refused: the case for looking into the file at all."""
    cell = _cell("lightning", fault, "../last.ckpt", entry)
    assert cell.reaction is reaction
    assert consequence in cell.consequences if consequence else not cell.effects


def _cell(specimen: str, fault: Fault, target: str, entry: str = "") -> Cell:
    wanted = (specimen, fault, target, entry)
    found = [
        cell
        for cell in measured().cells
        if (cell.specimen, cell.fault, cell.target) == wanted[:3]
        and (cell.entry == entry or fault is Fault.COUNTER_EDITED)
    ]
    assert len(found) == 1, wanted
    return found[0]
