"""What happens to checkpoints of torch DCP and of frameworks on top of it: torchtitan and Megatron-core."""

from __future__ import annotations

import shutil

from lastgood.formats.containers.dcpmetadata import DcpEntry, read_dcp_metadata
from lastgood.formats.description import Framework
from lastgood.reasons import Reason
from lastgood.testing.foreign.archives import edit_stored_pickle, flip, plant_name
from lastgood.testing.foreign.catalogue import ForeignJudge, enter
from lastgood.testing.foreign.scene import ForeignScene

_DCP = Framework.TORCH_DCP
_TITAN = Framework.TORCHTITAN
_MEGATRON = Framework.MEGATRON
_METADATA = ".metadata"
_TRACKER = "latest_checkpointed_iteration.txt"


def _data_file(scene: ForeignScene) -> str:
    """The last data file, by name."""
    return max(path.name for path in scene.checkpoint.glob("__*.distcp"))


def _entries(scene: ForeignScene) -> tuple[DcpEntry, ...]:
    return read_dcp_metadata(scene.path(_METADATA).read_bytes(), _METADATA).entries


def _replace(scene: ForeignScene, old: str, new: str) -> None:
    """Change a name in the metadata for one as long, so that the pickle stays lawful."""
    data = scene.path(_METADATA).read_bytes()
    if len(old) != len(new) or old.encode() not in data:
        raise AssertionError(f"cannot be put in place of {old!r}: {new!r}")
    scene.path(_METADATA).write_bytes(data.replace(old.encode(), new.encode()))


@enter(_DCP, Reason.SAVE_UNFINISHED, "torch_dcp", source="awslabs/awsome-distributed-ai#190")
def metadata_deleted(scene: ForeignScene) -> str:
    """The job was cancelled while its ranks saved."""
    return scene.delete(_METADATA)


@enter(_DCP, Reason.SAVE_UNFINISHED, "torch_dcp")
def metadata_not_renamed(scene: ForeignScene) -> str:
    """The job died between writing the metadata and giving it its name."""
    scene.path(_METADATA).rename(scene.path(".metadata.tmp"))
    return _METADATA


@enter(_DCP, Reason.SAVE_UNFINISHED, "torch_dcp_each_rank")
def rank_metadata_deleted(scene: ForeignScene) -> str:
    """One rank of a save without collectives did not finish."""
    return scene.delete("__1.metadata")


@enter(_DCP, Reason.SAVE_UNFINISHED, "torch_dcp", source="KempnerInstitute/KempnerForge#102")
def latest_link_to_unfinished(scene: ForeignScene) -> str:
    """The training code's own link was moved to the newest directory before its metadata was there."""
    (scene.root / "latest").symlink_to(scene.name)
    return scene.delete(_METADATA)


@enter(_DCP, Reason.CONTAINER_MALFORMED, "torch_dcp")
def metadata_cut(scene: ForeignScene) -> str:
    """The metadata was only partly copied."""
    return scene.cut(_METADATA)


@enter(_DCP, Reason.SHARD_MISSING, "torch_dcp")
def data_deleted(scene: ForeignScene) -> str:
    """A data file was not copied."""
    return scene.delete(_data_file(scene))


@enter(_DCP, Reason.SIZE_MISMATCH, "torch_dcp")
def data_cut(scene: ForeignScene) -> str:
    """A data file was only partly copied."""
    return scene.cut(_data_file(scene))


@enter(_DCP, Reason.SIZE_MISMATCH, "torch_dcp", source="s3fs-fuse/s3fs-fuse#1345")
def data_emptied(scene: ForeignScene) -> str:
    """An empty object replaced a data file after the save."""
    return scene.cut(_data_file(scene), keep_ratio=0)


@enter(_DCP, Reason.SIZE_MISMATCH, "torch_dcp")
def data_appended_to(scene: ForeignScene) -> str:
    """Something wrote behind the last entry."""
    name = _data_file(scene)
    with scene.path(name).open("ab") as file:
        file.write(b"more")
    return name


@enter(_DCP, Reason.CONTAINER_MALFORMED, "torch_dcp", judge=ForeignJudge.INTEGRITY, source="s3fs-fuse/s3fs-fuse#1542")
def head_zeroed(scene: ForeignScene) -> str:
    """A mounted bucket wrote zeros where the first entry was."""
    name = _data_file(scene)
    first = min((entry for entry in _entries(scene) if entry.path == name), key=lambda entry: entry.offset)
    with scene.path(name).open("r+b") as file:
        file.seek(first.offset)
        file.write(bytes(first.length))
    return name


@enter(_DCP, Reason.RECORD_CORRUPT, "torch_dcp", judge=ForeignJudge.INTEGRITY)
def payload_flipped(scene: ForeignScene) -> str:
    """A bit of a tensor changed on the way to the disk; the loader takes it."""
    entry = max((one for one in _entries(scene) if one.chunk_offsets is not None), key=lambda one: one.length)
    data = scene.path(entry.path).read_bytes()
    return flip(scene, entry.path, data.index(b"/data/0", entry.offset) + 100)


@enter(_DCP, Reason.CONTAINER_MALFORMED, "torch_dcp")
def path_leads_out(scene: ForeignScene) -> str:
    """The metadata names a file above the checkpoint."""
    name = _data_file(scene)
    _replace(scene, name, f"../{name[3:]}")
    return _METADATA


@enter(_DCP, Reason.GLOBAL_NOT_ALLOWED, "torch_dcp")
def foreign_name_in_metadata(scene: ForeignScene) -> str:
    """The metadata would import a function that runs commands."""
    scene.path(_METADATA).write_bytes(plant_name(scene.path(_METADATA).read_bytes(), "posix.system"))
    return _METADATA


@enter(_DCP, Reason.ARTIFACT_NOT_REGULAR, "torch_dcp")
def data_linked(scene: ForeignScene) -> str:
    """A data file was moved to another disk and a link left in its place."""
    name, moved = _data_file(scene), scene.root / "moved.distcp"
    scene.path(name).rename(moved)
    scene.path(name).symlink_to(moved)
    return name


@enter(_DCP, None, "torch_dcp", source="NVIDIA-NeMo/Megatron-Bridge#5604")
def larger_run_left(scene: ForeignScene) -> str:
    """A data file of a run with more ranks stayed in a reused directory; no loader opens it."""
    name = _data_file(scene)
    shutil.copyfile(scene.root / scene.older / name, scene.path("__9_0.distcp"))
    return "__9_0.distcp"


@enter(_DCP, None, "torch_dcp")
def rank_had_nothing_to_write(scene: ForeignScene) -> str:
    """A rank whose parts were all written by others leaves an empty file."""
    scene.path("__9_0.distcp").write_bytes(b"")
    return "__9_0.distcp"


@enter(_TITAN, Reason.SHARD_MISSING, "torchtitan", source="pytorch/torchtitan#409")
def loader_of_rank_lost(scene: ForeignScene) -> str:
    """The data position of one data-parallel rank was not saved."""
    _replace(scene, "dataloader.dp_rank_1", "dataloader.xx_rank_1")
    return "dataloader.dp_rank_1"


@enter(_TITAN, Reason.SHARD_MISSING, "torchtitan", source="pytorch/torchtitan#816")
def loaders_of_a_wider_run_lost(scene: ForeignScene) -> str:
    """Four data-parallel ranks had positions, and a save after a resume on two kept those of two."""
    entry = next(one for one in _entries(scene) if one.fqn == "dataloader.world_size")
    edit_stored_pickle(scene.path(entry.path), entry.offset, entry.length, b"K\x02.", b"K\x04.")
    return "dataloader.dp_rank_2"


@enter(_TITAN, Reason.SAVE_UNFINISHED, "torchtitan", source="pytorch/torchtitan#930")
def being_written(scene: ForeignScene) -> str:
    """A load, or an event, came while the save was being written: half of the data is there and no metadata."""
    scene.cut(_data_file(scene))
    return scene.delete(_METADATA)


@enter(_TITAN, Reason.COMPONENT_MISSING, "torchtitan")
def scheduler_not_saved(scene: ForeignScene) -> str:
    """A save without the scheduler, whose rates would begin at warm-up again."""
    _replace(scene, "lr_scheduler.last_epoch", "other_thing_.last_epoch")
    return "scheduler"


@enter(_MEGATRON, Reason.SAVE_UNFINISHED, "megatron")
def marker_deleted(scene: ForeignScene) -> str:
    """An asynchronous save had written its data and not its last file."""
    return scene.delete("metadata.json")


@enter(_MEGATRON, Reason.ARTIFACT_MISSING, "megatron")
def common_deleted(scene: ForeignScene) -> str:
    """What all ranks share is gone: iteration, arguments, scheduler."""
    return scene.delete("common.pt")


@enter(_MEGATRON, Reason.SHARD_MISSING, "megatron")
def shard_deleted(scene: ForeignScene) -> str:
    """A data file was not copied."""
    return scene.delete(_data_file(scene))


@enter(_MEGATRON, Reason.SHARD_MISSING, "megatron", source="NVIDIA-NeMo/Automodel#3437")
def random_state_of_rank_lost(scene: ForeignScene) -> str:
    """Only the first model-parallel rank's random state was saved."""
    _replace(scene, "rng_state/shard_0.1_1.2", "rng_state_shard_0.1_1.2")
    return "rng_state/shard_0.1_1.2"


@enter(_MEGATRON, Reason.RANK_DUPLICATED, "megatron", source="NVIDIA/Megatron-LM#6858")
def random_state_of_another_rank(scene: ForeignScene) -> str:
    """Every rank saved rank 0's random state."""
    first, second = (one for one in _entries(scene) if one.fqn.startswith("rng_state/"))
    data = scene.path(first.path).read_bytes()[first.offset : first.offset + first.length]
    if len(data) != second.length:
        raise AssertionError("random states of two ranks are not of one length")
    with scene.path(second.path).open("r+b") as file:
        file.seek(second.offset)
        file.write(data)
    return second.path


@enter(_MEGATRON, Reason.COUNTERS_DISAGREE, "megatron")
def directory_renamed(scene: ForeignScene) -> str:
    """A checkpoint was copied over the directory of another iteration."""
    shutil.copyfile(scene.root / scene.older / "common.pt", scene.path("common.pt"))
    return "common.pt"


@enter(
    _MEGATRON,
    Reason.POINTER_DANGLING,
    "megatron",
    judge=ForeignJudge.ROOT,
    source="NVIDIA-NeMo/Megatron-Bridge#4820",
)
def tracker_names_deleted(scene: ForeignScene) -> str:
    """Retention deleted what the tracker names."""
    (scene.root / _TRACKER).write_text("12")
    return _TRACKER


@enter(
    _MEGATRON,
    Reason.POINTER_DANGLING,
    "megatron",
    judge=ForeignJudge.ROOT,
    source="NVIDIA-NeMo/Speech#8153",
)
def directory_not_visible_yet(scene: ForeignScene) -> str:
    """The tracker is seen on this host, and the directory that it names is not for half a minute."""
    scene.checkpoint.rename(scene.root / f".{scene.name}")
    return _TRACKER


@enter(_MEGATRON, Reason.POINTER_UNCOMMITTED, "megatron", judge=ForeignJudge.ROOT)
def tracker_names_unfinished(scene: ForeignScene) -> str:
    """The tracker names a save that did not finish."""
    scene.delete("metadata.json")
    return _TRACKER


@enter(_MEGATRON, Reason.POINTER_MALFORMED, "megatron", judge=ForeignJudge.ROOT)
def tracker_torn(scene: ForeignScene) -> str:
    """The tracker is written in place, and the job was killed before its bytes."""
    (scene.root / _TRACKER).write_bytes(b"")
    return _TRACKER


_LEGACY = Framework.MEGATRON_LEGACY


@enter(_LEGACY, Reason.SHARD_MISSING, "megatron_legacy")
def rank_directory_deleted(scene: ForeignScene) -> str:
    """One model-parallel rank's directory was not copied."""
    scene.delete("mp_rank_01")
    return "mp_rank_01/model_optim_rng.pt"


@enter(_LEGACY, Reason.GENERATIONS_MIXED, "megatron_legacy")
def rank_of_older_save(scene: ForeignScene) -> str:
    """One model-parallel rank's file is of the save before."""
    return scene.bring_from_older("mp_rank_01/model_optim_rng.pt")


@enter(_LEGACY, Reason.UNEXPECTED_FILE, "megatron_legacy")
def wider_run_left(scene: ForeignScene) -> str:
    """A run with more tensor-parallel ranks used the directory before."""
    left = "mp_rank_02/model_optim_rng.pt"
    scene.path("mp_rank_02").mkdir()
    shutil.copyfile(scene.root / scene.older / "mp_rank_01/model_optim_rng.pt", scene.path(left))
    return left


_UNIVERSAL = Framework.DEEPSPEED_UNIVERSAL


@enter(_UNIVERSAL, Reason.ARTIFACT_MISSING, "deepspeed_universal")
def moment_deleted(scene: ForeignScene) -> str:
    """The conversion was interrupted: one parameter has no second moment."""
    return scene.delete("zero/layer.weight/exp_avg_sq.pt")


@enter(_UNIVERSAL, Reason.ARTIFACT_MISSING, "deepspeed_universal")
def parameter_deleted(scene: ForeignScene) -> str:
    """The conversion was interrupted before one parameter."""
    scene.delete("zero/layer.weight")
    return "zero/layer.weight/fp32.pt"
