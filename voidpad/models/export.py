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

from voidpad.errors import ConfigError, WeightsError, shown
from voidpad.files import fresh_folder, read_json, store
from voidpad.models.card import read_card, write_readme
from voidpad.models.device import DTYPES, STORED
from voidpad.models.locate import locate
from voidpad.models.model import Model
from voidpad.models.text import TOKENIZER_FILES, read_tokenizer
from voidpad.models.weights import INDEX, WHOLE, headers, split_experts

SHARD = 5_000_000_000  # bytes of one file of weights, about
GENERATION = "generation_config.json"
_DTYPE_FIELDS = ("torch_dtype", "dtype")


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
    config = _config(model, release, dtype)
    with fresh_folder(Path(folder)) as draft:
        store(draft / "config.json", [json.dumps(config, indent=2) + "\n"])
        if release is None:
            model.tokenizer.save_pretrained(str(draft))
        else:
            _copy_tokenizer(model, release, draft)
            if (release / GENERATION).is_file():
                shutil.copyfile(release / GENERATION, draft / GENERATION)
        _write_tensors(model, draft, dtype, shard, progress)
        write_readme(draft, model.card, released=True)
        replace(model.card, roles=model.roles).write(draft)


def _release(model: Model, like: str | Path | None) -> Path | None:
    """The folder of the release to follow; None if the model was saved by voidpad or made in this process."""
    if like is None and model.source is None:
        return None
    if like is not None:
        folder = locate(like)
        config: Mapping[str, Any] = read_json(folder / "config.json")
    else:
        assert model.source is not None
        folder, config = model.source.folder, model.source.config
    kind = str(config.get("model_type")).lower()
    unmarked = kind in model.family.unmarked_types and read_card(folder) is None
    if kind in model.family.model_types or unmarked:
        return folder
    if like is not None:
        raise ConfigError(f"{folder}: is no released {model.family.name} checkpoint; give one, or drop like.")
    return None


# config.json


def _config(model: Model, release: Path | None, dtype: str | None) -> dict[str, Any]:
    """The released fields: those of the release, or those that the family derives from the network."""
    family, roles = model.family, model.roles
    if release is not None:
        config = read_json(release / "config.json")
        where = str(release)
    elif family.released is not None:
        config, where = family.released_config(model.net.config), model.name
        config |= {"mask_token_id": roles.mask, "eos_token_id": roles.eos, "pad_token_id": roles.eos}
        kinds = Counter(_stored_dtypes(model).values() or [model.net.dtype])
        config["torch_dtype"] = str(kinds.most_common(1)[0][0]).removeprefix("torch.")
    else:
        raise ConfigError(
            f"{model.name}: the {family.name} family needs a release to follow; give one (like=..., --like)."
        )
    block = family.block_field
    if block is not None and (release is None or block in config):
        config[block] = model.card.causal_block
    if "mask_token_id" in config:
        config["mask_token_id"] = roles.mask
    if dtype is not None:
        known = [name for name in _DTYPE_FIELDS if name in config] or ["torch_dtype"]
        config |= dict.fromkeys(known, dtype)
    _check_config(model, config, where=where)
    return config


def _check_config(model: Model, config: Mapping[str, Any], *, where: str) -> None:
    """The released fields describe the network whose tensors are written."""
    own = model.net.config
    model.family.read_config(config, where=where)
    for name, value in model.family.translated(config).items():
        if name not in ("bos_token_id", "eos_token_id") and getattr(own, name) != value:
            raise WeightsError(
                f"{where}: config.json means {name}={shown(value)}, but {model.name} has "
                f"{shown(getattr(own, name))}; use the release it was made from."
            )


# Tokenizer


def _copy_tokenizer(model: Model, release: Path, folder: Path) -> None:
    """The release's own files, with the padding tokens that training gave a meaning where it has no entry for them."""
    for name in TOKENIZER_FILES:
        if (release / name).is_file():
            shutil.copyfile(release / name, folder / name)
    tokenizer = read_tokenizer(release, model.family.tokenizer_class)
    roles = model.roles
    used = {"void": (roles.void,), "rainbow": roles.rainbow}.get(model.card.padding or "", ())
    ids = [token for token in used if token is not None]
    names = dict(zip(ids, model.tokenizer.convert_ids_to_tokens(ids), strict=True))
    fresh = {token: name for token, name in names.items() if name not in tokenizer.get_vocab()}
    if not fresh:
        return
    for token in fresh:
        there = tokenizer.convert_ids_to_tokens(token)
        if there is not None:
            raise WeightsError(
                f"{release}: its tokenizer has {shown(there)} at {token}, where {model.name} has "
                f"{shown(fresh[token])}; use the release it was made from."
            )
    _add_tokens(folder, fresh)
    again = read_tokenizer(folder, model.family.tokenizer_class)
    if again.convert_ids_to_tokens(list(fresh)) != list(fresh.values()):
        raise WeightsError(f"{release}: its tokenizer files have no place for {', '.join(fresh.values())}.")


def _add_tokens(folder: Path, fresh: Mapping[int, str]) -> None:
    """Special tokens in every file of a tokenizer that lists added tokens."""
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json"):
        if not (folder / name).is_file():
            continue
        values = read_json(folder / name)
        if name == "tokenizer.json":
            entries = [{"id": token, "content": text, **flags} for token, text in fresh.items()]
            values["added_tokens"] = [*values.get("added_tokens", []), *entries]
        elif name == "tokenizer_config.json":
            listed = {str(token): {"content": text, **flags} for token, text in fresh.items()}
            values["added_tokens_decoder"] = {**values.get("added_tokens_decoder", {}), **listed}
        else:
            values |= {text: token for token, text in fresh.items()}
        store(folder / name, [json.dumps(values, indent=2, ensure_ascii=False) + "\n"])


# Tensors


def _write_tensors(
    model: Model, folder: Path, dtype: str | None, shard: int, progress: Callable[[int, int], None] | None
) -> None:
    """Safetensors files of about `shard` bytes under the released names, with an index if there are several."""
    tensors = list(_released_tensors(model, dtype))
    sizes = [tensor.numel() * kind.itemsize for _, tensor, kind in tensors]
    files: list[list[int]] = [[]]  # tensors by number
    filled = 0
    for number, size in enumerate(sizes):
        if files[-1] and filled + size > shard:
            files.append([])
            filled = 0
        files[-1].append(number)
        filled += size
    weight_map: dict[str, str] = {}
    for place, numbers in enumerate(files, 1):
        name = WHOLE if len(files) == 1 else f"model-{place:05d}-of-{len(files):05d}.safetensors"
        part = {
            tensors[n][0]: tensors[n][1].detach().to("cpu", tensors[n][2]).clone().contiguous()
            for n in numbers
        }
        save_file(part, folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
        if progress is not None:
            progress(len(weight_map), len(tensors))
    if len(files) > 1:
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": dict(sorted(weight_map.items()))}
        store(folder / INDEX, [json.dumps(index, indent=2) + "\n"])


def _released_tensors(model: Model, dtype: str | None) -> Iterator[tuple[str, Tensor, torch.dtype]]:
    """Every tensor of a release by its name, with the dtype to write it in. A tied head is not among them."""
    family, stored, state = model.family, _stored_dtypes(model), model.net.state_dict()
    for fused, whole in state.items():
        if fused == "lm_head.weight" and model.net.config.tie_word_embeddings:
            continue
        if joined := family.joined_name(fused):
            parts = family.parts(joined)
            if fused != parts[0]:
                continue
            fused, whole = joined, torch.cat([state[part] for part in parts])
        for name, tensor in split_experts(fused, whole):
            released = family.released_name(name)
            if family.tensor_name(released) != name:
                raise WeightsError(
                    f"{model.name}: tensor {name} has no released name in the {family.name} family."
                )
            kept = stored.get(name) or stored.get(fused) or tensor.dtype
            yield released, tensor, DTYPES[dtype] if dtype is not None else kept


def _stored_dtypes(model: Model) -> dict[str, torch.dtype]:
    """The dtype of every tensor on disk by its name in the network; nothing for a model that is not from disk."""
    if model.source is None:
        return {}
    tensors = headers(model.source.folder)
    known = {name: STORED.get(header.dtype) for name, header in tensors.items()}
    return {model.family.tensor_name(name): DTYPES[kind] for name, kind in known.items() if kind}
