"""Where the weights go and in which number format: `DeviceConfig`, with a `QuantScheme` for weights in fewer bits.

A kind of quantization is added here alone, as an entry of `SCHEMES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Annotated, Any

import torch
from pydantic import AfterValidator
from transformers import BitsAndBytesConfig, PreTrainedModel

from voidpad.errors import ConfigError
from voidpad.models import fp8

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
STORED = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # safetensors' names
LOADABLE = ("float32", "bfloat16")
MANY = 1_000_000_000  # parameters beyond which float32 on a CPU is a mistake more often than a wish


@dataclass(frozen=True)
class QuantScheme:
    """How a kind of quantization stores weights, and what such a network can do."""

    name: str
    marker: str  # the field of a network's quantization_config that is true for this kind
    weight_bytes: float  # memory of one weight, at most, while it is loaded
    # The dtype of the matrix products -> the argument of from_pretrained; None if `convert` does all.
    config: Callable[[torch.dtype], Any] | None = None
    convert: Callable[[Any], None] | None = None  # changes a loaded network in place
    dtype: str | None = None  # of everything else in the network, if no other will do
    weights_per_byte: int = 1  # of a stored uint8 tensor
    packages: tuple[str, ...] = ()
    rounds: str = "weights"  # what is approximate
    packs: bool = False  # whether packed passes and CUDA graphs were made to work with it
    saves: bool = True  # whether the weights can be written to a folder
    trains: bool = True  # whether an adapter can be trained around it

    def apply(self, net: Any) -> None:
        """Quantize a loaded network in place, unless from_pretrained has. An adapter may already be inside."""
        if self.convert is not None:
            self.convert(net)
            net.config.quantization_config = {self.marker: True}

    def check(self, device: str, dtype: str, *, spread: bool) -> None:
        """Refuse a machine, a device or a dtype that this quantization cannot have."""
        said = f"quantize={self.name!r}"
        for package in self.packages:
            _need(package, said)
        if self.convert is None:
            return
        if fault := fp8.device_fault(device):
            raise ConfigError(f"{said} {fault}.")
        if spread:
            raise ConfigError(f"{said} needs the network on one device; drop device=spread.")
        if dtype not in ("auto", self.dtype):
            raise ConfigError(f"{said} computes in {self.dtype}; drop dtype={dtype!r}.")


_BITSANDBYTES = ("bitsandbytes", "accelerate")
SCHEMES = {
    scheme.name: scheme
    for scheme in (
        QuantScheme(
            "8bit",
            marker="load_in_8bit",
            weight_bytes=1.0,
            config=lambda compute: BitsAndBytesConfig(load_in_8bit=True),
            packages=_BITSANDBYTES,
        ),
        QuantScheme(
            "4bit",
            marker="load_in_4bit",
            weight_bytes=0.5,
            config=lambda compute: BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute
            ),
            weights_per_byte=2,
            packages=_BITSANDBYTES,
        ),
        QuantScheme(
            "fp8",
            marker="voidpad_fp8",
            weight_bytes=2.0,  # they are loaded in bfloat16, then changed layer by layer
            convert=fp8.quantize_layers,
            dtype="bfloat16",
            rounds="weights and activations",
            packs=True,
            saves=False,
            trains=False,
        ),
    )
}


def quant_scheme(net: Any) -> QuantScheme | None:
    """How the weights of a loaded network are quantized; None if they are not."""
    settings = net.config.to_dict().get("quantization_config")
    if settings is None:
        return None
    values = settings if isinstance(settings, dict) else settings.to_dict()
    known = next((scheme for scheme in SCHEMES.values() if values.get(scheme.marker)), None)
    return known or QuantScheme("quantized", marker="", weight_bytes=1.0)  # by something else than `load`


def parameter_count(net: Any) -> int:
    """The number of weights of a network; several quantized ones may share a stored byte."""
    scheme = quant_scheme(net)
    packed = scheme.weights_per_byte if scheme else 1
    return sum(p.numel() * (packed if p.element_size() == 1 else 1) for p in net.parameters())


@dataclass(frozen=True)
class DeviceConfig:
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
        if self.quantize is not None and self.quantize not in SCHEMES:
            raise ConfigError(f"quantize {self.quantize!r} is unknown; use one of {', '.join(SCHEMES)}.")
        if self.device_map is not None:
            _need("accelerate", f"device_map={self.device_map!r}")
        if self.device == "spread":
            _need("accelerate", "device 'spread'")
            if not torch.cuda.is_available():
                raise ConfigError("device 'spread': this machine has no CUDA device; use auto or cpu.")
            object.__setattr__(self, "device_map", self.device_map or "auto")
        object.__setattr__(self, "device", _device(self.device))
        if self.scheme is not None:
            self.scheme.check(self.device, self.dtype, spread=self.device_map is not None)

    @property
    def scheme(self) -> QuantScheme | None:
        return None if self.quantize is None else SCHEMES[self.quantize]

    def options(self, stored: str) -> dict[str, Any]:
        """Arguments of from_pretrained for weights stored in this dtype."""
        dtype = self.torch_dtype(stored)
        options: dict[str, Any] = {"dtype": dtype}
        if self.scheme is not None and self.scheme.config is not None:
            options["quantization_config"] = self.scheme.config(dtype)
            options["device_map"] = self.device_map or {"": self.device}
        elif self.device_map is not None:
            options["device_map"] = self.device_map
        return options

    def move(self, net: PreTrainedModel) -> PreTrainedModel:
        """Put a freshly read network on its device, unless from_pretrained has."""
        placed = self.scheme is not None and self.scheme.config is not None
        if self.device_map is None and not placed:
            torch.nn.Module.to(net, self.device)
        return net

    def torch_dtype(self, stored: str) -> torch.dtype:
        """The dtype to load: the given one, or float32 on a CPU, or bfloat16 where the files hold it."""
        if self.scheme is not None and self.scheme.dtype:
            return DTYPES[self.scheme.dtype]
        if self.dtype != "auto":
            return DTYPES[self.dtype]
        on_cpu = self.device_map is None and torch.device(self.device).type == "cpu"
        return torch.bfloat16 if stored == "BF16" and not on_cpu else torch.float32

    def check_memory(self, parameters: int, stored: str, *, where: str) -> None:
        """Refuse weights that cannot fit into the memory of the device, before any of it is taken."""
        weight = self.scheme.weight_bytes if self.scheme else self.torch_dtype(stored).itemsize
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
    known = "use auto, cpu, cuda, cuda:<n>, mps or spread"
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ConfigError(f"device {name!r} is unknown; {known}.") from None
    if kind not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device {name!r} is not covered; {known}.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device {name!r}: this machine has no CUDA device; use cpu.")
    if kind == "cuda" and (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA device(s).")
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(f"device {name!r}: this machine has no MPS device; use cpu.")
    return name


def gpus_per_task(device: str, cluster: Mapping[str, float]) -> int:
    """GPUs that a Ray task or replica reserves. With `auto` it is one if the cluster has any: Ray hides the others."""
    if device == "auto":
        return int(cluster.get("GPU", 0) >= 1)
    return int(device not in ("cpu", "mps"))


def _need(package: str, field: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"{field} needs {package}; pip install {package}.")


def _known_scheme(name: str) -> str:
    if name not in SCHEMES:
        raise ValueError(f"quantize {name!r} is unknown; use one of {', '.join(SCHEMES)}")
    return name


def _training_scheme(name: str) -> str:
    if not SCHEMES[_known_scheme(name)].trains:
        usable = " or ".join(scheme.name for scheme in SCHEMES.values() if scheme.trains)
        raise ValueError(f"quantize {name!r} is for decoding only; use {usable}")
    return name


# The types of a recipe's field: of one that decodes, and of one that trains an adapter around the weights.
QuantizerName = Annotated[str, AfterValidator(_known_scheme)]
TrainingQuantizerName = Annotated[str, AfterValidator(_training_scheme)]
