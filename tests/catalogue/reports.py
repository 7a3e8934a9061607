"""Faults that people reported in public trackers and that lie in the files themselves, by family.

Each must stay in the catalogue, whatever is renamed. Reports that only a restore, a drill or a look at a run's past can
see are none of tier 1's, and have their tests elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class Family(StrEnum):
    """Kinds of faults, each value a heading."""

    TORN = "incomplete or torn, and picked all the same"
    POINTERS = "pointers, markers, retention"
    SHARDS = "shards missing, mixed, in the wrong place"
    STORAGE = "storage that lies or lags"
    RANDOM = "random streams of the wrong rank, or of too few"
    DATA = "position in the data"
    STATE = "optimizer, scaler, what was never saved"
    RESTART = "foreign objects, loads during a save"


REPORTS: Mapping[str, tuple[Family, str]] = MappingProxyType(
    {
        "huggingface/transformers#35782": (Family.TORN, "the newest directory has no `trainer_state.json`"),
        "awslabs/awsome-distributed-ai#190": (Family.TORN, "the job was cancelled during a save"),
        "Lightning-AI/pytorch-lightning#19970": (Family.TORN, "a file that was written in place breaks off"),
        "facebookresearch/metaseq#501": (Family.TORN, "a verifier assumed another number of ranks: a false alarm"),
        "RLinf/RLinf#1469": (Family.TORN, "the loader's position was never written, and only a warning said so"),
        "MrNeRF/LichtFeld-Studio#717": (Family.TORN, "the disk was full, and training went on"),
        "KempnerInstitute/KempnerForge#102": (Family.POINTERS, "`latest` leads to a directory without metadata"),
        "NVIDIA-NeMo/Megatron-Bridge#4820": (Family.POINTERS, "the tracker names a directory that was deleted"),
        "huggingface/transformers#22170": (Family.POINTERS, "the file that names the tag is gone"),
        "deepspeedai/DeepSpeed#2319": (Family.SHARDS, "each node kept its own files"),
        "hiyouga/LlamaFactory#8098": (Family.SHARDS, "one rank's file is missing"),
        "mosaicml/composer#2146": (Family.SHARDS, "one rank resumes from an older save than the others"),
        "NVIDIA-NeMo/Megatron-Bridge#5604": (Family.SHARDS, "files of a wider run stayed in a reused directory"),
        "huggingface/accelerate#4165": (Family.SHARDS, "all ranks write the same file"),
        "facebookresearch/metaseq#403": (Family.SHARDS, "a format was guessed by sizes: a false alarm"),
        "s3fs-fuse/s3fs-fuse#535": (Family.STORAGE, "an object of 0 bytes after a rename"),
        "s3fs-fuse/s3fs-fuse#1542": (Family.STORAGE, "the first bytes read as zero"),
        "s3fs-fuse/s3fs-fuse#1345": (Family.STORAGE, "a late copy of metadata left an empty object"),
        "NVIDIA-NeMo/Speech#8153": (Family.STORAGE, "other hosts see the directory half a minute later"),
        "NVIDIA/Megatron-LM#6858": (Family.RANDOM, "252 of 256 ranks held another rank's streams"),
        "NVIDIA-NeMo/Automodel#3437": (Family.RANDOM, "only the first rank's streams were saved"),
        "pytorch/torchtitan#816": (Family.DATA, "a resume on fewer ranks loses the positions of the others"),
        "pytorch/torchtitan#409": (Family.DATA, "only the first rank's position was kept"),
        "KempnerInstitute/KempnerForge#51": (Family.DATA, "the position is not saved, so every resume replays"),
        "bghira/SimpleTuner#2899": (Family.DATA, "a rank's file is spelled in two ways"),
        "huggingface/transformers#11663": (Family.STATE, "the loss scale is lost"),
        "ultralytics/ultralytics#22189": (Family.STATE, "the loss scale was never saved"),
        "meta-pytorch/torchtune#1142": (Family.RESTART, "an object of another library lies in the file"),
        "pytorch/torchtitan#930": (Family.RESTART, "a load, or an event, came while the save was being written"),
    }
)
"""Report → its family, and what was seen."""
