"""What the names in a pickle stand for: the allow-list, as inert descriptions.

Decides which classes and functions are known, and what a call of each describes. Every other name is collected and
becomes an `ObjectStub`, so that the rest can still be described and the caller can make findings. Rules: a name is text
here and is never looked up; a call of a known tensor function with arguments that torch would refuse is refused.
"""

from __future__ import annotations

from typing import Any

from lastgood.formats.containers import rebuilding
from lastgood.formats.containers.machine import MAXIMUM_NAME_CHARACTERS, Machine, TooMuch, Unlawful
from lastgood.formats.containers.rebuilding import STORAGE_DTYPES
from lastgood.formats.containers.stubs import ITEM_BYTES, ArrayStub, GlobalStub, ObjectStub, StorageStub, TensorStub

__all__ = ["KNOWN_OBJECTS", "CheckpointMeaning"]

MAXIMUM_GLOBALS = 10_000
_GETATTR = "builtins.getattr"

_RENAMED = {"__builtin__": "builtins", "copy_reg": "copyreg"}
_DCP = "torch.distributed.checkpoint"
_SHARD = "torch.distributed._shard"

KNOWN_OBJECTS = frozenset(
    {
        "argparse.Namespace",
        "builtins.bool",
        "builtins.bytearray",
        "builtins.bytes",
        "builtins.complex",
        "builtins.dict",
        "builtins.float",
        "builtins.int",
        "builtins.list",
        "builtins.object",
        "builtins.range",
        "builtins.slice",
        "builtins.str",
        "builtins.tuple",
        "datetime.date",
        "datetime.datetime",
        "datetime.time",
        "datetime.timedelta",
        "datetime.timezone",
        "decimal.Decimal",
        "fractions.Fraction",
        "numpy._core.multiarray._reconstruct",
        "numpy.dtype",
        "numpy.ndarray",
        "numpy.random._mt19937.MT19937",
        "numpy.random._pcg64.PCG64",
        "numpy.random._pickle.__bit_generator_ctor",
        "numpy.random._pickle.__generator_ctor",
        "numpy.random._pickle.__randomstate_ctor",
        "numpy.random.bit_generator.SeedSequence",
        "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
        "pathlib.Path",
        "pathlib.PosixPath",
        "pathlib.PurePath",
        "pathlib.PurePosixPath",
        "pathlib.PureWindowsPath",
        "pathlib.WindowsPath",
        "torch.Tensor",
        "torch._utils._rebuild_nested_tensor",
        "torch._utils._rebuild_sparse_csr_tensor",
        "torch._utils._rebuild_sparse_tensor",
        "torch._utils._rebuild_wrapper_subclass",
        "torch.device",
        "torch.nn.parameter.Buffer",
        "torch.nn.parameter.Parameter",
        "torch.per_channel_affine",
        "torch.per_tensor_affine",
        "torch.per_tensor_symmetric",
        "torch.serialization._get_layout",
        "types.SimpleNamespace",
        "uuid.UUID",
        f"{_DCP}.filesystem._StorageInfo",
        f"{_DCP}.filesystem._StoragePrefix",
        f"{_DCP}.metadata.BytesStorageMetadata",
        f"{_DCP}.metadata.ChunkStorageMetadata",
        f"{_DCP}.metadata.Metadata",
        f"{_DCP}.metadata.MetadataIndex",
        f"{_DCP}.metadata.StorageMeta",
        f"{_DCP}.metadata.TensorProperties",
        f"{_DCP}.metadata.TensorStorageMetadata",
        f"{_DCP}.metadata._MEM_FORMAT_ENCODING",
        f"{_SHARD}.metadata.ShardMetadata",
        f"{_SHARD}.sharded_tensor.api.ShardedTensor",
        f"{_SHARD}.sharded_tensor.api.ShardedTensor.ProcessGroupState",
        f"{_SHARD}.sharded_tensor.shard.Shard",
        f"{_SHARD}.sharding_spec.chunk_sharding_spec.ChunkShardingSpec",
        f"{_SHARD}.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
        f"{_SHARD}.sharded_tensor.metadata.ShardedTensorMetadata",
        f"{_SHARD}.sharded_tensor.metadata.TensorProperties",
        "torch.distributed._mesh_layout._FlatLayout",
        "torch.distributed._mesh_layout._MeshLayout",
        "torch.distributed.device_mesh.DeviceMesh",
        "torch.distributed.remote_device._remote_device",
        "torch.distributed.tensor.DTensor",
        "torch.distributed.tensor._dtensor_spec.DTensorSpec",
        "torch.distributed.tensor._dtensor_spec.ShardOrderEntry",
        "torch.distributed.tensor._dtensor_spec.TensorMeta",
        "torch.distributed.tensor.placement_types.Partial",
        "torch.distributed.tensor.placement_types.Replicate",
        "torch.distributed.tensor.placement_types.Shard",
        "torch.distributed.tensor.placement_types._StridedShard",
    }
)
"""Classes and functions without effects that real checkpoints name, described as objects."""


class CheckpointMeaning:
    """The names of one stream of pickles, with what it referred to so far.

    Args:
        modules_allowed: Whether legacy files may carry classes with their source as persistent ids.
    """

    def __init__(self, *, modules_allowed: bool = False) -> None:
        self.modules_allowed = modules_allowed
        self.globals: dict[tuple[str, str], GlobalStub] = {}
        self.unknown_globals: set[str] = set()
        self.storages: dict[str, StorageStub] = {}
        self.tensors: list[TensorStub] = []

    def find(self, module: str, name: str) -> GlobalStub:
        stub = self.globals.get((module, name))
        if stub is None:
            if len(self.globals) >= MAXIMUM_GLOBALS:
                raise TooMuch(f"too many names: expected at most {MAXIMUM_GLOBALS}")
            stub = self.globals[module, name] = GlobalStub(module=_canonical(module), name=name)
            if not _is_known(stub.path):
                self.unknown_globals.add(stub.path)
        return stub

    def construct(self, machine: Machine, type_: Any, arguments: Any, keywords: Any = None) -> Any:
        if type(arguments) is not tuple or (keywords is not None and type(keywords) is not dict):
            raise Unlawful(f"arguments of a call: expected a tuple, found {type(arguments).__name__}")
        if not isinstance(type_, GlobalStub | ObjectStub):
            raise Unlawful(f"call of {type(type_).__name__}, which is no class or function")
        if isinstance(type_, GlobalStub) and keywords is None:
            if type_.path == _GETATTR and (found := self._attribute(machine, arguments)) is not None:
                return found
            if (indirect := rebuilding.INDIRECT.get(type_.path)) is not None:
                called, inner, state = indirect(arguments)
                value = self._describe(machine, called, inner)
                if isinstance(value, ObjectStub):
                    value.state = state
                return value
        return self._describe(machine, type_, arguments, keywords)

    def _describe(self, machine: Machine, type_: Any, arguments: tuple[Any, ...], keywords: Any = None) -> Any:
        if not isinstance(type_, GlobalStub | ObjectStub):
            raise Unlawful(f"call of {type(type_).__name__}, which is no class or function")
        if isinstance(type_, GlobalStub) and not keywords:
            builder = rebuilding.BUILDERS.get(type_.path)
            if builder is not None:
                value = builder(machine, arguments)
                if value is not NotImplemented:
                    if isinstance(value, TensorStub) and value is not arguments[0]:  # no wrapper of one
                        machine.charge(200)
                        self.tensors.append(value)
                    return value
        return ObjectStub(type=type_, arguments=arguments, keywords=keywords or None)

    def _attribute(self, machine: Machine, arguments: tuple[Any, ...]) -> GlobalStub | None:
        """What a class holds under a name, as members of some enumerations are pickled; None where it is no class."""
        owner, name = arguments if len(arguments) == 2 else (None, None)
        if not isinstance(owner, GlobalStub) or type(name) is not str:
            self.unknown_globals.add(_GETATTR)
            return None
        if not name or len(owner.name) + len(name) > MAXIMUM_NAME_CHARACTERS:
            raise Unlawful("getattr: name empty or too long")
        machine.charge(len(owner.name) + len(name))
        return self.find(owner.module, f"{owner.name}.{name}")

    def build(self, machine: Machine, target: Any, state: Any) -> None:
        if isinstance(target, ObjectStub):
            target.state = state
        elif isinstance(target, ArrayStub):
            rebuilding.fill_array(machine, target, state)
        elif not isinstance(target, TensorStub) and type(target) is not dict:
            raise Unlawful(f"state given to {type(target).__name__}")
        # What Python code hung on a tensor or on an ordered dictionary (`_metadata`) was read, and is not described.

    def persistent(self, identity: Any) -> Any:
        if type(identity) is tuple and identity and identity[0] == "module" and self.modules_allowed:
            if len(identity) != 4 or not isinstance(identity[1], GlobalStub):
                raise Unlawful("persistent id of a module: expected its class, file and source")
            return identity[1]
        storage = rebuilding.storage(identity)
        known = self.storages.setdefault(storage.key, storage)
        if known.bytes != storage.bytes:
            raise Unlawful(
                f"storage described twice: {storage.key!r}: {known.bytes} bytes, later {storage.bytes} bytes"
            )
        return known


def _canonical(module: str) -> str:
    if module == "numpy.core" or module.startswith("numpy.core."):  # before NumPy 2
        return f"numpy._core{module[len('numpy.core') :]}"
    return _RENAMED.get(module, module)


def _is_known(path: str) -> bool:
    if path in KNOWN_OBJECTS or path in rebuilding.BUILDERS or path in rebuilding.INDIRECT or path == _GETATTR:
        return True
    module, _, name = path.rpartition(".")
    return (module == "torch" and name in ITEM_BYTES) or (
        module in rebuilding.STORAGE_MODULES and name in STORAGE_DTYPES
    )
