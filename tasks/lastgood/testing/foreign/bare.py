"""What happens to files of `torch.save` and to bare weights."""

from __future__ import annotations

from lastgood.formats.description import Framework
from lastgood.reasons import NoteReason, Reason
from lastgood.testing.foreign.archives import edit_pickle, plant_name
from lastgood.testing.foreign.catalogue import ForeignJudge, enter
from lastgood.testing.foreign.scene import ForeignScene

__all__: list[str] = []

_STRANGER = "omegaconf.listconfig.ListConfig"

_TORCH = Framework.TORCH_SAVE
_SAFE = Framework.SAFETENSORS
_FILE = "torch_save"
_WEIGHTS = "safetensors"
_SHARDS = "safetensors_sharded"
_SHARD = "model-00001-of-00002.safetensors"
_INDEX = "model.safetensors.index.json"


@enter(_TORCH, Reason.CONTAINER_MALFORMED, _FILE)
def truncated(scene: ForeignScene) -> str:
    """The job was killed while it wrote the file in place."""
    scene.cut("")
    return scene.name


@enter(_TORCH, Reason.CONTAINER_MALFORMED, _FILE, source="s3fs-fuse/s3fs-fuse#535")
def emptied(scene: ForeignScene) -> str:
    """A rename on a bucket's file system left an object of 0 bytes."""
    scene.cut("", keep_ratio=0)
    return scene.name


@enter(_TORCH, Reason.CONTAINER_MALFORMED, _FILE, source="s3fs-fuse/s3fs-fuse#1542")
def zero_head(scene: ForeignScene) -> str:
    """The first bytes read as zero: a lost part of an upload."""
    scene.zero("")
    return scene.name


@enter(_TORCH, Reason.RECORD_CORRUPT, _FILE, judge=ForeignJudge.INTEGRITY)
def flipped(scene: ForeignScene) -> str:
    """One bit of a tensor changed."""
    scene.flip_record("")
    return scene.name


@enter(_TORCH, Reason.GLOBAL_NOT_ALLOWED, _FILE, judge=ForeignJudge.INTEGRITY, source="meta-pytorch/torchtune#1142")
def names_a_stranger(scene: ForeignScene) -> str:
    """The file holds an object whose class no loader should import."""
    edit_pickle(scene.checkpoint, lambda data: plant_name(data, _STRANGER))
    return scene.name


@enter(_TORCH, NoteReason.COMPONENT_NEVER_SAVED, _FILE, source="ultralytics/ultralytics#22189")
def scaler_never_saved(scene: ForeignScene) -> str:
    """Nothing happened: the loop puts no loss scale into its file."""
    return "scaler"


@enter(_TORCH, NoteReason.COMPONENT_NEVER_SAVED, _FILE, source="KempnerInstitute/KempnerForge#51")
def position_never_saved(scene: ForeignScene) -> str:
    """Nothing happened: the loop puts no position in the data into its file, so that every resume replays the epoch."""
    return "data"


@enter(_SAFE, Reason.CONTAINER_MALFORMED, _WEIGHTS)
def weights_truncated(scene: ForeignScene) -> str:
    """The copy broke off."""
    scene.cut("", keep_ratio=0.9)
    return scene.name


@enter(_SAFE, Reason.CONTAINER_MALFORMED, _WEIGHTS)
def weights_emptied(scene: ForeignScene) -> str:
    """An object of 0 bytes."""
    scene.cut("", keep_ratio=0)
    return scene.name


@enter(_SAFE, Reason.CONTAINER_MALFORMED, _WEIGHTS)
def weights_appended(scene: ForeignScene) -> str:
    """Something was written behind the end."""
    with scene.checkpoint.open("ab") as file:
        file.write(b"\0")
    return scene.name


@enter(_SAFE, Reason.SHARD_MISSING, _SHARDS)
def shard_deleted(scene: ForeignScene) -> str:
    """A shard that the index names is gone."""
    return scene.delete(_SHARD)


@enter(_SAFE, Reason.ARTIFACT_MISSING, _SHARDS)
def index_deleted(scene: ForeignScene) -> str:
    """The index over the shards is gone."""
    return scene.delete(_INDEX)


@enter(_SAFE, Reason.CONTAINER_MALFORMED, _SHARDS)
def index_torn(scene: ForeignScene) -> str:
    """The index breaks off in the middle."""
    return scene.cut(_INDEX)
