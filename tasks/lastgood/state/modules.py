"""Models, moving averages and optimizers as parts: which tensors they are and what else must come back.

Decides the keys. A model's and an average's are torch's own fully qualified names without the prefixes of wrappers; an
optimizer's are `<state name>/<parameter name>`, so that groups and positions may change without a tensor losing its
name. Rule: registered objects are never stepped and never reallocated to be saved; a fresh optimizer stays fresh (the
state-dict helper of torch would take a fake step and count it).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

from lastgood.errors import RegistrationError, UsageError
from lastgood.manifest import Component
from lastgood.state import codec
from lastgood.state.parts import invalid
from lastgood.verdict import Finding, Note, NoteReason, Reason

__all__ = ["MappingPart", "ModulePart", "OptimizerPart", "group_name", "local_address", "parameter_names"]

# How an update is computed, not what it is: they follow the machine, so the running value stays.
_IMPLEMENTATION = frozenset({"foreach", "fused", "capturable", "differentiable"})
_WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
_SEPARATOR = "/"


class ModulePart:
    """A module's parameters and persistent buffers, and its extra state."""

    def __init__(self, module: torch.nn.Module, component: Component, name: str) -> None:
        self.component = component
        self.name = name
        self.owns: tuple[object, ...] = (module,)
        self._module = module

    def tensors(self) -> dict[str, torch.Tensor]:
        state = get_model_state_dict(self._module)
        return {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}

    def unsynchronised(self) -> Collection[str]:
        buffers = {local_address(buffer) for buffer in self._module.buffers() if not hasattr(buffer, "to_local")}
        return [key for key, tensor in self.tensors().items() if buffers and local_address(tensor) in buffers]

    def objects(self) -> Any:
        plain = torch.nn.Module.get_extra_state
        if all(type(module).get_extra_state is plain for module in self._module.modules()):
            return {}  # naming a large model's tensors costs more than asking whether it has anything else
        state = get_model_state_dict(self._module)
        return codec.encode(
            {key: value for key, value in state.items() if not isinstance(value, torch.Tensor)}, self.name
        )

    def prepare(self, stored: Mapping[str, tuple[tuple[int, ...], torch.dtype]], objects: Mapping[int, Any]) -> None:
        """A module's tensors exist since it was built."""

    def discard(self) -> None:
        """Nothing was created."""

    def validate(
        self, objects: Mapping[int, Any], keys: Collection[str], scalars: Mapping[str, torch.Tensor]
    ) -> Iterator[Finding | Note]:
        for rank, saved in objects.items():
            for fact in codec.differences(codec.decode(self.objects()), codec.decode(saved), self.name):
                yield invalid(f"{self.name}/rank-{rank:05d}", fact)

    def load(self, objects: Mapping[int, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        extra = codec.decode(next(iter(objects.values())))
        held = {local_address(tensor) for tensor in (*self._module.parameters(), *self._module.buffers())}
        if extra or any(local_address(tensor) not in held for tensor in tensors.values()):
            # A hook gave copies, or there is extra state: only the module itself can take those back.
            set_model_state_dict(self._module, {**tensors, **extra})

    def unrestored(self, objects: Mapping[int, Any]) -> Iterator[str]:
        if not codec.same(codec.decode(self.objects()), codec.decode(next(iter(objects.values())))):
            yield "the module's extra state differs from the stored one"


class MappingPart:
    """Tensors held in a plain mapping, such as the shadow copy of a hand-written moving average."""

    def __init__(self, mapping: Mapping[str, torch.Tensor], component: Component, name: str) -> None:
        self.component = component
        self.name = name
        self.owns: tuple[object, ...] = (mapping,)
        self._mapping = mapping

    def tensors(self) -> dict[str, torch.Tensor]:
        return dict(self._mapping)

    def unsynchronised(self) -> Collection[str]:
        return ()

    def objects(self) -> Any:
        return None

    def prepare(self, stored: Mapping[str, tuple[tuple[int, ...], torch.dtype]], objects: Mapping[int, Any]) -> None:
        """The mapping's tensors exist."""

    def discard(self) -> None:
        """Nothing was created."""

    def validate(
        self, objects: Mapping[int, Any], keys: Collection[str], scalars: Mapping[str, torch.Tensor]
    ) -> Iterator[Finding | Note]:
        for rank, saved in objects.items():
            if saved is not None:
                yield invalid(f"{self.name}/rank-{rank:05d}", "holds values beside its tensors")

    def load(self, objects: Mapping[int, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        """The tensors were read in place."""

    def unrestored(self, objects: Mapping[int, Any]) -> Iterator[str]:
        yield from ()


class OptimizerPart:
    """An optimizer's per-parameter state and its parameter groups.

    Args:
        optimizer: Every parameter of it must belong to `model`.
        model: Gives the parameters their names.
    """

    component = Component.OPTIMIZER

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module, name: str = "optimizer") -> None:
        self.name = name
        self.owns: tuple[object, ...] = (optimizer,)
        self.optimizer = optimizer
        self._names = parameter_names(model)
        self._created: list[tuple[torch.Tensor, str]] = []
        self._registered = [{id(parameter) for parameter in group["params"]} for group in optimizer.param_groups]
        for number, group in enumerate(optimizer.param_groups):
            strangers = sum(parameter not in self._names for parameter in group["params"])
            if strangers:
                raise RegistrationError(
                    f"parameters without a name: {name}: group {number} holds {strangers} that are not in the model",
                    hint="register the optimizer after the model was wrapped, with the model that it trains",
                )

    def unregistered_groups(self) -> list[int]:
        """Numbers of the parameter groups that were added or changed since the registration."""
        live = [{id(parameter) for parameter in group["params"]} for group in self.optimizer.param_groups]
        return [number for number, ids in enumerate(live) if self._registered[number : number + 1] != [ids]]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The live parameter groups with names instead of parameters.

        Raises:
            UsageError: A group was added whose parameters the registered model did not have.
        """
        for number, group in enumerate(self.optimizer.param_groups):
            if any(parameter not in self._names for parameter in group["params"]):
                raise UsageError(
                    f"parameters without a name: {self.name}: group {number} was added after the registration",
                    hint="register the optimizer anew with the model that has them",
                )
        return [
            {**group, "params": [self._names[parameter] for parameter in group["params"]]}
            for group in self.optimizer.param_groups
        ]

    def steps(self) -> dict[str, int]:
        """Completed updates per parameter group (its name, or its number); 0 before the first."""
        counts = {}
        for number, group in enumerate(self.optimizer.param_groups):
            values = [self.optimizer.state.get(parameter, {}).get("step", 0) for parameter in group["params"]]
            counts[group_name(group, number)] = max((int(value) for value in values), default=0)
        return counts

    def tensors(self) -> dict[str, torch.Tensor]:
        return {key: value for key, value in self._entries() if isinstance(value, torch.Tensor)}

    def unsynchronised(self) -> Collection[str]:
        return ()

    def objects(self) -> Any:
        scalars = {key: value for key, value in self._entries() if not isinstance(value, torch.Tensor)}
        saved = {"class": type(self.optimizer).__qualname__, "groups": self.groups, "scalars": scalars}
        return codec.encode(saved, self.name)

    def prepare(self, stored: Mapping[str, tuple[tuple[int, ...], torch.dtype]], objects: Mapping[int, Any]) -> None:
        parameters = {name: parameter for parameter, name in self._names.items()}
        mine = {name for group in self.groups for name in group["params"]}
        for key, (shape, dtype) in stored.items():
            entry, _, name = key.partition(_SEPARATOR)
            if name in mine:
                parameter = parameters[name]
                if entry not in self.optimizer.state.get(parameter, {}):
                    self._create(parameter, entry, self._blank(parameter, entry, shape, dtype))
        for saved in objects.values():
            for key, value in codec.decode(saved)["scalars"].items():
                entry, _, name = key.partition(_SEPARATOR)
                if name in mine and entry not in self.optimizer.state.get(parameters[name], {}):
                    self._create(parameters[name], entry, value)

    def discard(self) -> None:
        for parameter, entry in self._created:
            del self.optimizer.state[parameter][entry]
            if not self.optimizer.state[parameter]:
                del self.optimizer.state[parameter]
        self._created = []

    def validate(
        self, objects: Mapping[int, Any], keys: Collection[str], scalars: Mapping[str, torch.Tensor]
    ) -> Iterator[Finding | Note]:
        saved = {rank: codec.decode(value) for rank, value in objects.items()}
        kinds = {value.get("class") for value in saved.values()}
        if kinds != {type(self.optimizer).__qualname__}:
            yield invalid(self.name, f"expected a {type(self.optimizer).__qualname__}, found {sorted(map(str, kinds))}")
            return
        by_name = _groups_by_parameter(saved.values())
        for number, group in enumerate(self.groups):
            place = f"{self.name}.group.{group_name(group, number)}"
            matches = [by_name.get(name) for name in group["params"]]
            if not all(match is not None and match["params"] == group["params"] for match in matches):
                yield invalid(place, f"no saved group holds exactly its {len(matches)} parameters")
            elif matches and matches[0] is not None:
                yield from _check_group(group, matches[0], place)
        # Without state of its own yet, a group shows in no tensor's key.
        resting = (
            set(self._names.values()).intersection(by_name).difference(*(group["params"] for group in self.groups))
        )
        if resting:
            fact = f"the checkpoint trains {len(resting)} parameters that the run does not: {min(resting)}"
            yield invalid(f"{self.name}.group", fact)
        numbers = {key: value for one in saved.values() for key, value in one["scalars"].items()}
        yield from _check_numbers({**numbers, **{key: value.item() for key, value in scalars.items()}}, self.name)
        dimensions = {name: parameter.ndim for parameter, name in self._names.items()}
        yield from _check_uniform(by_name, {*keys, *numbers}, dimensions, self.name)

    def load(self, objects: Mapping[int, Any], tensors: Mapping[str, torch.Tensor]) -> None:
        self._created = []
        saved = [codec.decode(value) for value in objects.values()]
        by_name = _groups_by_parameter(saved)
        for group, named in zip(self.optimizer.param_groups, self.groups, strict=True):
            for key, value in by_name[named["params"][0]].items() if named["params"] else ():
                if key == "params" or key in _IMPLEMENTATION:
                    continue
                if isinstance(group[key], torch.Tensor) and isinstance(value, torch.Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = value
        scalars = {key: value for value in saved for key, value in value["scalars"].items()}
        for parameter, state in self.optimizer.state.items():
            for entry in state:
                key = f"{entry}{_SEPARATOR}{self._names[parameter]}"
                if key in scalars:
                    state[entry] = scalars[key]

    def unrestored(self, objects: Mapping[int, Any]) -> Iterator[str]:
        by_name = _groups_by_parameter(codec.decode(value) for value in objects.values())
        for number, group in enumerate(self.groups):
            for key, value in by_name[group["params"][0]].items() if group["params"] else ():
                if key not in _IMPLEMENTATION and not codec.same(group[key], value):
                    yield f"group {group_name(group, number)}: {key} is {group[key]}, the checkpoint holds {value}"

    def _create(self, parameter: torch.Tensor, entry: str, value: Any) -> None:
        self.optimizer.state[parameter][entry] = value
        self._created.append((parameter, entry))

    def _entries(self) -> Iterator[tuple[str, Any]]:
        for parameter, state in self.optimizer.state.items():
            for entry, value in state.items():
                if _SEPARATOR in entry or not (value is None or isinstance(value, torch.Tensor | int | float)):
                    raise UsageError(
                        f"optimizer state cannot be stored: {self.name}: {entry!r} is {type(value).__qualname__}",
                        hint="register such an optimizer with component(name, save=, load=, validate=)",
                    )
                yield f"{entry}{_SEPARATOR}{self._names[parameter]}", value

    def _blank(self, parameter: torch.Tensor, entry: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        if shape == tuple(parameter.shape) and shape:
            # A distributed parameter gives distributed moments, sharded as it is.
            return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        group = next(group for group in self.optimizer.param_groups if any(one is parameter for one in group["params"]))
        # torch keeps step counters on the host unless the update itself runs on the device (Optimizer.load_state_dict).
        on_device = entry != "step" or group.get("capturable") or group.get("fused")
        return torch.empty(shape, dtype=dtype, device=parameter.device if on_device else "cpu")


def group_name(group: Mapping[str, Any], number: int) -> str:
    """What a parameter group is called in expectations: its own name where it has one, else `group-<number>`."""
    return str(group.get("name", f"group-{number}"))


def parameter_names(model: torch.nn.Module) -> dict[torch.Tensor, str]:
    """Each parameter's fully qualified name, as torch's `get_model_state_dict` spells it.

    Raises:
        RegistrationError: A wrapper that is not known here changes the names.
    """
    known = get_model_state_dict(model).keys()
    names: dict[torch.Tensor, str] = {}
    for name, parameter in model.named_parameters():
        names[parameter] = _unwrapped(model, name)
        if names[parameter] not in known:
            raise RegistrationError(f"parameter name not understood: {name!r} is not in the model's state dict")
    return names


def _unwrapped(model: torch.nn.Module, name: str) -> str:
    parts: list[str] = []
    module: Any = model
    for part in name.split("."):
        wrapped = isinstance(module, torch.nn.parallel.DistributedDataParallel) and part == "module"
        if not wrapped and part not in _WRAPPERS:
            parts.append(part)
        module = getattr(module, part)
    return ".".join(parts)


def local_address(tensor: torch.Tensor) -> tuple[int, int]:
    """Where this rank's part of a tensor lies and how many elements it has: equal for views of the same memory."""
    to_local = getattr(tensor, "to_local", None)
    local: torch.Tensor = tensor.detach() if to_local is None else to_local().detach()
    return local.data_ptr(), local.numel()


def _groups_by_parameter(saved: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {name: group for value in saved for group in value["groups"] for name in group["params"]}


def _check_group(live: Mapping[str, Any], saved: Mapping[str, Any], place: str) -> Iterator[Finding | Note]:
    settings = {key: value for key, value in live.items() if key not in _IMPLEMENTATION}
    found = {key: value for key, value in saved.items() if key not in _IMPLEMENTATION}
    problems = list(codec.differences(settings, found, place))
    for fact in problems:
        yield invalid(place, fact)
    for key, value in found.items() if not problems else ():
        if isinstance(value, bool) and value is not settings[key]:
            yield invalid(f"{place}.{key}", f"the run has {settings[key]}, the checkpoint {value}")
        elif any(not math.isfinite(number) for number in _numbers(value)):
            yield invalid(f"{place}.{key}", f"expected finite numbers, found {value}")
        elif key in ("lr", "initial_lr", "weight_decay", "eps") and any(number < 0 for number in _numbers(value)):
            yield invalid(f"{place}.{key}", f"expected at least 0, found {value}")
        elif key not in ("lr", "initial_lr", "params") and not codec.same(value, settings[key]):
            message = f"setting changed: {place}.{key}: the run has {settings[key]}, the checkpoint's {value} is used"
            yield Note(reason=NoteReason.CONFIGURATION_CHANGED, message=message, offender=f"{place}.{key}")


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, torch.Tensor):
        yield from value.reshape(-1).tolist()
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _check_numbers(numbers: Mapping[str, Any], name: str) -> Iterator[Finding]:
    for key, number in numbers.items():
        if number is None:
            continue
        if not math.isfinite(number):
            yield invalid(f"{name}.{key}", f"expected a finite number, found {number}")
        elif key.startswith(f"step{_SEPARATOR}") and not (0 <= number <= 2**53 and number == int(number)):
            yield invalid(f"{name}.{key}", f"expected a count of completed updates, found {number}")


def _check_uniform(
    groups: Mapping[str, Mapping[str, Any]], keys: Collection[str], dimensions: Mapping[str, int], name: str
) -> Iterator[Finding]:
    """Within a group all parameters of as many dimensions that were ever updated have the same kinds of state.

    A lost moment breaks that. Matrices may lawfully have other state than vectors: Adafactor factors theirs.
    """
    kinds: dict[str, set[str]] = {}
    for key in keys:
        entry, _, parameter = key.partition(_SEPARATOR)
        kinds.setdefault(parameter, set()).add(entry)
    known = {one: (id(group), dimensions[one]) for one, group in groups.items() if one in dimensions}
    expected: dict[tuple[int, int], set[str]] = {}
    for parameter, kin in known.items():
        expected.setdefault(kin, set()).update(kinds.get(parameter, ()))
    for parameter, kin in known.items():
        for entry in sorted(expected[kin] - kinds[parameter]) if parameter in kinds else ():
            key = f"{name}.{entry}{_SEPARATOR}{parameter}"
            message = f"key missing: {key}: other parameters of its group have it"
            yield Finding(reason=Reason.KEY_MISSING, message=message, offender=key)
