"""Manifests that are lawful, committed and true to the bytes, and yet claim what may not be resumed."""

from __future__ import annotations

import shutil

import msgspec

from lastgood.manifest import REQUIRED_COMPONENTS, Component, Purpose, Topology
from lastgood.reasons import Reason
from lastgood.testing.damage.catalogue import Apply, enter
from lastgood.testing.damage.scene import Scene

__all__: list[str] = []


@enter(Reason.WORLD_SIZE_MISMATCH)
def world_size_too_large(scene: Scene) -> str:
    """The manifest says twice as many ranks as wrote shards."""
    world_size = 2 * scene.manifest().job.topology.world_size
    job = msgspec.structs.replace(
        scene.manifest().job, topology=Topology(world_size=world_size, strategy="built", layout={})
    )
    scene.publish_again(job=job, expectations=None)
    return Component.MODEL.value


@enter(Reason.WORLD_SIZE_MISMATCH)
def world_size_too_small(scene: Scene) -> str:
    """The manifest says one rank fewer than wrote shards."""
    world_size = scene.manifest().job.topology.world_size - 1
    job = msgspec.structs.replace(
        scene.manifest().job, topology=Topology(world_size=world_size, strategy="built", layout={})
    )
    scene.publish_again(job=job, expectations=None)
    return scene.keys.manifest(scene.generation)


@enter(Reason.WORLD_SIZE_MISMATCH)
def rank_left_out(scene: Scene) -> str:
    """One rank's optimizer was never saved, and the manifest agrees with that."""
    left_out = scene.artifact(Component.OPTIMIZER, 1)
    scene.file(Component.OPTIMIZER, 1).unlink()
    scene.publish_again(artifacts=tuple(a for a in scene.manifest().artifacts if a != left_out))
    return Component.OPTIMIZER.value


@enter(Reason.RANK_DUPLICATED)
def every_rank_saved_rank_zero(scene: Scene) -> str:
    """All ranks saved rank 0's random state, although their streams were at different draws."""
    own, first = scene.artifact(Component.RNG, 1), scene.artifact(Component.RNG, 0)
    shutil.copyfile(scene.directory / first.path, scene.directory / own.path)
    copied = msgspec.structs.replace(own, bytes=first.bytes, digests=first.digests)
    scene.publish_again(artifacts=tuple(copied if a == own else a for a in scene.manifest().artifacts))
    return own.path


@enter(Reason.COMPONENT_MISSING)
def moving_average_left_out(scene: Scene) -> str:
    """The run kept a moving average of its weights, whose tensors were live at the save, and nobody wrote it."""
    expectations = scene.manifest().expectations
    assert expectations is not None, "a built family states what it expects"
    digest = {f"{Component.EMA}.weight": f"blake3:{7:064x}"}
    ranks = tuple(msgspec.structs.replace(rank, tensor_digests=digest) for rank in expectations.ranks)
    scene.publish_again(expectations=msgspec.structs.replace(expectations, ranks=ranks))
    return Component.EMA.value


@enter(Reason.PURPOSE_NOT_RESUMABLE)
def weights_only_offered_as_a_checkpoint(scene: Scene) -> str:
    """An export for inference was published among the checkpoints."""
    scene.leave_out(*(component for component in Component if component is not Component.MODEL))
    scene.describe_again(purpose=Purpose.WEIGHTS_ONLY)
    return "purpose"


@enter(Reason.COMPONENT_MISSING)
def weights_only_in_disguise(scene: Scene) -> str:
    """Only the model was saved, and the manifest calls it resumable."""
    scene.leave_out(*(component for component in Component if component is not Component.MODEL))
    return Component.OPTIMIZER.value


def _left_out(component: Component) -> Apply:
    def apply(scene: Scene) -> str:
        scene.leave_out(component)
        return component.value

    apply.__name__ = f"{component}_left_out"
    apply.__doc__ = f"The training code never saved its {component}, and nobody declared it absent."
    return apply


for _component in REQUIRED_COMPONENTS:
    enter(Reason.COMPONENT_MISSING)(_left_out(_component))
