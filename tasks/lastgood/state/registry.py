"""The required-state registry: what a run's next step depends on, and how each of it is saved, loaded and validated.

Decides which components a run has and refuses a save or load that would leave one out. Leaves the kinds to `modules`,
`counters`, `rng` and `data`, reading back to `restoring`, and looking for forgotten objects to `audit`. Rules: a
component without save, load and validate is an error at registration, as is registering one twice; what is absent is
absent on purpose, with a reason. Source: docs/architecture.md
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from lastgood.errors import RegistrationError
from lastgood.manifest import REQUIRED_COMPONENTS, AbsentComponent, Component, ExplainedKey, RankExpectations
from lastgood.state import observation
from lastgood.state.audit import Unregistered, find_unregistered
from lastgood.state.counters import (
    AccumulationLike,
    StatefulLike,
    accumulation_part,
    configuration_part,
    scaler_part,
    scheduler_part,
)
from lastgood.state.data import PEEKED_SAMPLES, Position, data_part, position_of
from lastgood.state.layout import topology_part
from lastgood.state.modules import MappingPart, ModulePart, OptimizerPart
from lastgood.state.observation import Observation
from lastgood.state.parts import DocumentPart, Scope, TensorPart
from lastgood.state.ranks import RankIdentity, Ranks
from lastgood.state.restoring import LoadReport, restore
from lastgood.state.rng import Stream, named_stream, other_device_streams, rng_part, standard_streams
from lastgood.state.snapshot import Snapshot, capture_documents
from lastgood.state.storage import HostMemory, capture_tensors
from lastgood.state.trackers import DTensorTracker, MegatronTracker
from lastgood.verdict import Finding, Note

__all__ = ["Registry"]


class Registry:
    """The state of one rank of one run. Every rank registers the same components, after wrapping and before training.

    Args:
        identity: This rank.
        process_group: Carries small objects between all ranks; the default group if None.
    """

    def __init__(self, identity: RankIdentity, process_group: Any = None) -> None:
        self.identity = identity
        self._ranks = Ranks(identity, process_group)
        self._tensor_parts: dict[str, TensorPart] = {}
        self._document_parts: dict[str, DocumentPart] = {}
        self._positions: dict[str, Position] = {}
        self._streams: dict[str, Stream] = {}
        self._other_streams: dict[str, Stream] = {}
        self._memory: dict[str, HostMemory] = {}
        self._absent: dict[Component, str] = {}
        self._explained: dict[str, str] = {}
        self._ignored: list[tuple[object, str]] = []

    # Registration

    def model(self, module: torch.nn.Module) -> None:
        """Register the model: parameters and persistent buffers. Plain, DistributedDataParallel or fully_shard."""
        self._add_tensors(ModulePart(module, Component.MODEL, "model"))

    def ema(self, average: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
        """Register a moving average of the weights: a module such as `AveragedModel`, or tensors by name."""
        if isinstance(average, torch.nn.Module):
            self._add_tensors(ModulePart(average, Component.EMA, "ema"))
        else:
            self._add_tensors(MappingPart(average, Component.EMA, "ema"))

    def optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, name: str = "optimizer") -> None:
        """Register an optimizer of the model's parameters; a second one needs a name of its own."""
        self._add_tensors(OptimizerPart(optimizer, model, name))

    def scheduler(self, scheduler: StatefulLike, name: str = "scheduler") -> None:
        """Register a learning-rate scheduler; its counters name completed steps."""
        self._add_document(scheduler_part(scheduler, name))

    def scaler(self, scaler: StatefulLike, name: str = "scaler") -> None:
        """Register a gradient scaler, enabled or not."""
        self._add_document(scaler_part(scaler, name))

    def accumulation(self, accumulation: AccumulationLike) -> None:
        """Register the accumulation window; a capture inside one is refused."""
        self._add_document(accumulation_part(accumulation))

    def rng(
        self, generators: Mapping[str, object] | None = None, *, cuda_tracker: Any = None, dtensor_tracker: Any = None
    ) -> None:
        """Register this rank's random streams: the global ones always, and these.

        Set the rank's CUDA device before: its stream must come back, those of other visible devices are optional.

        Args:
            generators: Name → `random.Random`, NumPy `Generator` or `RandomState`, or `torch.Generator`.
            cuda_tracker: Megatron's, with all its streams added.
            dtensor_tracker: `torch.distributed.tensor._random._rng_tracker`, where DTensor has made one.
        """
        streams = standard_streams()
        for name, generator in (generators or {}).items():
            streams[f"generator.{name}"] = named_stream(name, generator)
        if cuda_tracker is not None:
            streams["tracker.cuda"] = MegatronTracker(cuda_tracker)
        if dtensor_tracker is not None:
            streams["tracker.dtensor"] = DTensorTracker(dtensor_tracker)
        others = other_device_streams()
        self._add_document(rng_part(streams, self.identity, others=others))
        self._streams, self._other_streams = streams, others

    def data(self, source: object, *, loader: object = None, name: str = "train") -> None:
        """Register where the samples stand.

        Args:
            source: A `CursorSampler`, a `RecordCursor`, or torchdata's `StatefulDataLoader`.
            loader: The loader that a `CursorSampler` feeds, which then needs no state of its own.
            name: Of this source, where there are several.
        """
        position = position_of(source, self.identity, loader)
        self._add_document(data_part(position, name))
        self._positions[name] = position

    def configuration(self, configuration: Mapping[str, Any]) -> None:
        """Register what the run was configured with: plain values; a difference after a load is a note."""
        self._add_document(configuration_part(configuration))

    def topology(self, strategy: str, layout: Mapping[str, int]) -> None:
        """Register how the run is spread over ranks.

        Args:
            strategy: `single`, `ddp`, `fsdp2` or a word of the run's own.
            layout: Axis → size; the product is the world size.
        """
        self._add_document(topology_part(strategy, layout, self.identity))

    def component(
        self,
        name: str,
        *,
        save: Callable[[], Any],
        load: Callable[[Any], None],
        validate: Callable[[Any], Iterable[str | Finding | Note]],
        owns: tuple[object, ...] = (),
        per_rank: bool = False,
    ) -> None:
        """Register any other state that is a few plain values.

        Args:
            name: Unique; also the name of its file.
            save: Gives the values.
            load: Takes validated values.
            validate: Says in sentences what is wrong with values, touching nothing.
            owns: The live objects that these values restore, for the audit.
            per_rank: Whether each rank has its own.
        """
        file = f"other/{name}/{self.identity.file_stem}.json" if per_rank else f"other/{name}.json"
        for needed, function in (("save", save), ("load", load), ("validate", validate)):
            if not callable(function):
                raise RegistrationError(f"component incomplete: {name} does not say how it is {needed}d")
        if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii():
            raise RegistrationError(f"component name unusable as a file name: {name!r}")
        self._add_document(
            DocumentPart(
                component=Component.OTHER,
                name=name,
                file=file,
                scope=Scope.PER_RANK if per_rank else Scope.REPLICATED,
                save=save,
                validate=validate,
                load=load,
                owns=owns,
            )
        )

    def absent(self, component: Component, reason: str) -> None:
        """Declare that the run has no such state, and why; recorded in the manifest."""
        if component in self.components:
            raise RegistrationError(f"component both registered and absent: {component}")
        self._absent[component] = _reasoned(f"absent({component})", reason)

    def explain(self, key: str, reason: str) -> None:
        """Accept that `key` (`model.rotary.inv_freq`) is missing, unexpected or of another shape; recorded."""
        self._explained[key] = _reasoned(f"explain({key})", reason)

    def ignore(self, thing: object, reason: str) -> None:
        """Let the audit pass over a live object that looks like state and is none."""
        self._ignored.append((thing, _reasoned("ignore", reason)))

    # Questions

    @property
    def _parts(self) -> tuple[TensorPart | DocumentPart, ...]:
        return (*self._tensor_parts.values(), *self._document_parts.values())

    @property
    def components(self) -> tuple[Component, ...]:
        """What is registered, in the order of the vocabulary."""
        present = {part.component for part in self._parts}
        return tuple(component for component in Component if component in present)

    def unregistered(self, roots: Iterable[object] = ()) -> tuple[Unregistered, ...]:
        """Everything live that looks like state and that nobody registered or ignored."""
        return find_unregistered(roots, self._parts, tuple(thing for thing, _ in self._ignored), registry=self)

    def audit(self, roots: Iterable[object] = ()) -> None:
        """Refuse to go on while required components or live stateful objects are unregistered.

        Args:
            roots: Where to look and name what was found, e.g. the trainer object; all live objects are looked at too.

        Raises:
            RegistrationError: Naming all of them.
        """
        problems = [f"component {component} is neither registered nor declared absent" for component in self._missing()]
        problems.extend(str(found) for found in self.unregistered(roots))
        if problems:
            raise RegistrationError(
                "state not registered: " + "; ".join(problems),
                hint="register each, declare the component absent(…, reason), or ignore(object, reason)",
            )

    def observe(self, step: int) -> Observation:
        """Say what the next update depends on, consuming nothing; call it alike before a save and after a load.

        Args:
            step: Completed optimizer steps; chooses the sampled tensors.
        """
        optimizers = [part for part in self._tensor_parts.values() if isinstance(part, OptimizerPart)]
        ids = {name: self._positions[name].next_ids(PEEKED_SAMPLES) for name in sorted(self._positions)}
        tensors = {}
        for part in self._tensor_parts.values():
            # What may differ between ranks is saved from the lowest one, so the others get back another value.
            left_out = set(part.unsynchronised()) if self.identity.rank else set[str]()
            kept = {key: tensor for key, tensor in part.tensors().items() if key not in left_out}
            tensors.update({f"{part.name}.{key}": tensor for key, tensor in kept.items()})
        rank = RankExpectations(
            rank=self.identity.rank,
            sample_ids=observation.merge_sample_ids(ids),
            rng_draws={name: stream.peek() for name, stream in self._streams.items()},
            tensor_digests=observation.digest_sample(tensors, step),
        )
        return Observation(
            rank=rank,
            learning_rates=observation.learning_rates(optimizers),
            optimizer_steps=observation.optimizer_steps(optimizers),
            scalars=self._scalars(),
        )

    # Saving and loading

    def capture(self, step: int, *, asynchronous: bool = False) -> Snapshot:
        """Take the state as it is now; every rank calls it together, and all collectives happen here.

        Args:
            step: Completed optimizer steps.
            asynchronous: Copy tensors to private host memory, so that training may go on before `Snapshot.write`.

        Raises:
            RegistrationError: A required component is neither registered nor declared absent.
            UsageError: The run stands inside an accumulation window or global batch, or ranks disagree.
        """
        observed, tensor_states = self._ranks.together(lambda: self._look(step))
        files = capture_documents(
            tuple(self._document_parts.values()), step=step, identity=self.identity, ranks=self._ranks
        )
        shards = tuple(
            capture_tensors(
                tensors,
                objects,
                component=part.component,
                directory=part.name,
                step=step,
                identity=self.identity,
                ranks=self._ranks,
                unsynchronised=part.unsynchronised(),
                memory=self._memory.setdefault(part.name, HostMemory()) if asynchronous else None,
            )
            for part, tensors, objects in tensor_states
        )
        return Snapshot(
            step=step,
            identity=self.identity,
            observation=observed,
            components=self.components,
            absent=tuple(AbsentComponent(component=one, reason=why) for one, why in sorted(self._absent.items())),
            explained=tuple(ExplainedKey(key=key, reason=why) for key, why in sorted(self._explained.items())),
            asynchronous=asynchronous,
            shards=shards,
            files=files,
        )

    def load(self, directory: Path, *, allow_topology_change: bool = False) -> LoadReport:
        """Load a verified copy of a generation strictly; every rank calls it together.

        Nothing live changes unless every rank found everything in order.

        Args:
            directory: Holds `model/`, `optimizer/`, … as they were written.
            allow_topology_change: Accept a checkpoint of another number of ranks: tensors are resharded, a global data
                cursor goes on, and random streams begin anew (reproducibly), which a note says.
        """
        return restore(
            directory,
            tuple(self._tensor_parts.values()),
            tuple(self._document_parts.values()),
            streams={**self._streams, **self._other_streams},
            identity=self.identity,
            ranks=self._ranks,
            explained=self._explained,
            allow_topology_change=allow_topology_change,
        )

    def _look(self, step: int) -> tuple[Observation, list[tuple[TensorPart, dict[str, torch.Tensor], Any]]]:
        """Everything of a capture that can fail on one rank alone."""
        missing = self._missing()
        if missing:
            raise RegistrationError(
                f"component unregistered: {', '.join(missing)}", hint="register it or declare it absent"
            )
        states = [(part, part.tensors(), part.objects()) for part in self._tensor_parts.values()]
        return self.observe(step), states

    def _missing(self) -> list[Component]:
        known = {*self.components, *self._absent}
        return [component for component in REQUIRED_COMPONENTS if component not in known]

    def _scalars(self) -> dict[str, float | int]:
        scalars: dict[str, float | int] = {}
        for part in self._document_parts.values():
            if part.component in (Component.SCALER, Component.SCHEDULER, Component.ACCUMULATION):
                values = part.save()
            elif part.component is Component.DATA:
                values = self._positions[part.name.removeprefix("data.")].save()
            else:
                continue
            for key, value in values.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                    scalars[f"{part.name}.{key}"] = value
        return scalars

    def _add_tensors(self, part: TensorPart) -> None:
        self._claim(part.name, part.component)
        self._tensor_parts[part.name] = part

    def _add_document(self, part: DocumentPart) -> None:
        self._claim(part.name, part.component)
        self._document_parts[part.name] = part

    def _claim(self, name: str, component: Component) -> None:
        if name in self._tensor_parts or name in self._document_parts:
            raise RegistrationError(f"component registered twice: {name}")
        if component in self._absent:
            raise RegistrationError(f"component both registered and absent: {component}")


def _reasoned(what: str, reason: str) -> str:
    if not reason.strip():
        raise RegistrationError(f"reason missing: {what}")
    return reason
