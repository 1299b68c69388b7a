"""Weights on disk: what the safetensors headers promise, checked before anything is loaded."""

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from transformers import PretrainedConfig

from voidpad.errors import WeightsError
from voidpad.models.card import read_json
from voidpad.models.family import Family, rename

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
Shape = tuple[int, ...]
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class Header:
    """One tensor as its file announces it."""

    shape: Shape
    dtype: str


def headers(folder: Path) -> dict[str, Header]:
    """Every tensor of a checkpoint folder by its name on disk."""
    found: dict[str, Header] = {}
    for path in weight_files(folder):
        found |= read_headers(path)
    if (folder / INDEX).is_file():
        promised = dict.fromkeys(read_json(folder / INDEX).get("weight_map", {}), ())
        compare(promised, dict.fromkeys(found, ()), where=str(folder / INDEX))
    return found


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder, those of the index in the order of their names."""
    if (folder / INDEX).is_file():
        shards = read_json(folder / INDEX).get("weight_map", {})
        return [folder / name for name in sorted(set(shards.values()))]
    if not (folder / WHOLE).is_file():
        refuse_pickles(folder, WHOLE)
    return [folder / WHOLE]


def read_headers(path: Path) -> dict[str, Header]:
    """The tensors of one safetensors file; a truncated or foreign file is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return {name: Header(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()}
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file; the checkpoint is incomplete, copy it again.") from None
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: damaged safetensors file ({error}); copy it again.") from None


def refuse_pickles(folder: Path, wanted: str) -> None:
    """Raise for a folder without `wanted`, naming the pickle file that is there instead, if any."""
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise WeightsError(
            f"{folder / pickles[0]}: pickle weights can run code; convert the file to safetensors."
        )
    raise WeightsError(f"{folder / wanted}: no such file; voidpad reads safetensors weights only.")


def check(found: Mapping[str, Header], family: Family, config: PretrainedConfig, *, where: str) -> None:
    """Every tensor of the network is in the files with its shape, and nothing else is."""
    with torch.device("meta"):
        net = family.net_class(config)
    wanted = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    if config.tie_word_embeddings:
        del wanted["lm_head.weight"]
    compare(wanted, {rename(name): header.shape for name, header in found.items()}, where=where)


def compare(wanted: Mapping[str, Shape], given: Mapping[str, Shape], *, where: str) -> None:
    """Names and shapes agree exactly."""
    faults = _listed("missing", wanted.keys() - given.keys())
    faults += _listed("surplus", given.keys() - wanted.keys())
    for name in sorted(wanted.keys() & given.keys()):
        if wanted[name] != given[name]:
            faults.append(f"{name} is {list(given[name])}, the config asks for {list(wanted[name])}")
            break
    if faults:
        raise WeightsError(f"{where}: {'; '.join(faults)}. Use the complete checkpoint with its own config.")


def stored_dtype(found: Mapping[str, Header]) -> str:
    """The most common dtype of the files, as safetensors writes it (F32, BF16, F16)."""
    return Counter(header.dtype for header in found.values()).most_common(1)[0][0]


def _listed(kind: str, names: Set[str]) -> list[str]:
    shown = ", ".join(sorted(names)[:4]) + (", ..." if len(names) > 4 else "")
    return [f"{len(names)} {kind} tensor(s): {shown}"] if names else []
