"""Names of the checks: the permanent vocabulary of what the gates ask, and of what a configuration may waive.

Decides which names there are; `verify`, `restore` and `drill` ask the questions. Rules: a name never changes its
meaning and is never reused; a restore asks the questions of a generation too, of the copy that it loads; what only says
why a gate could not ask is no question, and nobody can waive it, for nothing was shown.
"""

from __future__ import annotations

__all__ = [
    "CHECKS",
    "DRILL_CHECKS",
    "FAMILY_CHECKS",
    "FOREIGN_CHECKS",
    "GENERATION_CHECKS",
    "OBSTACLES",
    "RESTORE_CHECKS",
]

GENERATION_CHECKS = (
    "commit",
    "manifest",
    "identity",
    "ranks",
    "components",
    "purpose",
    "completeness",
    "sizes",
    "unexpected_files",
    "digests",
    "chain",
    "standing",
)

FOREIGN_CHECKS = ("recognised", "containers", "consistency", "checksums", "pointer")
"""Asked of checkpoints that nobody sealed, beside questions that a generation is asked too."""

FAMILY_CHECKS = ("decisions", "names", "active_pointer", "last_good", "quarantine_notice")

RESTORE_CHECKS = (
    "replica_ended",
    "traces_written",
    "generation_discovered",
    "strict_load",
    "model_tensors",
    "optimizer_tensors",
    "moving_average_tensors",
    "optimizer_steps",
    "gradient_scaler",
    "scheduler_position",
    "learning_rate_before_step",
    "rng_draws",
    "sample_ids",
    "data_position",
    "completed_step",
    "smoke_steps",
    "accumulation_window",
    "loss_finite",
    "gradient_norm_finite",
    "optimizer_advanced_once",
    "control_sample_ids",
    "control_rng_draws",
    "learning_rate_after_step",
    "control_optimizer_steps",
    "control_loss",
    "control_gradient_norm",
    "control_scalars",
    "control_digests",
    "save_after_resume",
)

DRILL_CHECKS = (
    "fault_fired",
    "recovered",
    "resumed_newest",
    "rpo",
    "rto",
    "phases_accounted",
    "save_after_resume",
    "no_orphans",
)

OBSTACLES = ("cancelled", "device", "headroom", "leftovers", "nothing_committed", "scratch_space")

CHECKS = tuple(dict.fromkeys((*GENERATION_CHECKS, *FAMILY_CHECKS, *FOREIGN_CHECKS, *RESTORE_CHECKS, *DRILL_CHECKS)))
"""Everything that `ignore` in `lastgood.toml` may name."""
