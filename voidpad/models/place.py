"""Where the weights go and in which number format: device, dtype, quantization (quantizer.py)."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from transformers import PreTrainedModel

from voidpad.errors import ConfigError
from voidpad.models.quantizer import Quantizer

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # safetensors' names
LOADABLE = ("float32", "bfloat16")
MANY = 1_000_000_000  # parameters beyond which float32 on a CPU is a mistake more often than a wish


@dataclass(frozen=True)
class Place:
    """Device, precision and quantization of a model to load, checked when made.

    `device` is cpu, cuda, cuda:<n>, mps, auto (CUDA, then MPS, then CPU) or spread (the layers over all GPUs).
    `device_map` gives accelerate's own placement instead.
    """

    device: str = "cpu"
    dtype: str = "auto"
    quantize: str | None = None
    device_map: str | dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("auto", *LOADABLE):
            raise ConfigError(f"dtype {self.dtype!r} is unknown; use auto, {' or '.join(LOADABLE)}.")
        quantizer = self.quantizer
        if self.device_map is not None:
            _need("accelerate", f"device_map={self.device_map!r}")
        if self.device == "spread":
            _need("accelerate", "device 'spread'")
            if not torch.cuda.is_available():
                raise ConfigError("device 'spread': this machine has no CUDA device; use auto or cpu.")
            object.__setattr__(self, "device_map", self.device_map or "auto")
        object.__setattr__(self, "device", _device(self.device))
        if quantizer is not None:
            quantizer.check_place(self.device, self.dtype, spread=self.device_map is not None)

    @property
    def quantizer(self) -> Quantizer | None:
        return None if self.quantize is None else Quantizer(self.quantize)

    def options(self, stored: str) -> dict[str, Any]:
        """Arguments of from_pretrained for weights stored in this dtype."""
        dtype = self.torch_dtype(stored)
        options: dict[str, Any] = {"dtype": dtype}
        config = self._quantizing()
        if config is not None:
            options["quantization_config"] = config(dtype)
        if self.device_map is not None or config is not None:
            options["device_map"] = self.device_map or {"": self.device}
        return options

    def move(self, net: PreTrainedModel) -> PreTrainedModel:
        """Put a freshly read network on its device, unless from_pretrained has."""
        if self.device_map is None and self._quantizing() is None:
            torch.nn.Module.to(net, self.device)
        return net

    def _quantizing(self) -> Callable[[torch.dtype], Any] | None:
        """What makes the argument with which from_pretrained quantizes; None if it does not."""
        return self.quantizer.storage.config if self.quantizer else None

    def torch_dtype(self, stored: str) -> torch.dtype:
        """The dtype to load: the given one, or float32 on a CPU, or bfloat16 where the files hold it."""
        quantizer = self.quantizer
        if quantizer is not None and quantizer.storage.dtype:
            return DTYPES[quantizer.storage.dtype]
        if self.dtype != "auto":
            return DTYPES[self.dtype]
        on_cpu = self.device_map is None and torch.device(self.device).type == "cpu"
        return torch.bfloat16 if stored == "BF16" and not on_cpu else torch.float32

    def check_memory(self, parameters: int, stored: str, *, where: str) -> None:
        """Refuse weights that cannot fit into the memory of the device, before any of it is taken."""
        quantizer = self.quantizer
        weight = quantizer.storage.weight_bytes if quantizer else self.torch_dtype(stored).itemsize
        size = weight * parameters
        kind = torch.device(self.device).type
        if kind == "cuda" and self.device_map is None:
            room = torch.cuda.get_device_properties(torch.device(self.device)).total_memory
        elif kind == "cpu" and self.device_map is None:
            room = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
        else:
            return
        if 0 < room < size:
            raise ConfigError(
                f"{where}: {parameters / 1e9:.1f} billion parameters need {size / 1e9:.0f} GB, but {self.device} has "
                f"{room / 1e9:.0f} GB; use another device, dtype bfloat16 or quantize."
            )


def _device(name: str) -> str:
    """A device name of torch; auto and spread become the best device of this machine."""
    if name in ("auto", "spread"):
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ConfigError(
            f"device {name!r} is unknown; use auto, cpu, cuda, cuda:<n>, mps or spread."
        ) from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: this machine has no CUDA device; use cpu.")
    if kind == "cuda" and (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA device(s).")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device {name!r}: this machine has no MPS device; use cpu.")
    if kind not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device {name!r} is not covered; use auto, cpu, cuda, cuda:<n>, mps or spread.")
    return name


def gpus_per_task(device: str, cluster: Mapping[str, float]) -> int:
    """GPUs that a Ray task or replica reserves. With `auto` it is one if the cluster has any: Ray hides the others."""
    if device == "auto":
        return int(cluster.get("GPU", 0) >= 1)
    return int(device not in ("cpu", "mps"))


def _need(package: str, field: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"{field} needs {package}; pip install {package}.")
