"""Checkpoints in the layout of their release, for engines that know only that.

voidpad keeps networks under transformers' own names; the authors' code, Fast-dLLM, dInfer and llama.cpp's converter
read the released ones. `export` writes those: the released config.json, tensor names and tokenizer files, with the
values that training changed. What a release has beside its weights is taken from the release where there is one.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from voidpad.errors import ConfigError, WeightsError
from voidpad.files import fresh_folder, read_json, store
from voidpad.models.card import read_card, write_readme
from voidpad.models.device import DTYPES, STORED
from voidpad.models.locate import locate
from voidpad.models.model import Model
from voidpad.models.text import TOKENIZER_FILES, read_tokenizer
from voidpad.models.weights import INDEX, WHOLE, headers, split_experts

SHARD = 5_000_000_000  # bytes of one file of weights, about


def export(
    model: Model,
    folder: str | Path,
    *,
    like: str | Path | None = None,
    dtype: str | None = None,
    shard: int = SHARD,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write the whole model the way its family was released; `load` reads the folder too.

    `like` is the release (a folder or a hub id) that gives the fields of config.json, the tokenizer files and
    generation_config.json; by default it is what the model was loaded from, if that was a release. Without any, the
    family writes the fields, and the tokenizer is saved as transformers saves it. `dtype` None keeps the dtype of every
    stored tensor. `progress` is called with the number of tensors written and the number of all.
    """
    if model.adapted:
        raise ConfigError(f"{model.name}: has an adapter that is not merged; merge it first.")
    if model.quantized:
        raise ConfigError(f"{model.name}: quantized weights cannot be exported; load it without quantize.")
    release = _release(model, like)
    tensors = list(_released_tensors(model, dtype))
    config = _config(model, release, dtype, Counter(kind for _, _, kind in tensors).most_common(1)[0][0])
    with fresh_folder(Path(folder)) as draft:
        store(draft / "config.json", [json.dumps(config, indent=2) + "\n"])
        if release is None:
            model.tokenizer.save_pretrained(str(draft))
        else:
            for name in (*TOKENIZER_FILES, "generation_config.json"):
                if (release / name).is_file():
                    shutil.copyfile(release / name, draft / name)
            _add_tokens(model, draft)
        _write_tensors(tensors, draft, shard, progress)
        write_readme(draft, model.card, released=True)
        replace(model.card, roles=model.roles).write(draft)


def _release(model: Model, like: str | Path | None) -> Path | None:
    """The folder of the release to follow; None if the model was saved by voidpad or made in this process."""
    if like is not None:
        folder = locate(like)
        config: Mapping[str, Any] = read_json(folder / "config.json")
    elif model.source is not None:
        folder, config = model.source.folder, model.source.config
    else:
        return None
    kind = str(config.get("model_type")).lower()
    if kind in model.family.model_types or (kind in model.family.unmarked_types and not read_card(folder)):
        return folder
    if like is not None:
        raise ConfigError(f"{folder}: is no released {model.family.name} checkpoint; give one, or drop like.")
    return None


def _config(model: Model, release: Path | None, dtype: str | None, written: torch.dtype) -> dict[str, Any]:
    """The released fields: those of the release, or those that the family derives from the network."""
    family, roles, block = model.family, model.roles, model.family.block_field
    if release is not None:
        config = read_json(release / "config.json")
        for name, value in family.translated(config).items():
            if name not in ("bos_token_id", "eos_token_id") and getattr(model.net.config, name) != value:
                raise WeightsError(
                    f"{release}: config.json means {name}={value!r}, but {model.name} has another; use the release "
                    "it was made from."
                )
    elif family.released is not None:
        config = {name: values[0] for name, values in family.covered.fixed.items()}
        config |= family.released(model.net.config)
        config |= {"mask_token_id": roles.mask, "eos_token_id": roles.eos, "pad_token_id": roles.eos}
        config["torch_dtype"] = str(written).removeprefix("torch.")
    else:
        raise ConfigError(
            f"{model.name}: the {family.name} family needs a release to follow; give one (like=..., --like)."
        )
    if block is not None and (release is None or block in config):
        config[block] = model.card.causal_block
    if "mask_token_id" in config:
        config["mask_token_id"] = roles.mask
    if dtype is not None:
        known = [name for name in ("torch_dtype", "dtype") if name in config] or ["torch_dtype"]
        config |= dict.fromkeys(known, dtype)
    return config


def _add_tokens(model: Model, folder: Path) -> None:
    """Add padding tokens that training gave a meaning to every tokenizer file that lists added tokens."""
    known = read_tokenizer(folder, model.family.tokenizer_class).get_vocab()
    used = {"void": (model.roles.void,), "rainbow": model.roles.rainbow}.get(model.card.padding or "", ())
    fresh = {token: str(model.tokenizer.convert_ids_to_tokens(token)) for token in used if token is not None}
    fresh = {token: name for token, name in fresh.items() if name not in known}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json"):
        if not fresh or not (folder / name).is_file():
            continue
        values = read_json(folder / name)
        if name == "tokenizer.json":
            values["added_tokens"] += [
                {"id": token, "content": text, **flags} for token, text in fresh.items()
            ]
        elif name == "tokenizer_config.json":
            listed = {str(token): {"content": text, **flags} for token, text in fresh.items()}
            values["added_tokens_decoder"] = {**values.get("added_tokens_decoder", {}), **listed}
        else:
            values |= {text: token for token, text in fresh.items()}
        store(folder / name, [json.dumps(values, indent=2, ensure_ascii=False) + "\n"])


def _released_tensors(model: Model, dtype: str | None) -> Iterator[tuple[str, Tensor, torch.dtype]]:
    """Every tensor of a release by its name, with the dtype to write it in. A tied head is not among them."""
    family, state = model.family, dict(model.net.state_dict())
    stored: dict[str, torch.dtype] = {}  # by name in the network
    if model.source is not None:
        kinds = {name: STORED.get(header.dtype) for name, header in headers(model.source.folder).items()}
        stored = {family.tensor_name(name): DTYPES[kind] for name, kind in kinds.items() if kind}
    for fused, whole in (family.join(state) if family.join else state).items():
        if fused == "lm_head.weight" and model.net.config.tie_word_embeddings:
            continue
        for name, tensor in split_experts(fused, whole):
            kept = stored.get(name) or stored.get(fused) or tensor.dtype
            yield family.released_name(name), tensor, DTYPES[dtype] if dtype is not None else kept


def _write_tensors(
    tensors: list[tuple[str, Tensor, torch.dtype]],
    folder: Path,
    shard: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Safetensors files of about `shard` bytes, with an index if there are several."""
    files: list[list[tuple[str, Tensor, torch.dtype]]] = [[]]
    filled = total = 0
    for one in tensors:
        size = one[1].numel() * one[2].itemsize
        if files[-1] and filled + size > shard:
            files.append([])
            filled = 0
        files[-1].append(one)
        filled, total = filled + size, total + size
    weight_map: dict[str, str] = {}
    for place, part in enumerate(files, 1):
        file = WHOLE if len(files) == 1 else f"model-{place:05d}-of-{len(files):05d}.safetensors"
        copies = {name: tensor.detach().to("cpu", kind).clone().contiguous() for name, tensor, kind in part}
        save_file(copies, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(copies, file)
        if progress is not None:
            progress(len(weight_map), len(tensors))
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        store(folder / INDEX, [json.dumps(index, indent=2) + "\n"])
