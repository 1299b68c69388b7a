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
from transformers.utils import logging

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


def _weight_map(folder: Path) -> dict[str, str]:
    """The file of each tensor by the index of a folder; empty where all weights are in one file."""
    return dict(read_json(folder / INDEX).get("weight_map", {})) if (folder / INDEX).is_file() else {}


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder."""
    names = sorted(set(_weight_map(folder).values()))
    return [folder / name for name in names] or [required(folder / WHOLE)]


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


@contextmanager
def open_tensors(folder: Path, family: Family, config: PretrainedConfig) -> Iterator[dict[str, Tensor | Any]]:
    """Every tensor under its name in the network, for from_pretrained: on disk until it is used."""
    tensors: dict[str, Tensor | Any] = {}
    home = _weight_map(folder)
    with ExitStack() as stack:
        for path in weight_files(folder):
            file = stack.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 (not a dict)
                stock = family.tensor_name(name)
                if home.get(name, path.name) != path.name:
                    continue  # it is in two files: the index decides
                if family.joined and family.split and family.joined in stock:
                    tensors |= family.split(stock, file.get_tensor(name), config)
                else:
                    tensors[stock] = file.get_slice(name)
        yield tensors


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Without transformers' progress bars and reports: what to show is the caller's choice."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


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
