"""What happens to DeepSpeed's checkpoints."""

from __future__ import annotations

import shutil
import zipfile

from lastgood.formats.description import Framework
from lastgood.reasons import Reason
from lastgood.testing.foreign.archives import edit_pickle, flip, plant_name, set_small_number
from lastgood.testing.foreign.catalogue import ForeignJudge, enter
from lastgood.testing.foreign.scene import ForeignScene

_FRAMEWORK = Framework.DEEPSPEED
_PARTITIONED = ("deepspeed_1", "deepspeed_2", "deepspeed_3")
_SHARD = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
_FIRST = "zero_pp_rank_0_mp_rank_00_optim_states.pt"
_MODEL = "mp_rank_00_model_states.pt"
_HEAD_BYTES = 4096


@enter(_FRAMEWORK, Reason.SHARD_MISSING, *_PARTITIONED, source="hiyouga/LlamaFactory#8098")
def shard_deleted(scene: ForeignScene) -> str:
    """The optimizer's file of one rank is gone; rank 0 reports that loading succeeded."""
    return scene.delete(_SHARD)


@enter(_FRAMEWORK, Reason.SHARD_MISSING, *_PARTITIONED, source="bghira/SimpleTuner#2899")
def shard_renamed(scene: ForeignScene) -> str:
    """The file of a rank lies under another spelling of its name, where no loader looks."""
    scene.path(_SHARD).rename(scene.path("zero_pp_rank_rank1_mp_rank_00_optim_states.pt"))
    return _SHARD


@enter(_FRAMEWORK, Reason.SHARD_MISSING, "deepspeed_1", "deepspeed_2")
def model_states_deleted(scene: ForeignScene) -> str:
    """The file with weights, scheduler and counters is gone."""
    return scene.delete(_MODEL)


@enter(_FRAMEWORK, Reason.SHARD_MISSING, "deepspeed_3", source="deepspeedai/DeepSpeed#2319")
def node_kept_its_own(scene: ForeignScene) -> str:
    """Each node saved to a disk of its own, and only the first one's files were copied."""
    for path in scene.checkpoint.glob("zero_pp_rank_1_*"):
        path.unlink()
    return _SHARD


@enter(_FRAMEWORK, Reason.SHARD_MISSING, "deepspeed_moe")
def expert_deleted(scene: ForeignScene) -> str:
    """The file of one expert is gone."""
    return scene.delete("layer_0_expert_1_mp_rank_00_model_states.pt")


@enter(_FRAMEWORK, Reason.SHARD_MISSING, "deepspeed_pipeline")
def layer_deleted(scene: ForeignScene) -> str:
    """The file of one layer of a pipeline is gone."""
    return scene.delete("layer_02-model_00-model_states.pt")


@enter(_FRAMEWORK, Reason.GENERATIONS_MIXED, *_PARTITIONED)
def shard_of_older_save(scene: ForeignScene) -> str:
    """A copy that was interrupted and repeated left one rank's file of the save before."""
    return scene.bring_from_older(_SHARD)


@enter(_FRAMEWORK, Reason.UNEXPECTED_FILE, *_PARTITIONED, source="NVIDIA-NeMo/Megatron-Bridge#5604")
def larger_run_left(scene: ForeignScene) -> str:
    """The directory was used before by a run with more ranks, whose files stayed."""
    left = "zero_pp_rank_2_mp_rank_00_optim_states.pt"
    shutil.copyfile(scene.root / scene.older / _SHARD, scene.path(left))
    return left


@enter(_FRAMEWORK, Reason.CONTAINER_MALFORMED, *_PARTITIONED, source="s3fs-fuse/s3fs-fuse#535")
def shard_emptied(scene: ForeignScene) -> str:
    """A rename on a mounted bucket left an object of no bytes."""
    return scene.cut(_SHARD, keep_ratio=0)


@enter(_FRAMEWORK, Reason.CONTAINER_MALFORMED, *_PARTITIONED)
def shard_cut(scene: ForeignScene) -> str:
    """The disk was full halfway."""
    return scene.cut(_SHARD)


@enter(_FRAMEWORK, Reason.CONTAINER_MALFORMED, *_PARTITIONED, source="s3fs-fuse/s3fs-fuse#1542")
def head_zeroed(scene: ForeignScene) -> str:
    """A mounted bucket wrote zeros where the first bytes were."""
    with scene.path(_SHARD).open("r+b") as file:
        file.write(bytes(_HEAD_BYTES))
    return _SHARD


@enter(_FRAMEWORK, Reason.RANK_DUPLICATED, *_PARTITIONED, judge=ForeignJudge.INTEGRITY)
def rank_wrote_as_another(scene: ForeignScene) -> str:
    """Two ranks believed to be rank 0, so that one part of the optimizer lies there twice and the other is lost."""
    return scene.copy_within(_FIRST, _SHARD)


@enter(_FRAMEWORK, Reason.RECORD_CORRUPT, *_PARTITIONED, judge=ForeignJudge.INTEGRITY)
def payload_flipped(scene: ForeignScene) -> str:
    """A bit of a moment changed on the way to the disk."""
    data = scene.path(_SHARD).read_bytes()
    return flip(scene, _SHARD, data.index(b"/data/0") + 200)


@enter(_FRAMEWORK, Reason.COUNTERS_DISAGREE, "deepspeed_1", "deepspeed_2")
def step_counter_edited(scene: ForeignScene) -> str:
    """The engine's step counter went back, and the optimizer's did not."""
    edit_pickle(scene.path(_MODEL), lambda pickle: set_small_number(pickle, "global_steps", 4))
    return _MODEL


@enter(
    _FRAMEWORK,
    Reason.GLOBAL_NOT_ALLOWED,
    "deepspeed_0",
    "deepspeed_1",
    judge=ForeignJudge.INTEGRITY,
    source="meta-pytorch/torchtune#1142",
)
def foreign_name_in_pickle(scene: ForeignScene) -> str:
    """A configuration object of another library was put into the client state."""
    edit_pickle(scene.path(_MODEL), lambda pickle: plant_name(pickle, "omegaconf.listconfig.ListConfig"))
    return _MODEL


@enter(_FRAMEWORK, Reason.ARTIFACT_NOT_REGULAR, *_PARTITIONED)
def shard_linked(scene: ForeignScene) -> str:
    """A file was moved to a larger disk and a link left in its place."""
    moved = scene.root / "moved.pt"
    scene.path(_SHARD).rename(moved)
    scene.path(_SHARD).symlink_to(moved)
    return _SHARD


@enter(_FRAMEWORK, Reason.POINTER_DANGLING, *_PARTITIONED, judge=ForeignJudge.ROOT)
def latest_names_nothing(scene: ForeignScene) -> str:
    """Retention deleted what the pointer names."""
    (scene.root / "latest").write_text("global_step12")
    return "latest"


@enter(_FRAMEWORK, Reason.POINTER_UNCOMMITTED, *_PARTITIONED, judge=ForeignJudge.ROOT)
def latest_names_empty_directory(scene: ForeignScene) -> str:
    """The pointer was written, and no file of the save that it names."""
    (scene.root / "global_step12").mkdir()
    (scene.root / "latest").write_text("global_step12")
    return "latest"


@enter(_FRAMEWORK, Reason.POINTER_MALFORMED, *_PARTITIONED, judge=ForeignJudge.ROOT)
def latest_torn(scene: ForeignScene) -> str:
    """The pointer is written in place, and the job was killed before its bytes."""
    (scene.root / "latest").write_bytes(b"")
    return "latest"


@enter(_FRAMEWORK, None, "deepspeed_0", *_PARTITIONED)
def scripts_added(scene: ForeignScene) -> str:
    """The scripts that DeepSpeed puts beside its checkpoints lie within one."""
    scene.path("zero_to_fp32.py").write_text("print()\n")
    scene.path("README.md").write_text("a note\n")
    return "zero_to_fp32.py"


@enter(_FRAMEWORK, None, *_PARTITIONED, source="facebookresearch/metaseq#403")
def shard_much_larger(scene: ForeignScene) -> str:
    """One rank's file is far longer than the others', as it lawfully may be."""
    with zipfile.ZipFile(scene.path(_FIRST), "a", zipfile.ZIP_STORED) as archive:
        root = archive.namelist()[0].partition("/")[0]
        archive.writestr(f"{root}/data/999", bytes(100_000))
    return _FIRST
