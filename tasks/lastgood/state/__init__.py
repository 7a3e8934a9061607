"""The required-state registry: everything whose value changes the next step, saved, loaded and validated.

    identity = RankIdentity.current({"data_parallel": rank})
    cursor = CursorSampler(len(dataset), global_batch=32, identity=identity, seed=7)
    loader = StatefulDataLoader(dataset, batch_size=4, sampler=cursor, num_workers=2)
    accumulation = Accumulation(microbatches=4)

    registry = Registry(identity)
    registry.model(model)                       # after DistributedDataParallel or fully_shard
    registry.optimizer(optimizer, model)
    registry.scheduler(scheduler)
    registry.scaler(scaler)
    registry.accumulation(accumulation)
    registry.rng({"augment": augment_random})   # Python, NumPy, torch and CUDA streams are always in
    registry.data(cursor, loader=loader)
    registry.configuration({"hidden": 64, "learning_rate": 3e-4})
    registry.topology("ddp", {"data_parallel": 2})
    registry.absent(Component.EMA, "the run keeps no moving average")
    registry.audit(roots=[trainer])             # refuses whatever stateful object nobody registered

    report = registry.load(directory)           # strict; report.findings says why not, and then nothing changed
    for batch in cursor.follow(loader):         # a batch counts when it is handed out, not when it is prefetched
        ...
        snapshot = registry.capture(step)       # collectives; observation of the next update
        snapshot.write(payload)                 # files only; any thread, if captured with asynchronous=True

The tour: `ranks` (who we are) and `parts` (what a component is); `modules`, `counters`, `layout`, `rng`, `trackers`,
`data` with `cursor`, `records` and `loaders` (the kinds of state); `codec` and `tensorfile` (values and tensors as
bytes); `storage` and `snapshot` (saving), `reading`, `sentinel` and `restoring` (loading); `observation` (what must
come back); `audit` and `ownership` (what was forgotten); `registry` holds them together.
"""

from __future__ import annotations

from lastgood.manifest import Component
from lastgood.state.counters import Accumulation
from lastgood.state.cursor import CursorSampler, follow
from lastgood.state.observation import Observation
from lastgood.state.ranks import RankIdentity
from lastgood.state.records import LineFiles, Record, RecordCursor, RecordSource
from lastgood.state.registry import Registry
from lastgood.state.restoring import LoadReport
from lastgood.state.snapshot import Snapshot, WrittenArtifact

__all__ = [
    "Accumulation",
    "Component",
    "CursorSampler",
    "LineFiles",
    "LoadReport",
    "Observation",
    "RankIdentity",
    "Record",
    "RecordCursor",
    "RecordSource",
    "Registry",
    "Snapshot",
    "WrittenArtifact",
    "follow",
]
