"""Weights on disk: safetensors files, what their headers say, and their tensors under the names of the network."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PretrainedConfig
from transformers.utils import logging

from voidpad.errors import WeightsError
from voidpad.files import read_json, readable
from voidpad.models.families import Family

INDEX = "model.safetensors.index.json"
# What safetensors calls the formats that releases use; others count as float32.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def weight_map(folder: Path) -> dict[str, str]:
    """The file of each tensor by the index of a folder; empty where all weights are in one file."""
    return dict(read_json(folder / INDEX).get("weight_map", {})) if (folder / INDEX).is_file() else {}


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder: those of its index, or the only one."""
    return [folder / name for name in sorted(set(weight_map(folder).values()) or {"model.safetensors"})]


def headers(folder: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint folder by their names on disk, shapes and dtypes only."""
    found = {}
    for path in weight_files(folder):
        if not path.is_file():
            raise WeightsError(
                f"{path}: no such file; voidpad reads safetensors weights only, no pickles (.bin, .pt)."
            )
        with readable(path, "safetensors"), safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (not a dict)
                part = file.get_slice(name)
                dtype = _DTYPES.get(part.get_dtype())
                found[name] = torch.empty(part.get_shape(), dtype=dtype, device="meta")
    return found


def stored_dtype(tensors: Mapping[str, Tensor]) -> torch.dtype:
    """The most common dtype of the files."""
    return Counter(tensor.dtype for tensor in tensors.values()).most_common(1)[0][0]


@contextmanager
def open_tensors(folder: Path, family: Family, config: PretrainedConfig) -> Iterator[dict[str, Any]]:
    """Every tensor under its name in the network, for from_pretrained: on disk until it is used."""
    tensors: dict[str, Any] = {}
    home = weight_map(folder)
    with ExitStack() as stack:
        for path in weight_files(folder):
            file = stack.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 (not a dict)
                if home.get(name, path.name) != path.name:
                    continue  # it is in two files: the index decides
                tensors |= family.split(family.stock_name(name), file.get_slice(name), config)
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


def refuse_misfits(where: str, **kinds: Iterable[str]) -> None:
    """Raise if some tensors do not fit: lists of names by what is wrong with them (missing, surplus, misshapen)."""
    faults = [f"{kind}: {', '.join(sorted(names)[:4])}" for kind, names in kinds.items() if names]
    if faults:
        raise WeightsError(f"{where}: tensors do not fit ({'; '.join(faults)}); use the complete checkpoint.")
