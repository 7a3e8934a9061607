"""What happens to checkpoints of Accelerate."""

from __future__ import annotations

from lastgood.formats.description import Framework
from lastgood.reasons import NoteReason, Reason
from lastgood.testing.foreign.catalogue import ForeignJudge, enter
from lastgood.testing.foreign.scene import ForeignScene

__all__: list[str] = []

_ACCELERATE = Framework.ACCELERATE
_ONE = "accelerate"
_RANKS = "accelerate_2_ranks"
_BOTH = (_ONE, _RANKS)


@enter(_ACCELERATE, Reason.COMPONENT_MISSING, _ONE)
def random_state_deleted(scene: ForeignScene) -> str:
    """The random state is gone; Accelerate goes on in silence and counts its steps from zero."""
    return scene.delete("random_states_0.pkl")


@enter(_ACCELERATE, Reason.SHARD_MISSING, _RANKS)
def random_state_of_the_last_rank_deleted(scene: ForeignScene) -> str:
    """The last rank's random state is gone, and only the checkpoint before tells that there was one."""
    return scene.delete("random_states_1.pkl")


@enter(_ACCELERATE, Reason.SHARD_MISSING, _RANKS)
def random_state_of_the_first_rank_deleted(scene: ForeignScene) -> str:
    """The first rank's random state is gone."""
    return scene.delete("random_states_0.pkl")


@enter(_ACCELERATE, Reason.CONTAINER_MALFORMED, *_BOTH)
def random_state_truncated(scene: ForeignScene) -> str:
    """The random state breaks off; Accelerate goes on in silence."""
    return scene.cut("random_states_0.pkl")


@enter(_ACCELERATE, Reason.RANK_DUPLICATED, _RANKS, source="NVIDIA/Megatron-LM#6858")
def random_state_of_the_first_rank_everywhere(scene: ForeignScene) -> str:
    """Every rank holds the first one's random state."""
    return scene.copy_within("random_states_0.pkl", "random_states_1.pkl")


@enter(_ACCELERATE, Reason.GENERATIONS_MIXED, _RANKS, source="mosaicml/composer#2146")
def random_state_of_an_older_save(scene: ForeignScene) -> str:
    """One rank's save failed, and its file is that of the checkpoint before."""
    return scene.bring_from_older("random_states_1.pkl")


@enter(_ACCELERATE, Reason.COMPONENT_MISSING, *_BOTH)
def optimizer_deleted(scene: ForeignScene) -> str:
    """The optimizer's state is gone."""
    return scene.delete("optimizer.bin")


@enter(_ACCELERATE, Reason.COMPONENT_MISSING, *_BOTH)
def scheduler_deleted(scene: ForeignScene) -> str:
    """The scheduler's state is gone."""
    return scene.delete("scheduler.bin")


@enter(_ACCELERATE, Reason.ARTIFACT_MISSING, *_BOTH)
def weights_deleted(scene: ForeignScene) -> str:
    """The weights are gone."""
    return scene.delete("model.safetensors")


@enter(_ACCELERATE, Reason.COMPONENT_MISSING, *_BOTH)
def registered_object_deleted(scene: ForeignScene) -> str:
    """The state of an object that the script registered is gone."""
    return scene.delete("custom_checkpoint_0.pkl")


@enter(_ACCELERATE, Reason.COMPONENT_MISSING, _RANKS, source="RLinf/RLinf#1469")
def loader_deleted(scene: ForeignScene) -> str:
    """The loader's position was never written, and the stream of data would start over."""
    return scene.delete("dl_state_dict.bin")


@enter(_ACCELERATE, NoteReason.RANK_STATE_SHARED, _RANKS, source="huggingface/accelerate#4165")
def loader_shared_by_all_ranks(scene: ForeignScene) -> str:
    """Nothing happened: every rank writes the loader's position into the same file."""
    return "dl_state_dict.bin"


@enter(_ACCELERATE, Reason.CONTAINER_MALFORMED, *_BOTH, source="s3fs-fuse/s3fs-fuse#535")
def optimizer_emptied(scene: ForeignScene) -> str:
    """A rename on a bucket's file system left an object of 0 bytes."""
    return scene.cut("optimizer.bin", keep_ratio=0)


@enter(_ACCELERATE, Reason.CONTAINER_MALFORMED, *_BOTH)
def weights_truncated(scene: ForeignScene) -> str:
    """The copy of the weights broke off."""
    return scene.cut("model.safetensors", keep_ratio=0.9)


@enter(_ACCELERATE, Reason.RECORD_CORRUPT, *_BOTH, judge=ForeignJudge.INTEGRITY)
def optimizer_flipped(scene: ForeignScene) -> str:
    """One bit of a moment changed."""
    return scene.flip_record("optimizer.bin")


@enter(_ACCELERATE, Reason.SAVE_UNFINISHED, *_BOTH)
def killed_after_the_optimizer(scene: ForeignScene) -> str:
    """The save was killed when weights and optimizer were written and nothing else was."""
    for path in list(scene.checkpoint.iterdir()):
        if path.name not in ("model.safetensors", "optimizer.bin"):
            path.unlink()
    return "random_states_0.pkl"


@enter(_ACCELERATE, None, *_BOTH)
def stray_file(scene: ForeignScene) -> str:
    """A network file system left the name of a deleted file."""
    scene.path(".nfs00000001").write_bytes(b"")
    return ".nfs00000001"
