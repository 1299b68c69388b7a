"""Quantization: the weights of linear layers in fewer bits. A quantizer is added here alone, as a line of `_KINDS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator

from voidpad.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Storage:
    """How a kind of quantization stores weights, and what such a network can do."""

    marker: str  # the field of a network's quantization_config that is true for this kind
    weight_bytes: float  # memory of one weight, at most, while it is loaded
    # The dtype of the matrix products -> the argument of from_pretrained; None if `convert` does all.
    config: Callable[[torch.dtype], Any] | None = None
    convert: Callable[[Any], None] | None = None  # changes a loaded network in place
    device_fault: Callable[[str], str | None] | None = None  # why a device cannot; None for any device
    dtype: str | None = None  # of everything else in the network, if no other will do
    weights_per_byte: int = 1  # of a stored uint8 tensor
    packages: tuple[str, ...] = ()
    rounds: str = "weights"  # what is approximate
    packs: bool = False  # whether packed passes and CUDA graphs were made to work with it
    saves: bool = True  # whether the weights can be written to a folder
    trains: bool = True  # whether an adapter can be trained around it


def _eight_bits(compute: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_8bit=True)


def _four_bits(compute: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)


def _float8(net: Any) -> None:
    from voidpad.models.fp8 import quantize_layers

    quantize_layers(net)


def _float8_fault(device: str) -> str | None:
    from voidpad.models.fp8 import device_fault

    return device_fault(device)


_BITSANDBYTES = ("bitsandbytes", "accelerate")
_KINDS = {
    "8bit": Storage("load_in_8bit", 1.0, _eight_bits, packages=_BITSANDBYTES),
    "4bit": Storage("load_in_4bit", 0.5, _four_bits, weights_per_byte=2, packages=_BITSANDBYTES),
    "fp8": Storage(
        marker="voidpad_fp8",
        weight_bytes=2.0,  # they are loaded in bfloat16, then changed layer by layer
        convert=_float8,
        device_fault=_float8_fault,
        dtype="bfloat16",
        rounds="weights and activations",
        packs=True,
        saves=False,
        trains=False,
    ),
}
_UNKNOWN = Storage("", 1.0)  # quantized by something else than `load`


@dataclass(frozen=True)
class Quantizer:
    """A quantization by name, such as 8bit, with the packages it needs on this machine."""

    name: str

    def __post_init__(self) -> None:
        if fault := _fault(self.name):
            raise ConfigError(f"{fault}.")
        for package in _KINDS[self.name].packages:
            if find_spec(package) is None:
                raise ConfigError(f"quantize={self.name!r} needs {package}; pip install {package}.")

    @property
    def storage(self) -> Storage:
        return _KINDS[self.name]

    def check_place(self, device: str, dtype: str, *, spread: bool) -> None:
        """Refuse a device or a dtype that this quantization cannot have. `spread` is a network over several devices."""
        fault = self.storage.device_fault and self.storage.device_fault(device)
        if fault:
            raise ConfigError(f"quantize={self.name!r} {fault}.")
        if self.storage.convert and spread:
            raise ConfigError(f"quantize={self.name!r} needs the network on one device; drop device=spread.")
        if self.storage.dtype and dtype not in ("auto", self.storage.dtype):
            raise ConfigError(
                f"quantize={self.name!r} computes in {self.storage.dtype}; drop dtype={dtype!r}."
            )

    def convert(self, net: Any) -> None:
        """Quantize a loaded network in place, unless from_pretrained has. An adapter may already be inside."""
        if self.storage.convert is not None:
            self.storage.convert(net)
            net.config.quantization_config = {self.storage.marker: True}

    @staticmethod
    def of(net: Any) -> str:
        """The name of the quantization a loaded network has, such as 8bit; empty if it has none."""
        settings = net.config.to_dict().get("quantization_config")
        if settings is None:
            return ""
        values = settings if isinstance(settings, dict) else settings.to_dict()
        return next((name for name, kind in _KINDS.items() if values.get(kind.marker)), "quantized")

    @classmethod
    def storage_of(cls, net: Any) -> Storage | None:
        """How the weights of a loaded network are stored; None if they are not quantized."""
        name = cls.of(net)
        return _KINDS.get(name, _UNKNOWN) if name else None

    @classmethod
    def count(cls, net: Any) -> int:
        """The number of weights of a network; several quantized ones may share a stored byte."""
        kind = cls.storage_of(net)
        packed = kind.weights_per_byte if kind else 1
        return sum(p.numel() * (packed if p.element_size() == 1 else 1) for p in net.parameters())


def _fault(name: str, *, training: bool = False) -> str | None:
    usable = [kind for kind, storage in _KINDS.items() if storage.trains or not training]
    if name in usable:
        return None
    names = f"{', '.join(usable[:-1])} or {usable[-1]}"
    return f"quantize {name!r} is {'for decoding only' if name in _KINDS else 'unknown'}; use {names}"


def _checked(name: str) -> str:
    if fault := _fault(name):
        raise ValueError(fault)
    return name


def _checked_for_training(name: str) -> str:
    if fault := _fault(name, training=True):
        raise ValueError(fault)
    return name


# The types of a recipe's field: of one that decodes, and of one that trains an adapter around the weights.
QuantizerName = Annotated[str, AfterValidator(_checked)]
TrainingQuantizerName = Annotated[str, AfterValidator(_checked_for_training)]
