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
class _Storage:
    # The dtype of the matrix products -> the argument of from_pretrained.
    config: Callable[[torch.dtype], Any]
    marker: str  # the field of a saved quantization_config that is true for this kind
    weight_bytes: float  # memory of one weight
    weights_per_byte: int = 1  # of a stored uint8 tensor
    packages: tuple[str, ...] = ("bitsandbytes", "accelerate")


def _eight_bits(compute: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_8bit=True)


def _four_bits(compute: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)


_KINDS = {
    "8bit": _Storage(_eight_bits, "load_in_8bit", 1.0),
    "4bit": _Storage(_four_bits, "load_in_4bit", 0.5, weights_per_byte=2),
}


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
    def weight_bytes(self) -> float:
        """Bytes that one number of a weight matrix takes; scales and zero points are not counted."""
        return _KINDS[self.name].weight_bytes

    def config(self, compute: torch.dtype) -> Any:
        """The argument of from_pretrained; `compute` is the dtype of the matrix products."""
        return _KINDS[self.name].config(compute)

    @staticmethod
    def of(net: Any) -> str:
        """The name of the quantization a loaded network has, such as 8bit; empty if it has none."""
        settings = net.config.to_dict().get("quantization_config")
        if settings is None:
            return ""
        values = settings if isinstance(settings, dict) else settings.to_dict()
        return next((name for name, kind in _KINDS.items() if values.get(kind.marker)), "quantized")

    @classmethod
    def count(cls, net: Any) -> int:
        """The number of weights of a network; several quantized ones may share a stored byte."""
        kind = _KINDS.get(cls.of(net))
        packed = kind.weights_per_byte if kind else 1
        return sum(p.numel() * (packed if p.element_size() == 1 else 1) for p in net.parameters())


def _fault(name: str) -> str | None:
    return None if name in _KINDS else f"quantize {name!r} is unknown; use {' or '.join(_KINDS)}"


def _checked(name: str) -> str:
    if fault := _fault(name):
        raise ValueError(fault)
    return name


QuantizerName = Annotated[str, AfterValidator(_checked)]  # the type of a recipe's field
