"""Where the weights go and in which number format: `DeviceConfig`, with a `QuantScheme` for weights in fewer bits.

A kind of quantization is added as an entry of `SCHEMES`, and named by the help of `--quantize` (commands/options.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from transformers import BitsAndBytesConfig, PreTrainedModel

from voidpad.errors import ConfigError
from voidpad.models import fp8

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class QuantScheme:
    """How a kind of quantization stores weights, and what such a network can do.

    It is either made by from_pretrained, with the settings of bitsandbytes that `config` makes for the dtype of the
    matrix products, or by `convert`, which changes a loaded network in place.
    """

    name: str
    weight_bytes: float  # memory of one weight, at most, while it is loaded
    config: Callable[[torch.dtype], Any] | None = None
    convert: Callable[[Any], None] | None = None
    # Why `convert` cannot serve a device; None if it can.
    fault: Callable[[str], str | None] = lambda device: None
    dtype: str | None = None  # of everything else in the network, if no other will do
    rounds: str = "weights"  # what is approximate
    packs: bool = False  # whether packed passes and CUDA graphs were made to work with it


def _four_bits(compute: torch.dtype) -> BitsAndBytesConfig:
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)


SCHEMES = {
    "8bit": QuantScheme("8bit", weight_bytes=1.0, config=lambda _: BitsAndBytesConfig(load_in_8bit=True)),
    "4bit": QuantScheme("4bit", weight_bytes=0.5, config=_four_bits),
    "fp8": QuantScheme(
        "fp8",
        weight_bytes=2.0,  # they are loaded in bfloat16, then changed layer by layer
        convert=fp8.quantize_layers,
        fault=fp8.device_fault,
        dtype="bfloat16",
        rounds="weights and activations",
        packs=True,
    ),
}


@dataclass(frozen=True)
class DeviceConfig:
    """Device, precision and quantization of a model to load, checked when made.

    `device` is cpu, cuda, cuda:<n>, mps, auto (CUDA, then MPS, then CPU) or spread (the layers over all GPUs).
    """

    device: str = "cpu"
    dtype: str = "auto"
    quantize: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", *DTYPES):
            raise ConfigError(f"dtype {self.dtype!r} is unknown; use auto, {' or '.join(DTYPES)}.")
        if self.quantize not in (None, *SCHEMES):
            raise ConfigError(f"quantize {self.quantize!r} is unknown; use one of {', '.join(SCHEMES)}.")
        object.__setattr__(self, "device", _device(self.device))
        scheme, fault = self.scheme, None
        if scheme is not None and scheme.convert is not None:
            if self.spread:
                fault = "needs the network on one device; drop device=spread"
            elif scheme.dtype and self.dtype not in ("auto", scheme.dtype):
                fault = f"computes in {scheme.dtype}; drop dtype={self.dtype!r}"
            else:
                fault = scheme.fault(self.device)
        elif scheme is not None and find_spec("bitsandbytes") is None:
            fault = "needs bitsandbytes; pip install bitsandbytes accelerate"
        if fault:
            raise ConfigError(f"quantize={self.quantize!r} {fault}.")

    @property
    def spread(self) -> bool:
        return self.device == "spread"

    @property
    def scheme(self) -> QuantScheme | None:
        return None if self.quantize is None else SCHEMES[self.quantize]

    def options(self, stored: torch.dtype) -> dict[str, Any]:
        """Arguments of from_pretrained for weights stored in this dtype."""
        options: dict[str, Any] = {"dtype": self.torch_dtype(stored)}
        if self.scheme is not None and self.scheme.config is not None:
            options["quantization_config"] = self.scheme.config(options["dtype"])
            options["device_map"] = {"": self.device}
        if self.spread:
            options["device_map"] = "auto"
        return options

    def move(self, net: PreTrainedModel) -> PreTrainedModel:
        """Put a freshly read network on its device, unless from_pretrained has."""
        if not self.spread and (self.scheme is None or self.scheme.config is None):
            torch.nn.Module.to(net, self.device)
        return net

    def torch_dtype(self, stored: torch.dtype) -> torch.dtype:
        """The dtype to load: the given one, or float32 on a CPU, or bfloat16 where the files hold it."""
        if self.scheme is not None and self.scheme.dtype:
            return DTYPES[self.scheme.dtype]
        if self.dtype != "auto":
            return DTYPES[self.dtype]
        return torch.float32 if stored != torch.bfloat16 or self.device.startswith("cpu") else stored

    def check_memory(self, parameters: int, stored: torch.dtype, *, where: str) -> None:
        """Refuse weights that cannot fit into the memory of the device, before any of it is taken."""
        size = parameters * (self.scheme.weight_bytes if self.scheme else self.torch_dtype(stored).itemsize)
        room = 0
        if self.device.startswith("cuda"):
            room = torch.cuda.get_device_properties(torch.device(self.device)).total_memory
        elif self.device.startswith("cpu") and hasattr(os, "sysconf"):
            room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if 0 < room < size:
            raise ConfigError(
                f"{where}: {parameters / 1e9:.1f} billion parameters need {size / 1e9:.0f} GB, but {self.device} has "
                f"{room / 1e9:.0f} GB; use another device, dtype bfloat16 or quantize."
            )


def _device(name: str) -> str:
    """The name of a device that is here; `auto` becomes the best one."""
    counts = {
        "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0,
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    if name == "auto":
        return next(kind for kind, count in counts.items() if count)
    kind, _, number = name.replace("spread", "cuda").partition(":")
    if kind not in counts or (number and not number.isdecimal()):
        raise ConfigError(f"device {name!r} is unknown; use auto, cpu, cuda, cuda:<n>, mps or spread.")
    if int(number or 0) >= counts[kind]:
        raise ConfigError(
            f"device {name!r}: this machine has {counts[kind]} {kind.upper()} device(s); use auto or cpu."
        )
    return name


def gpus_per_task(device: str, cluster: Mapping[str, float]) -> int:
    """GPUs that a Ray task or replica reserves. With `auto` it is one if the cluster has any: Ray hides the others."""
    if device == "auto":
        return int(cluster.get("GPU", 0) >= 1)
    return int(device not in ("cpu", "mps"))
