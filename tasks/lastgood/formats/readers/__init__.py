"""The readers, one framework a module, in the order in which they are asked.

The order decides where layouts contain each other: Megatron's `torch_dist` and torchtitan are torch DCP too, and a
Trainer's directory may hold DeepSpeed's.
"""

from __future__ import annotations

from lastgood.formats.readers.accelerate import AccelerateReader
from lastgood.formats.readers.dcp import DcpReader, TorchtitanReader
from lastgood.formats.readers.dcp_safetensors import DcpSafetensorsReader
from lastgood.formats.readers.deepspeed import DeepSpeedReader
from lastgood.formats.readers.deepspeed_universal import DeepSpeedUniversalReader
from lastgood.formats.readers.lightning import LightningDirectoryReader, LightningFileReader
from lastgood.formats.readers.megatron import MegatronReader
from lastgood.formats.readers.megatron_legacy import MegatronLegacyReader
from lastgood.formats.readers.named import BYTECHECKPOINT, COMPOSER, COMPOSER_FILE, ORBAX, TORCHSNAPSHOT
from lastgood.formats.readers.native import NativeReader
from lastgood.formats.readers.reader import Reader
from lastgood.formats.readers.safetensors import SafetensorsReader
from lastgood.formats.readers.torch_save import TorchSaveReader
from lastgood.formats.readers.transformers import TransformersReader

__all__ = ["READERS", "Reader"]

READERS: tuple[Reader, ...] = (
    NativeReader(),
    TORCHSNAPSHOT,
    ORBAX,
    MegatronReader(),
    COMPOSER,
    LightningDirectoryReader(),
    BYTECHECKPOINT,
    TorchtitanReader(),
    DcpReader(),
    DcpSafetensorsReader(),
    TransformersReader(),
    AccelerateReader(),
    DeepSpeedUniversalReader(),
    DeepSpeedReader(),
    MegatronLegacyReader(),
    LightningFileReader(),
    COMPOSER_FILE,
    TorchSaveReader(),
    SafetensorsReader(),
)
