"""Checkpoints in the layout of their release, for engines that know only that.

voidpad keeps networks under transformers' own names; the authors' code, Fast-dLLM, dInfer and llama.cpp's converter
read the released ones. `export` writes those: the released config.json, tensor names and tokenizer files, with the
values that training changed. What a release has beside its weights is taken from the release where there is one.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from voidpad.errors import ConfigError, WeightsError
from voidpad.files import fresh_folder, read_json, store
from voidpad.models.card import read_card, write_readme
from voidpad.models.device import DTYPES
from voidpad.models.locate import locate
from voidpad.models.model import Model
from voidpad.models.text import TOKENIZER_FILES, read_tokenizer
from voidpad.models.weights import INDEX, headers

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
    tensors = _released_tensors(model, dtype)
    written = Counter(kind for _, kind in tensors.values()).most_common(1)[0][0]
    config = _config(model, release, dtype, written)
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
        model.card.write(draft)


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


def _released_tensors(model: Model, dtype: str | None) -> dict[str, tuple[Tensor, torch.dtype]]:
    """Every tensor of a release by its name, with the dtype to write it in. A tied head is not among them."""
    family, net, stored = model.family, model.base, dict[str, torch.dtype]()
    if model.source is not None:
        found = {family.tensor_name(name): tensor for name, tensor in headers(model.source.folder).items()}
        stored = {name: tensor.dtype for name, tensor in found.items() if tensor.dtype is not None}

    def apart(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # transformers fuses the experts of a layer while it loads them; releases store their matrices apart.
        parts = revert_weight_conversion(net, dict(state))
        return family.join(parts) if family.join else parts

    state = net.state_dict()
    if net.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    # A folder saved by voidpad holds experts fused, so their dtype is known by the fused name.
    kinds = apart(
        {
            name: torch.empty_like(tensor, dtype=stored.get(name), device="meta")
            for name, tensor in state.items()
        }
    )
    return {
        family.released_name(name): (
            tensor,
            DTYPES[dtype] if dtype else stored.get(name, kinds[name].dtype),
        )
        for name, tensor in apart(state).items()
    }


def _write_tensors(
    tensors: Mapping[str, tuple[Tensor, torch.dtype]],
    folder: Path,
    shard: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Safetensors files of about `shard` bytes, with an index if there are several."""
    sizes = {name: torch.empty_like(one, dtype=kind, device="meta") for name, (one, kind) in tensors.items()}
    split = split_torch_state_dict_into_shards(sizes, max_shard_size=shard)
    written = 0
    for file, names in split.filename_to_tensors.items():
        copies = {}
        for name in names:
            tensor, kind = tensors[name]
            copies[name] = tensor.detach().to("cpu", kind).clone().contiguous()
        save_file(copies, folder / file, metadata={"format": "pt"})
        written += len(names)
        if progress is not None:
            progress(written, len(tensors))
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": dict(sorted(split.tensor_to_filename.items()))}
        store(folder / INDEX, [json.dumps(index, indent=2) + "\n"])
