"""What happens to checkpoints of Hugging Face's Trainer."""

from __future__ import annotations

import json
import shutil
import struct

from lastgood.formats.description import Framework
from lastgood.reasons import Reason
from lastgood.testing.foreign.archives import edit_pickle, plant_name
from lastgood.testing.foreign.catalogue import ForeignJudge, enter
from lastgood.testing.foreign.scene import ForeignScene

__all__: list[str] = []

_STRANGER = "omegaconf.listconfig.ListConfig"

_HF = Framework.TRANSFORMERS
_PLAIN = ("hf_trainer", "hf_trainer_2_ranks", "hf_trainer_sharded", "hf_trainer_peft")
_ONE = "hf_trainer"
_RANKS = "hf_trainer_2_ranks"
_SHARDED = "hf_trainer_sharded"
_ENGINE = "hf_trainer_deepspeed"
_SHARD = "model-00001-of-00002.safetensors"
_INDEX = "model.safetensors.index.json"


# Unfinished saves


@enter(_HF, Reason.SAVE_UNFINISHED, *_PLAIN, source="huggingface/transformers#35782")
def trainer_state_deleted(scene: ForeignScene) -> str:
    """The save was killed before the file that is written last."""
    return scene.delete("trainer_state.json")


@enter(_HF, Reason.SAVE_UNFINISHED, *_PLAIN)
def killed_after_the_weights(scene: ForeignScene) -> str:
    """The save was killed when the weights were written and nothing else was."""
    kept = ("model", "adapter", "config.json", "generation_config.json", "README.md")
    for path in list(scene.checkpoint.iterdir()):
        if not path.name.startswith(kept):
            path.unlink()
    return "trainer_state.json"


@enter(_HF, Reason.SAVE_UNFINISHED, *_PLAIN)
def directory_emptied(scene: ForeignScene) -> str:
    """The save was killed as soon as its directory was there."""
    shutil.rmtree(scene.checkpoint)
    scene.checkpoint.mkdir()
    return "trainer_state.json"


@enter(_HF, Reason.SAVE_UNFINISHED, _ONE)
def sentinel_left(scene: ForeignScene) -> str:
    """A just-in-time save was killed and left its own sign, which no loader reads."""
    scene.path("checkpoint-is-incomplete.txt").write_text("in progress", encoding="utf-8")
    return "checkpoint-is-incomplete.txt"


# Missing state


@enter(_HF, Reason.COMPONENT_MISSING, *_PLAIN)
def optimizer_deleted(scene: ForeignScene) -> str:
    """The optimizer's state is gone, and Trainer would begin it anew in silence."""
    return scene.delete("optimizer.pt")


@enter(_HF, Reason.COMPONENT_MISSING, *_PLAIN)
def scheduler_deleted(scene: ForeignScene) -> str:
    """The scheduler's state is gone, and Trainer would drop the optimizer's with it."""
    return scene.delete("scheduler.pt")


@enter(_HF, Reason.COMPONENT_MISSING, _ONE, _SHARDED)
def random_state_deleted(scene: ForeignScene) -> str:
    """The random state of the only rank is gone."""
    return scene.delete("rng_state.pth")


@enter(_HF, Reason.COMPONENT_MISSING, "hf_trainer_half", source="huggingface/transformers#11663")
def scaler_deleted(scene: ForeignScene) -> str:
    """The loss scale of a run in half precision is gone."""
    return scene.delete("scaler.pt")


@enter(_HF, Reason.ARTIFACT_MISSING, _ONE, _RANKS)
def weights_deleted(scene: ForeignScene) -> str:
    """The weights are gone."""
    return scene.delete("model.safetensors")


@enter(_HF, Reason.SHARD_MISSING, _SHARDED)
def weight_shard_deleted(scene: ForeignScene) -> str:
    """One of the shards of the weights is gone."""
    return scene.delete(_SHARD)


@enter(_HF, Reason.ARTIFACT_MISSING, _SHARDED)
def weight_index_deleted(scene: ForeignScene) -> str:
    """The index over the shards of the weights is gone."""
    return scene.delete(_INDEX)


@enter(_HF, Reason.ARTIFACT_NOT_REGULAR, _ONE)
def weights_are_a_link(scene: ForeignScene) -> str:
    """The weights were moved to another disk and a link was left."""
    path = scene.path("model.safetensors")
    moved = scene.root / ".moved"
    path.rename(moved)
    path.symlink_to(moved)
    return "model.safetensors"


# Ranks


@enter(_HF, Reason.SHARD_MISSING, _RANKS, source="NVIDIA-NeMo/Automodel#3437")
def random_state_of_the_last_rank_deleted(scene: ForeignScene) -> str:
    """Only the first rank's random state was saved."""
    return scene.delete("rng_state_1.pth")


@enter(_HF, Reason.SHARD_MISSING, _RANKS)
def random_state_of_the_first_rank_deleted(scene: ForeignScene) -> str:
    """The first rank's random state is gone."""
    return scene.delete("rng_state_0.pth")


@enter(_HF, Reason.SHARD_MISSING, _RANKS, source="bghira/SimpleTuner#2899")
def random_state_renamed(scene: ForeignScene) -> str:
    """A rank's file was written under another spelling than it is looked for."""
    scene.path("rng_state_1.pth").rename(scene.path("rng_state-rank1.pth"))
    return "rng_state_1.pth"


@enter(_HF, Reason.RANK_DUPLICATED, _RANKS, source="NVIDIA/Megatron-LM#6858")
def random_state_of_the_first_rank_everywhere(scene: ForeignScene) -> str:
    """Every rank holds the first one's random state."""
    return scene.copy_within("rng_state_0.pth", "rng_state_1.pth")


@enter(_HF, Reason.ARTIFACT_SWAPPED, _RANKS)
def random_states_exchanged(scene: ForeignScene) -> str:
    """Two ranks hold each other's random state."""
    first, second, aside = (scene.path(name) for name in ("rng_state_0.pth", "rng_state_1.pth", "aside"))
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    return "rng_state_1.pth"


@enter(_HF, Reason.UNEXPECTED_FILE, _RANKS, source="NVIDIA-NeMo/Megatron-Bridge#5604")
def random_state_of_a_larger_run_left(scene: ForeignScene) -> str:
    """The directory was used before by a run of more ranks, whose files stayed."""
    return scene.copy_within("rng_state_1.pth", "rng_state_2.pth")


@enter(_HF, Reason.GENERATIONS_MIXED, _RANKS)
def random_state_of_a_single_rank_left(scene: ForeignScene) -> str:
    """The directory was used before by a run of one rank, whose file stayed."""
    return scene.copy_within("rng_state_0.pth", "rng_state.pth")


@enter(_HF, Reason.SHARD_MISSING, _ENGINE, source="hiyouga/LlamaFactory#8098")
def engine_shard_deleted(scene: ForeignScene) -> str:
    """One rank's file of DeepSpeed is gone."""
    found = sorted(scene.checkpoint.glob("global_step*/*_optim_states.pt"))[-1]
    return scene.delete(str(found.relative_to(scene.checkpoint)))


@enter(_HF, Reason.ARTIFACT_MISSING, _ENGINE, source="huggingface/transformers#22170")
def engine_pointer_deleted(scene: ForeignScene) -> str:
    """The file that names DeepSpeed's tag is gone."""
    return scene.delete("latest")


@enter(_HF, Reason.POINTER_DANGLING, _ENGINE)
def engine_directory_deleted(scene: ForeignScene) -> str:
    """All that DeepSpeed wrote is gone, and its pointer stayed."""
    for found in scene.checkpoint.glob("global_step*"):
        shutil.rmtree(found)
    return "latest"


# Torn files


@enter(_HF, Reason.CONTAINER_MALFORMED, *_PLAIN, source="MrNeRF/LichtFeld-Studio#717")
def optimizer_truncated(scene: ForeignScene) -> str:
    """The disk was full, and training went on."""
    return scene.cut("optimizer.pt")


@enter(_HF, Reason.CONTAINER_MALFORMED, *_PLAIN, source="s3fs-fuse/s3fs-fuse#535")
def optimizer_emptied(scene: ForeignScene) -> str:
    """A rename on a bucket's file system left an object of 0 bytes."""
    return scene.cut("optimizer.pt", keep_ratio=0)


@enter(_HF, Reason.CONTAINER_MALFORMED, _ONE, source="s3fs-fuse/s3fs-fuse#1345")
def random_state_emptied(scene: ForeignScene) -> str:
    """A late copy of metadata replaced the file by an empty one after the save was announced."""
    return scene.cut("rng_state.pth", keep_ratio=0)


@enter(_HF, Reason.CONTAINER_MALFORMED, _ONE, _RANKS)
def weights_truncated(scene: ForeignScene) -> str:
    """The copy of the weights broke off."""
    return scene.cut("model.safetensors", keep_ratio=0.9)


@enter(_HF, Reason.CONTAINER_MALFORMED, _ONE, source="s3fs-fuse/s3fs-fuse#1542")
def weights_with_a_zero_head(scene: ForeignScene) -> str:
    """The first bytes of the weights read as zero: a lost part of an upload."""
    return scene.zero("model.safetensors")


@enter(_HF, Reason.CONTAINER_MALFORMED, *_PLAIN)
def optimizer_with_a_zero_head(scene: ForeignScene) -> str:
    """The first bytes of the optimizer's state read as zero."""
    return scene.zero("optimizer.pt")


@enter(_HF, Reason.SAVE_UNFINISHED, *_PLAIN)
def trainer_state_torn(scene: ForeignScene) -> str:
    """The save was killed while it wrote the file that is written last, and in place."""
    return scene.cut("trainer_state.json")


@enter(_HF, Reason.SAVE_UNFINISHED, _ONE)
def trainer_state_emptied(scene: ForeignScene) -> str:
    """The save was killed when the file that is written last was there, and nothing in it."""
    return scene.cut("trainer_state.json", keep_ratio=0)


@enter(_HF, Reason.CONTAINER_MALFORMED, _ONE)
def trainer_state_with_a_zero_head(scene: ForeignScene) -> str:
    """The first bytes of the trainer's state read as zero: it was whole once."""
    return scene.zero("trainer_state.json")


@enter(_HF, Reason.RECORD_CORRUPT, *_PLAIN, judge=ForeignJudge.INTEGRITY)
def optimizer_flipped(scene: ForeignScene) -> str:
    """One bit of a moment changed; Trainer loads it, and the weights may become NaN."""
    return scene.flip_record("optimizer.pt")


@enter(_HF, Reason.GLOBAL_NOT_ALLOWED, _ONE, judge=ForeignJudge.INTEGRITY, source="meta-pytorch/torchtune#1142")
def scheduler_names_a_stranger(scene: ForeignScene) -> str:
    """A file of state holds an object whose class no loader should import."""
    edit_pickle(scene.path("scheduler.pt"), lambda data: plant_name(data, _STRANGER))
    return "scheduler.pt"


# Files of two saves


@enter(_HF, Reason.COUNTERS_DISAGREE, *_PLAIN)
def optimizer_of_an_older_save(scene: ForeignScene) -> str:
    """The optimizer's state is that of the checkpoint before."""
    return scene.bring_from_older("optimizer.pt")


@enter(_HF, Reason.COUNTERS_DISAGREE, *_PLAIN)
def scheduler_of_an_older_save(scene: ForeignScene) -> str:
    """The scheduler's state is that of the checkpoint before."""
    return scene.bring_from_older("scheduler.pt")


@enter(_HF, Reason.COUNTERS_DISAGREE, *_PLAIN)
def trainer_state_of_an_older_save(scene: ForeignScene) -> str:
    """The trainer's state is that of the checkpoint before."""
    return scene.bring_from_older("trainer_state.json")


@enter(_HF, Reason.COUNTERS_DISAGREE, *_PLAIN)
def global_step_edited(scene: ForeignScene) -> str:
    """Somebody set the step back by hand; Trainer would repeat data and end late."""
    return scene.edit_json("trainer_state.json", global_step=4)


@enter(_HF, Reason.INDEX_MISMATCH, _SHARDED)
def weight_index_of_another_model(scene: ForeignScene) -> str:
    """The index looks for a tensor in another shard than the one it lies in."""
    path = scene.path(_INDEX)
    index = json.loads(path.read_text(encoding="utf-8"))
    files: list[str] = sorted(set(index["weight_map"].values()))
    name = next(name for name, file in index["weight_map"].items() if file == files[0])
    index["weight_map"][name] = files[1]
    path.write_text(json.dumps(index), encoding="utf-8")
    return files[0]


@enter(_HF, Reason.INDEX_MISMATCH, _SHARDED)
def weight_index_leads_out(scene: ForeignScene) -> str:
    """The index names a file outside the checkpoint."""
    path = scene.path(_INDEX)
    index = json.loads(path.read_text(encoding="utf-8"))
    index["weight_map"]["another"] = f"../{scene.older}/{_SHARD}"
    path.write_text(json.dumps(index), encoding="utf-8")
    return _INDEX


@enter(_HF, Reason.GENERATIONS_MIXED, _SHARDED)
def weights_in_one_file_left(scene: ForeignScene) -> str:
    """A single file of an earlier save lies beside the shards, and it is what the loader takes."""
    return scene.copy_within(_SHARD, "model.safetensors")


# As healthy as before


@enter(_HF, None, *_PLAIN)
def arguments_deleted(scene: ForeignScene) -> str:
    """The record of the arguments is gone; Trainer is started with its own."""
    return scene.delete("training_args.bin")


@enter(_HF, None, _RANKS, source="facebookresearch/metaseq#501")
def number_of_ranks_not_stated(scene: ForeignScene) -> str:
    """The file that states the number of ranks is gone; a verifier that assumes another number refuses in vain."""
    return scene.delete("training_args.bin")


@enter(_HF, None, *_PLAIN)
def stray_file(scene: ForeignScene) -> str:
    """A network file system left the name of a deleted file."""
    scene.path(".nfs00000001").write_bytes(b"")
    return ".nfs00000001"


@enter(_HF, None, _SHARDED, source="facebookresearch/metaseq#403")
def first_shard_larger(scene: ForeignScene) -> str:
    """The first shard is larger than the others by more than a tenth, as it lawfully may be."""
    path = scene.path(_SHARD)
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = {"note": "x" * (len(data) // 4)}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    return _SHARD
