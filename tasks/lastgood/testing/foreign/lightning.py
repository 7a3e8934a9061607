"""What happens to checkpoints of Lightning."""

from __future__ import annotations

from lastgood.formats.description import Framework
from lastgood.reasons import Reason
from lastgood.testing.foreign.archives import edit_pickle, plant_name, set_small_number
from lastgood.testing.foreign.catalogue import ForeignJudge, enter
from lastgood.testing.foreign.scene import ForeignScene

__all__: list[str] = []

_STRANGER = "omegaconf.listconfig.ListConfig"

_LIGHTNING = Framework.LIGHTNING
_FILE = "lightning"
_SPLIT = "lightning_fsdp"


def _without(scene: ForeignScene, key: str) -> str:
    """Give a key of the dump another name, which is to take it out."""
    other = f"{key[:-1]}_".encode()
    edit_pickle(scene.checkpoint, lambda data: data.replace(key.encode(), other, 1))
    return key


@enter(_LIGHTNING, Reason.CONTAINER_MALFORMED, _FILE, source="Lightning-AI/pytorch-lightning#19970")
def truncated(scene: ForeignScene) -> str:
    """The job was killed while it wrote the file in place."""
    scene.cut("")
    return scene.name


@enter(_LIGHTNING, Reason.CONTAINER_MALFORMED, _FILE, source="s3fs-fuse/s3fs-fuse#535")
def emptied(scene: ForeignScene) -> str:
    """A rename on a bucket's file system left an object of 0 bytes."""
    scene.cut("", keep_ratio=0)
    return scene.name


@enter(_LIGHTNING, Reason.CONTAINER_MALFORMED, _FILE, source="s3fs-fuse/s3fs-fuse#1542")
def zero_head(scene: ForeignScene) -> str:
    """The first bytes read as zero: a lost part of an upload."""
    scene.zero("")
    return scene.name


@enter(_LIGHTNING, Reason.RECORD_CORRUPT, _FILE, judge=ForeignJudge.INTEGRITY)
def flipped(scene: ForeignScene) -> str:
    """One bit of a tensor changed."""
    scene.flip_record("")
    return scene.name


@enter(_LIGHTNING, Reason.GLOBAL_NOT_ALLOWED, _FILE, judge=ForeignJudge.INTEGRITY)
def names_a_stranger(scene: ForeignScene) -> str:
    """The file holds an object whose class no loader should import."""
    edit_pickle(scene.checkpoint, lambda data: plant_name(data, _STRANGER))
    return scene.name


@enter(_LIGHTNING, Reason.COMPONENT_MISSING, _FILE)
def optimizers_left_out(scene: ForeignScene) -> str:
    """The optimizers' states are not in the dump, and the rest of a training is."""
    return _without(scene, "optimizer_states")


@enter(_LIGHTNING, Reason.COMPONENT_MISSING, _FILE)
def schedulers_left_out(scene: ForeignScene) -> str:
    """The schedulers' states are not in the dump, and the rest of a training is."""
    return _without(scene, "lr_schedulers")


@enter(_LIGHTNING, Reason.COMPONENT_MISSING, _FILE)
def loops_left_out(scene: ForeignScene) -> str:
    """The loops' positions are not in the dump; Lightning goes on in silence and repeats steps."""
    return _without(scene, "loops")


@enter(_LIGHTNING, Reason.COMPONENT_MISSING, _FILE)
def model_left_out(scene: ForeignScene) -> str:
    """The model's tensors are not in the dump."""
    return _without(scene, "state_dict")


@enter(_LIGHTNING, Reason.COUNTERS_DISAGREE, _FILE)
def global_step_edited(scene: ForeignScene) -> str:
    """Somebody set the step back by hand, and the loops still count what happened."""
    edit_pickle(scene.checkpoint, lambda data: set_small_number(data, "global_step", 4))
    return scene.name


@enter(_LIGHTNING, Reason.POINTER_DANGLING, _FILE, judge=ForeignJudge.ROOT)
def last_link_dangles(scene: ForeignScene) -> str:
    """`last.ckpt` is a link to a checkpoint that retention deleted."""
    last = scene.root / "last.ckpt"
    last.unlink()
    last.symlink_to("gone.ckpt")
    return "last.ckpt"


@enter(_LIGHTNING, Reason.SAVE_UNFINISHED, _SPLIT)
def dump_deleted(scene: ForeignScene) -> str:
    """The save was killed before the dump beside the shards was written."""
    return scene.delete("meta.pt")


@enter(_LIGHTNING, Reason.CONTAINER_MALFORMED, _SPLIT)
def dump_truncated(scene: ForeignScene) -> str:
    """The dump beside the shards breaks off."""
    return scene.cut("meta.pt")


@enter(_LIGHTNING, Reason.COUNTERS_DISAGREE, _SPLIT)
def dump_of_an_older_save(scene: ForeignScene) -> str:
    """The dump beside the shards is that of the checkpoint before."""
    return scene.bring_from_older("meta.pt")


@enter(_LIGHTNING, Reason.SHARD_MISSING, _SPLIT)
def shard_deleted(scene: ForeignScene) -> str:
    """One rank's shard is gone."""
    return scene.delete("__1_0.distcp")
