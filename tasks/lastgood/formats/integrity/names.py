"""Names that frameworks put into pickles of their own: classes without effects that a healthy checkpoint may import.

Decides, beside the names that `containers` knows of torch, NumPy and Python, which are expected of whom. Rules: whole
names, never packages, for every package holds functions that do harm; classes that only hold values. Source: what the
frameworks' own checkpoints name.
"""

from __future__ import annotations

import sys

from lastgood.formats.description import Framework

__all__ = ["EXPECTED", "is_expected", "may_be_a_users_class"]

_DEEPSPEED = frozenset(
    {
        "deepspeed.checkpoint.ds_to_universal.SubparamShape",
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.runtime.zero.offload_config.OffloadDeviceEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    }
)
_MEGATRON = frozenset(
    {
        "megatron.core.dist_checkpointing.mapping.ShardedObject",
        "megatron.core.enums.Fp4Recipe",
        "megatron.core.enums.Fp8Recipe",
        "megatron.core.enums.ModelType",
        "megatron.core.rerun_state_machine.RerunDiagnostic",
        "megatron.core.rerun_state_machine.RerunMode",
        "megatron.core.rerun_state_machine.RerunState",
        "megatron.core.transformer.enums.AttnBackend",
        "megatron.core.transformer.enums.CudaGraphScope",
        "megatron.training.argument_utils.ArgumentGroupFactory",
        "signal.Signals",
    }
)
_TRANSFORMERS = frozenset(
    {
        "accelerate.state.PartialState",
        "accelerate.utils.dataclasses.DeepSpeedPlugin",
        "accelerate.utils.dataclasses.DistributedType",
        "accelerate.utils.dataclasses.FullyShardedDataParallelPlugin",
        "transformers.debug_utils.DebugOption",
        "transformers.integrations.deepspeed.HfDeepSpeedConfig",
        "transformers.integrations.deepspeed.HfTrainerDeepSpeedConfig",
        "transformers.trainer_pt_utils.AcceleratorConfig",
        "transformers.trainer_utils.FSDPOption",
        "transformers.trainer_utils.HubStrategy",
        "transformers.trainer_utils.IntervalStrategy",
        "transformers.trainer_utils.SaveStrategy",
        "transformers.trainer_utils.SchedulerType",
        "transformers.training_args.OptimizerNames",
        "transformers.training_args.TrainingArguments",
        "transformers.training_args_seq2seq.Seq2SeqTrainingArguments",
    }
)
_LIGHTNING = frozenset(
    {
        "lightning.fabric.utilities.data.AttributeDict",
        "lightning.pytorch.utilities.parsing.AttributeDict",
        "lightning_fabric.utilities.data.AttributeDict",
        "pytorch_lightning.utilities.parsing.AttributeDict",
    }
)

EXPECTED: dict[Framework, frozenset[str]] = {
    Framework.TRANSFORMERS: _TRANSFORMERS | _DEEPSPEED,
    Framework.LIGHTNING: _LIGHTNING | _DEEPSPEED,
    Framework.DEEPSPEED: _DEEPSPEED,
    Framework.DEEPSPEED_UNIVERSAL: _DEEPSPEED,
    Framework.MEGATRON: _MEGATRON,
    Framework.MEGATRON_LEGACY: _MEGATRON,
}
"""Framework → names that its own writers use."""


def may_be_a_users_class(name: str) -> bool:
    """Whether a name reads like a class of somebody's own or of a library, not like a function or anything of Python's.

    Only of files that no resume loads: a configuration class of a library that nobody here has heard of is usual there.
    """
    module, _, last = name.rpartition(".")
    top = module.partition(".")[0]
    return top != "" and top not in sys.stdlib_module_names and last[:1].isupper() and not last.isupper()


def is_expected(name: str, framework: Framework | None) -> bool:
    """Whether a checkpoint of that framework may name it; where nobody knows whose it is, any framework's names are."""
    if framework is None:
        return any(name in names for names in EXPECTED.values())
    return name in EXPECTED.get(framework, frozenset())
