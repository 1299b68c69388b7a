"""Where the weights go and in which numbers."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from voidpad.errors import ConfigError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BITS = ("8bit", "4bit")


@dataclass(frozen=True)
class Place:
    """Device and precision, checked when made."""

    device: str = "cpu"
    dtype: str = "auto"
    quantize: str | None = None
    device_map: str | dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", *DTYPES):
            raise ConfigError(f"dtype {self.dtype!r} is unknown; use auto, {' or '.join(DTYPES)}.")
        if self.quantize not in (None, *BITS):
            raise ConfigError(f"quantize {self.quantize!r} is unknown; use {' or '.join(BITS)}.")
        for field, package in (
            ("quantize", "bitsandbytes"),
            ("quantize", "accelerate"),
            ("device_map", "accelerate"),
        ):
            if self.__dict__[field] is not None and find_spec(package) is None:
                raise ConfigError(f"{field}={self.__dict__[field]!r} needs {package}; pip install {package}.")
        try:
            kind = torch.device(self.device).type
        except RuntimeError:
            raise ConfigError(f"device {self.device!r} is unknown; use cpu, cuda or cuda:<n>.") from None
        if kind == "cuda" and not torch.cuda.is_available():
            raise ConfigError(f"device {self.device!r}: this machine has no CUDA device; use cpu.")

    def options(self, stored: str) -> dict[str, Any]:
        """Arguments of from_pretrained for weights stored in this dtype."""
        number = self._number(stored)
        options: dict[str, Any] = {"dtype": number}
        if self.quantize is not None:
            bits = {f"load_in_{self.quantize}": True}
            options["quantization_config"] = BitsAndBytesConfig(
                **bits, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=number
            )
        if self.device_map is not None or self.quantize is not None:
            options["device_map"] = self.device_map or {"": self.device}
        return options

    def move(self, net: PreTrainedModel) -> PreTrainedModel:
        """Put a freshly read network on its device, unless from_pretrained has."""
        if self.device_map is None and self.quantize is None:
            torch.nn.Module.to(net, self.device)
        return net

    def _number(self, stored: str) -> torch.dtype:
        if self.dtype != "auto":
            return DTYPES[self.dtype]
        on_cpu = self.device_map is None and torch.device(self.device).type == "cpu"
        return torch.bfloat16 if stored == "BF16" and not on_cpu else torch.float32
