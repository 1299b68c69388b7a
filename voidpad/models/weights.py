"""Weights on disk: what the safetensors headers promise, checked before anything is loaded, and their tensors.

Mixtures of experts: releases store the matrices of every expert apart, transformers keeps those of a layer fused.
On disk a layer has `mlp.experts.<n>.{gate,up,down}_proj.weight`; in the network it has `mlp.experts.gate_up_proj`
(experts, 2 * size, hidden) and `mlp.experts.down_proj` (experts, hidden, size). transformers fuses while it loads.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import PretrainedConfig

from voidpad.errors import WeightsError, first_line, printable, shown
from voidpad.files import read_json, readable
from voidpad.models.families import Family

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


# Files


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint folder, those of the index in the order of their names."""
    if (folder / INDEX).is_file():
        return [folder / name for name in sorted(set(_weight_map(folder).values()))]
    if not (folder / WHOLE).is_file():
        refuse_pickles(folder, WHOLE)
    return [folder / WHOLE]


def refuse_pickles(folder: Path, name: str) -> None:
    """Raise for a folder without the weights file `name`, naming the pickle file that is there instead, if any."""
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise WeightsError(
            f"{folder / pickles[0]}: pickle weights can run code; convert the file to safetensors."
        )
    raise WeightsError(f"{folder / name}: no such file; voidpad reads safetensors weights only.")


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor -> file of a sharded checkpoint. Files must be plain names: a path could lead out of the folder."""
    path = folder / INDEX
    shards = read_json(path).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise WeightsError(f"{path}: weight_map must map tensors to files; copy the file again.")
    for file in shards.values():
        if not isinstance(file, str) or not file.endswith(".safetensors") or Path(file).name != file:
            raise WeightsError(
                f"{path}: weight_map names {shown(file)}; it must be a .safetensors file of this folder."
            )
    return shards


def read_headers(path: Path) -> dict[str, TensorHeader]:
    """The tensors of one safetensors file; a truncated or foreign file is refused."""
    with readable(path, "safetensors"), safe_open(path, framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        return {
            name: TensorHeader(tuple(part.get_shape()), part.get_dtype()) for name, part in slices.items()
        }


def headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor of a checkpoint folder by its name on disk. Of one that several files hold, the index decides."""
    where = _weight_map(folder) if (folder / INDEX).is_file() else {}
    tensors: dict[str, TensorHeader] = {}
    for path in weight_files(folder):
        for name, header in read_headers(path).items():
            if where.get(name, path.name) == path.name:
                tensors[name] = header
    if where:
        compare(dict.fromkeys(where, ()), dict.fromkeys(tensors, ()), where=str(folder / INDEX))
    odd = next((name for name, tensor in tensors.items() if tensor.dtype not in _FLOATS), None)
    if odd is not None:
        raise WeightsError(
            f"{folder}: tensor {short_name(odd)} has dtype {tensors[odd].dtype}; weights must be F32, BF16 or F16."
        )
    return tensors


@contextmanager
def open_tensors(folder: Path, family: Family, config: PretrainedConfig) -> Iterator[dict[str, Tensor | Any]]:
    """Every tensor of the stock class by its name, for from_pretrained: on disk until it is used.

    Of a tensor that several files hold, the index decides.
    """
    where = _weight_map(folder) if (folder / INDEX).is_file() else {}
    shapes = expected_shapes(family, config)
    tensors: dict[str, Tensor | Any] = {}
    with ExitStack() as stack:
        for path in weight_files(folder):
            file = stack.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 (not a dict)
                if where.get(name, path.name) != path.name:
                    continue
                parts = family.parts(family.tensor_name(name))
                if len(parts) == 1:
                    tensors[parts[0]] = file.get_slice(name)
                else:
                    rows = [shapes[part][0] for part in parts]
                    tensors |= dict(zip(parts, file.get_tensor(name).split(rows), strict=True))
        yield tensors


# Checks


def expected_shapes(family: Family, config: PretrainedConfig) -> dict[str, Shape]:
    """The shape of every tensor of the network, those of experts fused."""
    with torch.device("meta"):
        net = family.net_class(config)
    shapes = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    if config.tie_word_embeddings:
        del shapes["lm_head.weight"]
    return shapes


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
        shapes = expected_shapes(family, config)
    except Exception as error:  # a field of a type or value that the network cannot be built from
        raise WeightsError(
            f"{where}: config.json does not describe a network ({first_line(error)}); copy the file again."
        ) from error
    given: dict[str, Shape] = {}
    for name, header in tensors.items():
        stock = family.tensor_name(name)
        parts = family.parts(stock)
        rows = [shapes.get(part, (0,))[0] for part in parts]
        if len(parts) > 1 and sum(rows) == header.shape[0]:
            given |= {part: (size, *header.shape[1:]) for part, size in zip(parts, rows, strict=True)}
        else:
            given[stock] = header.shape
    expected: dict[str, Shape] = {}
    for name, shape in shapes.items():
        if not _FUSED.fullmatch(name) or name in given:  # folders saved by voidpad hold the fused tensors
            expected[name] = shape
            continue
        if shape[0] > len(tensors):
            raise WeightsError(
                f"{where}: config.json asks for {shape[0]} experts in a layer, but the files hold {len(tensors)} "
                "tensors. Use the complete checkpoint with its own config."
            )
        matrices = split_experts(name, torch.empty(shape, device="meta"))
        expected |= {part: tuple(matrix.shape) for part, matrix in matrices}
    compare(expected, given, where=where)


def compare(expected: Mapping[str, Shape], given: Mapping[str, Shape], *, where: str) -> None:
    """Names and shapes agree exactly."""
    faults = _listed("missing", expected.keys() - given.keys())
    faults += _listed("surplus", given.keys() - expected.keys())
    for name in sorted(expected.keys() & given.keys()):
        if expected[name] != given[name]:
            sizes = f"is {list(given[name])}, the config asks for {list(expected[name])}"
            faults.append(f"{short_name(name)} {sizes}")
            break
    if faults:
        raise WeightsError(f"{where}: {'; '.join(faults)}. Use the complete checkpoint with its own config.")


def _listed(kind: str, names: Set[str]) -> list[str]:
    first = ", ".join(short_name(name) for name in sorted(names)[:4]) + (", ..." if len(names) > 4 else "")
    return [f"{len(names)} {kind} tensor(s): {first}"] if names else []


def short_name(name: str) -> str:
    """The name of a tensor for an error message: a file may give it control characters and any length."""
    return printable(name)[:120]


def refuse_nan(tensors: Iterable[tuple[str, Tensor]], *, where: str) -> None:
    """Raise for weights that are not finite numbers: they would make every answer empty."""
    floats = [(name, tensor) for name, tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    extremes = [torch.stack(tensor.detach().aminmax()).float().cpu() for _, tensor in floats]
    for (name, _), extreme in zip(floats, extremes, strict=True):
        if not extreme.isfinite().all():
            raise WeightsError(
                f"{where}: tensor {short_name(name)} holds NaN or infinity; copy or train the weights again."
            )


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
