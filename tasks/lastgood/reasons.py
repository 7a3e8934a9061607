"""Reason codes: the permanent vocabulary of findings and notes, each with its hint.

A code never changes its meaning and is never reused. Nothing healthy raises a finding code, and each is proven by
something that was damaged or asked for wrongly: those of tier 1 and of the comparison in tier 2 by the catalogues
`lastgood.testing.damage` and `.restore_damage`, those of starts, strict loads and drills by the tests of each.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["NoteReason", "Reason"]


class _Explained(StrEnum):
    """A code that carries the sentence of advice printed under it."""

    hint: str

    def __new__(cls, code: str, hint: str) -> _Explained:
        member = str.__new__(cls, code)
        member._value_ = code
        member.hint = hint
        return member


class Reason(_Explained):
    """Why a checkpoint, or a wish to resume it, is refused."""

    @property
    def blames_checkpoint(self) -> bool:
        """Whether it speaks against the generation itself, so that a fail of tier 1 or 3 bars it."""
        return self not in _BLAMES_SOMETHING_ELSE

    # What lies on storage (tier 1).
    COMMIT_MISSING = (
        "commit_missing",
        "did the publisher stop before its commit marker? an uncommitted directory is never offered",
    )
    COMMIT_MALFORMED = (
        "commit_malformed",
        "was the marker written by something else, or torn by a file system without fsync?",
    )
    COMMIT_MISMATCH = (
        "commit_mismatch",
        "the marker names another manifest: was a manifest or a marker replaced or copied from elsewhere?",
    )
    COMMIT_CHAIN_BROKEN = "commit_chain_broken", "was the previous generation's marker replaced or deleted?"
    GENERATION_BURNED = "generation_burned", "the slot was abandoned on purpose; resume an older generation"
    MANIFEST_MISSING = "manifest_missing", "was .lastgood/manifests deleted or not copied with the artifacts?"
    MANIFEST_MALFORMED = "manifest_malformed", "restore the manifest from a copy; its digest is in the commit marker"
    FORMAT_VERSION_UNSUPPORTED = (
        "format_version_unsupported",
        "read it with the lastgood version that wrote it, or upgrade this one",
    )
    GENERATION_MISMATCH = (
        "generation_mismatch",
        "the manifest describes another generation: was a directory renamed or copied over?",
    )
    FAMILY_MISMATCH = (
        "family_mismatch",
        "the manifest belongs to another family: was the tree copied under another name?",
    )
    SHARD_MISSING = (
        "shard_missing",
        "did the rank stop before publishing, or did a retention job or lifecycle rule delete it?",
    )
    ARTIFACT_MISSING = (
        "artifact_missing",
        "was the file deleted or not copied? no loader of this checkpoint can work without it",
    )
    SIZE_MISMATCH = "size_mismatch", "was the file truncated, appended to, or only partly copied?"
    DIGEST_MISMATCH = (
        "digest_mismatch",
        "the bytes changed after the commit: bad disk, bad copy, or someone wrote in place",
    )
    ARTIFACT_NOT_REGULAR = "artifact_not_regular", "links, devices and pipes are refused: copy the file itself"
    ARTIFACT_SWAPPED = "artifact_swapped", "two artifacts hold each other's bytes: were rank files renamed?"
    FOREIGN_GENERATION_FILE = (
        "foreign_generation_file",
        "the bytes are those of another generation of this family: was a directory reused or merged?",
    )
    FOREIGN_RUN_FILE = (
        "foreign_run_file",
        "the bytes belong to another run or family: check the copy or sync that wrote here",
    )
    UNEXPECTED_FILE = "unexpected_file", "a loader that globs would read it; move it out of the generation"
    WORLD_SIZE_MISMATCH = "world_size_mismatch", "manifest and rank files disagree about how many ranks saved"
    RANK_DUPLICATED = "rank_duplicated", "every rank must hold its own state: did all ranks write rank 0's?"
    COMPONENT_MISSING = (
        "component_missing",
        "register it, or declare it absent with a reason; of another framework: was a file deleted or not copied?",
    )
    PURPOSE_NOT_RESUMABLE = (
        "purpose_not_resumable",
        "this is a weights-only export: it serves inference, it cannot resume training",
    )
    # Checkpoints that nobody here wrote (tier 1, without a manifest).
    SAVE_UNFINISHED = (
        "save_unfinished",
        "the framework's own sign of a finished save is not there: is a save under way, or was its job killed?",
    )
    CONTAINER_MALFORMED = (
        "container_malformed",
        "the file is torn, or was not written by what its name says; no loader can be trusted with it",
    )
    RECORD_CORRUPT = (
        "record_corrupt",
        "the bytes no longer match the checksum inside the file, which its own loader does not check",
    )
    GLOBAL_NOT_ALLOWED = (
        "global_not_allowed",
        "unpickling would import and call it: who put it there? lastgood never does",
    )
    INDEX_MISMATCH = "index_mismatch", "index and files disagree: was the directory put together from two saves?"
    GENERATIONS_MIXED = (
        "generations_mixed",
        "files of different saves lie together: was a directory reused, or a copy merged into another?",
    )
    COUNTERS_DISAGREE = (
        "counters_disagree",
        "positions in one checkpoint contradict each other: was one edited, or saved at another step?",
    )
    # Pointers.
    POINTER_STALE = (
        "pointer_stale",
        "a crash may have come between commit and pointer: `lastgood verify --repair FAMILY` mends it",
    )
    POINTER_DANGLING = "pointer_dangling", "the pointer names a generation that is not there"
    POINTER_UNCOMMITTED = "pointer_uncommitted", "the pointer names a generation without a commit marker"
    POINTER_MISMATCH = "pointer_mismatch", "the pointer carries another digest than the commit marker"
    POINTER_ROLLED_BACK = (
        "pointer_rolled_back",
        "the pointer went back although a newer generation of its incarnation is committed",
    )
    POINTER_MALFORMED = (
        "pointer_malformed",
        "torn, or written by something else: delete LAST_GOOD and it is rebuilt; write a framework's own anew",
    )
    NAME_MALFORMED = "name_malformed", "only canonical names are lawful here: was it renamed by hand?"
    # Family state.
    DECISION_MALFORMED = (
        "decision_malformed",
        "a claim or resume record that decides cannot be read, so nothing is offered: restore it from a copy",
    )
    GENERATION_FENCED = (
        "generation_fenced",
        "a newer incarnation took over before it was committed, or a rollback cut it",
    )
    GENERATION_BARRED = (
        "generation_barred",
        "a fail on record stands for good, and no release lifts it: where the right bytes are back, "
        "seal a copy of them under another name, else go on from another generation",
    )
    GENERATION_NOT_PROVEN = "generation_not_proven", "no full restore passed for it: run `lastgood restore`"
    FAMILY_QUARANTINED = (
        "family_quarantined",
        "`lastgood status` says why; fix the cause, then `lastgood release FAMILY --reason ...`",
    )
    RESUME_SUPERSEDED = (
        "resume_superseded",
        "the launcher re-ran old arguments: drop --resume or pass the newest generation",
    )
    FRESH_REFUSED = (
        "fresh_refused",
        "the family holds commits: step zero would lose them; fix the cause or roll back on purpose",
    )
    NOTHING_TO_RESUME = (
        "nothing_to_resume",
        "`lastgood status` says why; --allow-fresh is for the very first start of a family",
    )
    # Loading (tier 2).
    KEY_MISSING = (
        "key_missing",
        "the checkpoint lacks a tensor the model needs: did the model change? explain(key, reason) if on purpose",
    )
    KEY_UNEXPECTED = (
        "key_unexpected",
        "nobody loads this tensor: did the model change? explain(key, reason) if on purpose",
    )
    SHAPE_MISMATCH = "shape_mismatch", "the model was built with another configuration than the one that saved"
    DTYPE_MISMATCH = "dtype_mismatch", "the model was built with another precision than the one that saved"
    TENSOR_INCOMPLETE = (
        "tensor_incomplete",
        "chunks of the tensor do not cover it: is a rank's file from another topology?",
    )
    STATE_INVALID = "state_invalid", "the value is outside what this component can hold; it was not loaded"
    STATE_NOT_RESTORED = "state_not_restored", "after loading, the live object does not hold what was loaded"
    MODEL_IDENTITY_CHANGED = "model_identity_changed", "another model is running than the one that saved"
    TOKENIZER_IDENTITY_CHANGED = "tokenizer_identity_changed", "another tokenizer is running than the one that saved"
    DATASET_IDENTITY_CHANGED = "dataset_identity_changed", "another dataset snapshot is mounted than the one that saved"
    WORKER_COUNT_CHANGED = (
        "worker_count_changed",
        "the loader's state is tied to num_workers: start with the saved count",
    )
    TOPOLOGY_UNSUPPORTED = "topology_unsupported", "this component cannot be mapped onto another number of ranks"
    # The next update (tier 2).
    LEARNING_RATE_DIVERGED = "learning_rate_diverged", "the scheduler restarted or was saved at another step"
    OPTIMIZER_STEP_DIVERGED = (
        "optimizer_step_diverged",
        "optimizer counters do not match the manifest: was stale state serialised?",
    )
    SAMPLE_IDS_DIVERGED = "sample_ids_diverged", "the data position was lost, reset or belongs to another rank"
    RNG_DIVERGED = "rng_diverged", "a random stream was not saved, was reset, or belongs to another rank"
    TENSOR_DIGEST_DIVERGED = (
        "tensor_digest_diverged",
        "the tensors are not those that were live at the save: was stale state serialised?",
    )
    COUNTER_DIVERGED = "counter_diverged", "a position counter did not come back as the manifest says"
    ACCUMULATION_DIVERGED = "accumulation_diverged", "the accumulation window did not restart where it stood"
    LOSS_NOT_FINITE = "loss_not_finite", "the restored state produces NaN or infinity"
    GRADIENT_NOT_FINITE = "gradient_not_finite", "the restored state produces NaN or infinite gradients"
    OPTIMIZER_NOT_STEPPED = "optimizer_not_stepped", "the optimizer counter did not advance by exactly one"
    TRACE_DIVERGED = "trace_diverged", "the resumed run left the path of the live one beyond the promised tolerance"
    SAVE_AFTER_RESUME_FAILED = (
        "save_after_resume_failed",
        "the resumed job cannot publish: the next interruption would lose everything since",
    )
    RESTORE_CRASHED = "restore_crashed", "see the replica's log beside the record"
    RESTORE_TIMED_OUT = "restore_timed_out", "the restore did not reach its last step in its declared time"
    TRACE_MISSING = "trace_missing", "the replica ran but wrote no trace: call the trace as the replica contract says"
    # Drills (tier 3).
    DRILL_NOT_RECOVERED = (
        "drill_not_recovered",
        "the launcher did not bring the job back: does its command start dead ranks again (torchrun --max-restarts=3)?",
    )
    RECOVERED_FROM_WRONG_GENERATION = (
        "recovered_from_wrong_generation",
        "the job resumed something else than the newest candidate",
    )
    RPO_EXCEEDED = "rpo_exceeded", "more steps were lost than the objective allows: save more often"
    RTO_EXCEEDED = "rto_exceeded", "recovery took longer than the objective allows: the phases say where"
    ORPHANS_SURVIVED = (
        "orphans_survived",
        "the launcher left ranks of the killed life running: they train on and are only kept out by the fence",
    )


# Findings about a family, a wish or a drill: they refuse, but they say nothing against the generation's own bytes.
_BLAMES_SOMETHING_ELSE = frozenset(
    {
        Reason.COMMIT_MISSING,
        Reason.GENERATION_BURNED,
        Reason.POINTER_STALE,
        Reason.POINTER_DANGLING,
        Reason.POINTER_UNCOMMITTED,
        Reason.POINTER_MISMATCH,
        Reason.POINTER_ROLLED_BACK,
        Reason.POINTER_MALFORMED,
        Reason.NAME_MALFORMED,
        Reason.DECISION_MALFORMED,
        Reason.GENERATION_FENCED,
        Reason.GENERATION_BARRED,
        Reason.GENERATION_NOT_PROVEN,
        Reason.FAMILY_QUARANTINED,
        Reason.RESUME_SUPERSEDED,
        Reason.FRESH_REFUSED,
        Reason.NOTHING_TO_RESUME,
        Reason.SAVE_AFTER_RESUME_FAILED,
        Reason.RESTORE_CRASHED,
        Reason.RESTORE_TIMED_OUT,
        Reason.TRACE_MISSING,
        Reason.DRILL_NOT_RECOVERED,
        Reason.RECOVERED_FROM_WRONG_GENERATION,
        Reason.RPO_EXCEEDED,
        Reason.RTO_EXCEEDED,
        Reason.ORPHANS_SURVIVED,
    }
)


class NoteReason(_Explained):
    """What is worth saying and refuses nothing."""

    UNPUBLISHED_CONTENT = (
        "unpublished_content",
        "another writer's checkpoint (`--policy structural` asks its own files), or a publish that did not finish? a "
        "fresh start would not continue it",
    )
    CHECK_IGNORED = "check_ignored", "the configuration accepts what this check finds, with a written reason"
    COMPONENT_NEVER_SAVED = "component_never_saved", "the framework does not save it, so a resume goes on without it"
    CHECKSUM_NOT_RECORDED = (
        "checksum_not_recorded",
        "the writer left checksums out, so flipped bytes cannot be seen until it is sealed",
    )
    PAYLOAD_NOT_COVERED = (
        "payload_not_covered",
        "the format has no checksum over these bytes: `lastgood seal` records one",
    )
    IDENTITY_NOT_STATED = (
        "identity_not_stated",
        "the checkpoint was sealed, not published: that it is this job's own is the operator's word",
    )
    FORMAT_NOT_JUDGED = "format_not_judged", "recognised by name only: nothing was said of its health"
    STATE_RESTARTED = (
        "state_restarted",
        "an earlier resume found this state missing, or somebody reset it on purpose",
    )
    RANK_STATE_SHARED = (
        "rank_state_shared",
        "every rank wrote the same file, so it holds the state of whichever wrote last",
    )
    CHOICES_DIFFER = (
        "choices_differ",
        "the framework's own rule would load another checkpoint: start it with the path that lastgood gives",
    )
    COMMITTED_UNVERIFIED = "unverified", "no tier 1 record exists yet for this generation"
    PARTLY_READ = (
        "partly_read",
        "the next saves read the rest, as `verify` in lastgood.toml says; `lastgood verify --read-all` reads it now",
    )
    STRAY_FILE = "stray_file", "no loader reads it"
    STAGING_ABANDONED = "staging_abandoned", "a publish did not finish here; it is never offered"
    COMPONENT_ABSENT_ON_PURPOSE = "component_absent_on_purpose", "declared by the training code with a reason"
    KEY_EXPLAINED = "key_explained", "declared by the training code with a reason"
    ENVIRONMENT_CHANGED = "environment_changed", "versions differ from those that saved"
    CODE_CHANGED = "code_changed", "the code id differs from the one that saved"
    CONFIGURATION_CHANGED = "configuration_changed", "the configuration id differs from the one that saved"
    DETERMINISM_NOT_PROMISED = (
        "determinism_not_promised",
        "the manifest promises tolerance or nothing for this component",
    )
    CONTROL_NOT_AVAILABLE = "control_not_available", "the live trace ends before the compared steps"
    EXPECTATION_FROM_TRACE = "expectation_from_trace", "the source cannot be peeked; the live trace decides"
    PHASES_UNACCOUNTED = (
        "phases_unaccounted",
        "the replica reports no marks for that time: `replica.trace.Timeline` measures a phase",
    )
    DEVICES_CHANGED = "devices_changed", "other devices are visible than at the save; the rank's own came back"
    TOPOLOGY_CHANGED = "topology_changed", "restored on another world size: proves only that"
    QUARANTINE_IN_FORCE = "quarantine_in_force", "the family goes on publishing under quarantine"
    COMMIT_NOT_KEPT = "commit_not_kept", "a takeover or a rollback cut it; it stays as audit and is never offered"
    CLAIM_WITHOUT_DECISION = "claim_without_decision", "a start claimed a number and decided nothing; it cuts nothing"
