"""Weights on disk: what the safetensors headers promise, checked before anything is loaded.

Mixtures of experts: releases store the matrices of every expert apart, transformers keeps those of a layer fused.
On disk a layer has `mlp.experts.<n>.{gate,up,down}_proj.weight`; in the network it has `mlp.experts.gate_up_proj`
(experts, 2 * size, hidden) and `mlp.experts.down_proj` (experts, hidden, size). transformers fuses while it loads.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PretrainedConfig

from voidpad.errors import WeightsError, reason
from voidpad.models.card import read_json
from voidpad.models.families import Family
from voidpad.models.families.family import shown

WHOLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
Shape = tuple[int, ...]
_FLOATS = ("F32", "BF16", "F16", "F64")
# Tensors of the network that hold the matrices of all experts of a layer.
_FUSED = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class TensorHeader:
    """Shape and dtype of one tensor, from the header of its file."""

    shape: Shape
    dtype: str


def headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor of a checkpoint folder by its name on disk."""
    tensors: dict[str, TensorHeader] = {}
    for path in weight_files(folder):
        tensors |= read_headers(path)
    if (folder / INDEX).is_file():
        promised = dict.fromkeys(_weight_map(folder), ())
        compare(promised, dict.fromkeys(tensors, ()), where=str(folder / INDEX))
    odd = next((name for name, tensor in tensors.items() if tensor.dtype not in _FLOATS), None)
    if odd is not None:
        raise WeightsError(
            f"{folder}: tensor {shown(odd)} has dtype {tensors[odd].dtype}; weights must be F32, BF16 or F16."
        )
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder, those of the index in the order of their names."""
    if (folder / INDEX).is_file():
        return [folder / name for name in sorted(set(_weight_map(folder).values()))]
    if not (folder / WHOLE).is_file():
        refuse_pickles(folder, WHOLE)
    return [folder / WHOLE]


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor -> file of a sharded checkpoint. Files must be plain names: a path could lead out of the folder."""
    path = folder / INDEX
    index = read_json(path)
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise WeightsError(f"{path}: weight_map must map tensors to files; copy the file again.")
    if not isinstance(index.get("metadata"), dict):
        raise WeightsError(f"{path}: metadata must be a JSON object; copy the file again.")
    for file in shards.values():
        plain = isinstance(file, str) and file.endswith(".safetensors") and Path(file).name == file
        if not plain or "\\" in file or "\0" in file:
            raise WeightsError(
                f"{path}: weight_map names {shown(file)}; it must be a .safetensors file of this folder."
            )
    return shards


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """The tensors of one safetensors file; a truncated or foreign file is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
            return {
                name: TensorHeader(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()
            }
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file; the checkpoint is incomplete, copy it again.") from None
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise WeightsError(f"{path}: damaged safetensors file ({reason(error)}); copy it again.") from None


def refuse_pickles(folder: Path, name: str) -> None:
    """Raise for a folder without the weights file `name`, naming the pickle file that is there instead, if any."""
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise WeightsError(
            f"{folder / pickles[0]}: pickle weights can run code; convert the file to safetensors."
        )
    raise WeightsError(f"{folder / name}: no such file; voidpad reads safetensors weights only.")


def check(
    tensors: Mapping[str, TensorHeader], family: Family, config: PretrainedConfig, *, where: str
) -> None:
    """Every tensor of the network is in the files with its shape, and nothing else is."""
    # Building that many layers would take time, even without memory.
    if config.num_hidden_layers > len(tensors):
        raise WeightsError(
            f"{where}: config.json asks for {config.num_hidden_layers} layers, but the files hold {len(tensors)} "
            "tensors. Use the complete checkpoint with its own config."
        )
    try:
        with torch.device("meta"):
            net = family.net_class(config)
    except Exception as error:  # a field of a type or value that the network cannot be built from
        raise WeightsError(
            f"{where}: config.json does not describe a network ({reason(error)}); copy the file again."
        ) from error
    given = {family.tensor_name(name): header.shape for name, header in tensors.items()}
    expected: dict[str, Shape] = {}
    for name, tensor in net.state_dict().items():
        if not _FUSED.fullmatch(name) or name in given:  # folders saved by voidpad hold the fused tensors
            expected[name] = tuple(tensor.shape)
            continue
        if len(tensor) * config.num_hidden_layers > len(tensors):
            raise WeightsError(
                f"{where}: config.json asks for {len(tensor)} experts in {config.num_hidden_layers} layers, but the "
                f"files hold {len(tensors)} tensors. Use the complete checkpoint with its own config."
            )
        expected |= {part: tuple(matrix.shape) for part, matrix in split_experts(name, tensor)}
    if config.tie_word_embeddings:
        del expected["lm_head.weight"]
    compare(expected, given, where=where)


def compare(expected: Mapping[str, Shape], given: Mapping[str, Shape], *, where: str) -> None:
    """Names and shapes agree exactly."""
    faults = _listed("missing", expected.keys() - given.keys())
    faults += _listed("surplus", given.keys() - expected.keys())
    for name in sorted(expected.keys() & given.keys()):
        if expected[name] != given[name]:
            faults.append(f"{name} is {list(given[name])}, the config asks for {list(expected[name])}")
            break
    if faults:
        raise WeightsError(f"{where}: {'; '.join(faults)}. Use the complete checkpoint with its own config.")


def split_experts(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """The tensors that a release stores for one of the network: one for each matrix of each expert.

    The parts are views. A tensor that is not fused comes back alone, under its own name.
    """
    fused = _FUSED.fullmatch(name)
    if fused is None:
        yield name, tensor
        return
    module, projection = fused.groups()
    for number, expert in enumerate(tensor):
        parts = {"gate": expert[: len(expert) // 2], "up": expert[len(expert) // 2 :]}
        for part, matrix in parts.items() if projection == "gate_up_proj" else [("down", expert)]:
            yield f"{module}.{number}.{part}_proj.weight", matrix


def stored_dtype(tensors: Mapping[str, TensorHeader]) -> str:
    """The most common dtype of the files, as safetensors writes it (F32, BF16, F16)."""
    return Counter(header.dtype for header in tensors.values()).most_common(1)[0][0]


def refuse_nan(tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
    """Raise for weights that are not finite numbers: they would make every answer empty."""
    floats = [(name, tensor) for name, tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    extremes = [torch.stack(tensor.detach().aminmax()).float().cpu() for _, tensor in floats]
    for (name, _), extreme in zip(floats, extremes, strict=True):
        if not extreme.isfinite().all():
            raise WeightsError(
                f"{where}: tensor {name} holds NaN or infinity; copy or train the weights again."
            )


def _listed(kind: str, names: Set[str]) -> list[str]:
    first = ", ".join(name[:120] for name in sorted(names)[:4]) + (", ..." if len(names) > 4 else "")
    return [f"{len(names)} {kind} tensor(s): {first}"] if names else []
