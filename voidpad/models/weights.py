"""Weights on disk: safetensors files, what their headers say, and their tensors under the names of the network."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PretrainedConfig

from voidpad.errors import WeightsError
from voidpad.files import read_json, readable
from voidpad.models.families import Family

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


# What safetensors calls the formats that releases use; others are read as they are.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class TensorHeader(NamedTuple):
    """Shape and dtype of one tensor, from the header of its file."""

    shape: tuple[int, ...]
    dtype: torch.dtype | None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder."""
    if (folder / INDEX).is_file():
        return sorted({folder / name for name in read_json(folder / INDEX).get("weight_map", {}).values()})
    return [required(folder / WHOLE)]


def required(path: Path) -> Path:
    """The file of weights, which must be there."""
    if not path.is_file():
        raise WeightsError(
            f"{path}: no such file; voidpad reads safetensors weights only, no pickles (.bin, .pt)."
        )
    return path


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """The tensors of one safetensors file."""
    with readable(path, "safetensors"), safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return {
            name: TensorHeader(tuple(part.get_shape()), _DTYPES.get(part.get_dtype()))
            for name, part in slices.items()
        }


def headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor of a checkpoint folder by its name on disk."""
    return {name: header for path in weight_files(folder) for name, header in read_headers(path).items()}


def stored_dtype(tensors: Mapping[str, TensorHeader]) -> torch.dtype:
    """The most common dtype of the files."""
    return Counter(header.dtype for header in tensors.values()).most_common(1)[0][0] or torch.float32


def network_size(family: Family, config: PretrainedConfig) -> int:
    """The number of weights of a network of this config, which is built without memory."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in family.net_class(config).parameters())


@contextmanager
def open_tensors(folder: Path, family: Family, config: PretrainedConfig) -> Iterator[dict[str, Tensor | Any]]:
    """Every tensor under its name in the network, for from_pretrained: on disk until it is used."""
    tensors: dict[str, Tensor | Any] = {}
    with ExitStack() as stack:
        for path in weight_files(folder):
            file = stack.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 (not a dict)
                stock = family.tensor_name(name)
                if family.joined and family.split and family.joined in stock:
                    tensors |= family.split(stock, file.get_tensor(name), config)
                else:
                    tensors[stock] = file.get_slice(name)
        yield tensors


def refuse_unplaced(
    missing: Iterable[str], surplus: Iterable[str], *, where: str, misshapen: Iterable[str] = ()
) -> None:
    """Raise if the tensors of a file are not those of the network."""
    kinds = {"missing": missing, "surplus": surplus, "misshapen": misshapen}
    faults = [
        f"{len(names)} {kind} tensor(s): {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"
        for kind, names in ((kind, sorted(found)) for kind, found in kinds.items())
        if names
    ]
    if faults:
        raise WeightsError(f"{where}: {'; '.join(faults)}. Use the complete checkpoint with its own config.")


def refuse_nan(tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
    """Raise for weights that are not finite numbers: they would make every answer empty."""
    for name, tensor in tensors:
        if tensor.is_floating_point() and not torch.stack(tensor.detach().aminmax()).isfinite().all():
            raise WeightsError(
                f"{where}: tensor {name} holds NaN or infinity; copy or train the weights again."
            )
