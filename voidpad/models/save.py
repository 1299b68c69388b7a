"""Models as folders: `save` in transformers' layout, `export` in the layout of the release, and `merge` before either.

voidpad keeps networks under transformers' own names; the authors' code, Fast-dLLM, dInfer and llama.cpp's converter
read the released ones. `export` writes those: the released config.json, tensor names and tokenizer files, with the
values that training changed. What a release has beside its weights is taken from the release where there is one.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from peft import PeftModel
from safetensors.torch import save_file
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from voidpad.errors import ConfigError, WeightsError
from voidpad.files import fresh_folder, read_json, store
from voidpad.models.card import CARD, read_card
from voidpad.models.device import DTYPES
from voidpad.models.locate import locate
from voidpad.models.model import Model
from voidpad.models.text import TOKENIZER_FILES, read_tokenizer
from voidpad.models.weights import INDEX, headers, quiet_transformers

SHARD = 5_000_000_000  # bytes of one file of weights, about
_ADVICE = {
    "void": "Trained with void padding: decode with plan `void`, or `void-expansion` to let it choose its canvas.",
    "rainbow": "Trained with rainbow padding: decode with plan `original`.",
    "eos": "Trained with eos padding: decode with plan `eos-last`, or `original` and small blocks.",
}
_README = """---
{front}
pipeline_tag: text-generation
tags:
- masked-diffusion
- voidpad
---

# Masked diffusion language model of the {family} family

{about} {advice}

    voidpad generate "..." {options}

FOLDER is this folder. Before you publish it, add the licence of the base and the training data to the lines at the top.

`{card}` holds token roles, padding policy, training recipe and calibrated lengths.
"""


def merge(model: Model) -> Model:
    """The model with its adapter folded into the weights. The network is changed in place."""
    if not isinstance(model.net, PeftModel):
        raise ConfigError(
            f"{model.name}: has no adapter to merge; name one with it (--adapter, adapter=...)."
        )
    _refuse_quantized(model)
    return replace(model, net=model.net.merge_and_unload(safe_merge=True))


def save(model: Model, folder: str | Path) -> None:
    """Write a folder that `load` reads: the whole model, or the adapter alone where it is not merged."""
    if not model.adapted:
        _refuse_quantized(model)
    with _described_folder(model, folder, "A whole model, in transformers' format.") as draft:
        write_network(model, draft)


def write_network(model: Model, folder: Path, tensors: Mapping[str, Tensor] | None = None) -> None:
    """Weights, config and tokenizer in transformers' layout, or the adapter alone where it is not merged.

    `tensors` stands for the state of the network where that is not in one place, as in sharded training.
    """
    net: Any = model.net
    with quiet_transformers():
        if model.adapted:
            net.save_pretrained(str(folder), state_dict=tensors, save_embedding_layers=False)
            (folder / "README.md").unlink(missing_ok=True)  # peft's is a form to be filled in
        else:
            net.save_pretrained(str(folder), state_dict=tensors, save_original_format=False)
            model.tokenizer.save_pretrained(str(folder))


def export(
    model: Model,
    folder: str | Path,
    *,
    like: str | Path | None = None,
    dtype: str | None = None,
    shard: int = SHARD,
) -> None:
    """Write the whole model the way its family was released; `load` reads the folder too.

    `like` is the release (a folder or a hub id) that gives the fields of config.json, the tokenizer files and
    generation_config.json; by default it is what the model was loaded from, if that was a release. Without any, the
    family writes the fields, and the tokenizer is saved as transformers saves it. `dtype` None keeps the dtype of every
    stored tensor.
    """
    if model.adapted:
        raise ConfigError(f"{model.name}: has an adapter that is not merged; merge it first.")
    _refuse_quantized(model)
    release = _release(model, like)
    config = _released_config(model, release)
    tensors, wanted = _released_tensors(model, dtype)
    usual = Counter(one.dtype for one in wanted.values()).most_common(1)[0][0]
    if release is None or dtype is not None:
        known = [name for name in ("torch_dtype", "dtype") if name in config] or ["torch_dtype"]
        config |= dict.fromkeys(known, str(usual).removeprefix("torch."))
    about = "A whole model in the layout of its release; the code that its `auto_map` names is not here."
    with _described_folder(model, folder, about) as draft:
        store(draft / "config.json", [json.dumps(config, indent=2) + "\n"])
        if release is None:
            model.tokenizer.save_pretrained(str(draft))
        else:
            for name in (*TOKENIZER_FILES, "generation_config.json"):
                if (release / name).is_file():
                    shutil.copyfile(release / name, draft / name)
            _add_tokens(model, draft)
        _write_tensors(tensors, wanted, draft, shard)


def _refuse_quantized(model: Model) -> None:
    if model.scheme is not None:
        raise ConfigError(
            f"{model.name}: {model.scheme.name} weights cannot be saved or merged; load it without quantize."
        )


@contextmanager
def _described_folder(model: Model, folder: str | Path, about: str) -> Iterator[Path]:
    """A new folder to write a model into, which then gets the model's card and a README."""
    front, options = "library_name: transformers", "--model FOLDER"
    if isinstance(model.net, PeftModel):
        base = model.net.peft_config["default"].base_model_name_or_path
        front, about = f"base_model: {base}\nlibrary_name: peft", f"A LoRA adapter of `{base}`."
        options = f"--model {base} --adapter FOLDER"
    advice = _ADVICE.get(model.card.padding or "", "")
    with fresh_folder(Path(folder)) as draft:
        yield draft
        text = _README.format(
            front=front, family=model.family.name, about=about, advice=advice, options=options, card=CARD
        )
        store(draft / "README.md", [text])
        model.card.write(draft)


# The layout of a release


def _release(model: Model, like: str | Path | None) -> Path | None:
    """The folder of the release to follow; None if the model was saved by voidpad or made in this process."""
    if like is not None:
        folder = locate(like)
    elif model.source is not None:
        folder = model.source.folder
    else:
        return None
    kind, family = str(read_json(folder / "config.json").get("model_type")).lower(), model.family
    if kind in family.model_types or (kind in family.unmarked_types and not read_card(folder)):
        return folder
    if like is not None:
        raise ConfigError(f"{folder}: is no released {family.name} checkpoint; give one, or drop like.")
    return None


def _released_config(model: Model, release: Path | None) -> dict[str, Any]:
    """The released fields: those of the release, or those that the family derives from the network."""
    family, roles, block = model.family, model.roles, model.family.block_field
    if release is not None:
        config = read_json(release / "config.json")
        for name, value in family.stock_fields(config).items():
            if name not in ("bos_token_id", "eos_token_id") and getattr(model.net.config, name) != value:
                raise WeightsError(
                    f"{release}: config.json means {name}={value!r}, but {model.name} has another; use the release "
                    "it was made from."
                )
    elif family.released is not None:
        config = {name: values[0] for name, values in family.fixed.items()}
        config |= family.released(model.net.config)
        config |= {"mask_token_id": roles.mask, "eos_token_id": roles.eos, "pad_token_id": roles.eos}
    else:
        raise ConfigError(
            f"{model.name}: the {family.name} family needs a release to follow; give one (like=..., --like)."
        )
    if block is not None and (release is None or block in config):
        config[block] = model.card.causal_block
    if "mask_token_id" in config:
        config["mask_token_id"] = roles.mask
    return config


def _add_tokens(model: Model, folder: Path) -> None:
    """Add padding tokens that training gave a meaning to every tokenizer file that lists added tokens."""
    known = read_tokenizer(folder, model.family.tokenizer_class).get_vocab()
    used = {"void": (model.roles.void,), "rainbow": model.roles.rainbow}.get(model.card.padding or "", ())
    names = {token: str(model.tokenizer.convert_ids_to_tokens(token)) for token in used if token is not None}
    fresh = {token: name for token, name in names.items() if name not in known}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    entries = {token: {"content": name, **flags} for token, name in fresh.items()}
    listed = [{"id": token, **entry} for token, entry in entries.items()]
    by_id = {str(token): entry for token, entry in entries.items()}
    for file in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json"):
        if not fresh or not (folder / file).is_file():
            continue
        old = read_json(folder / file)
        new: dict[str, dict[str, Any]] = {
            "tokenizer.json": {"added_tokens": old.get("added_tokens", []) + listed},
            "tokenizer_config.json": {"added_tokens_decoder": old.get("added_tokens_decoder", {}) | by_id},
            "added_tokens.json": {name: token for token, name in fresh.items()},
        }
        store(folder / file, [json.dumps(old | new[file], indent=2, ensure_ascii=False) + "\n"])


def _released_tensors(model: Model, dtype: str | None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Every tensor of a release by its name, and the same without memory in the dtype to write.

    A tied head is not among them.
    """
    family, net = model.family, model.base
    files = headers(model.source.folder) if model.source is not None else {}
    stored = {name: header.dtype for name, header in files.items()}

    def released(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        # transformers fuses the experts of a layer while it loads them; releases store their matrices apart.
        parts = family.join(revert_weight_conversion(net, dict(state)))
        return {family.released_name(name): part for name, part in parts.items()}

    state = net.state_dict()
    if net.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    # The files have the names of the release, or those of the network if voidpad saved them.
    blank = {name: one.to("meta", stored.get(name)) for name, one in state.items()}
    wanted = {  # new tensors, because a part of another one counts as all of it when files are filled
        name: torch.empty_like(one, dtype=DTYPES[dtype] if dtype else stored.get(name))
        for name, one in released(blank).items()
    }
    return released(state), wanted


def _write_tensors(
    tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], folder: Path, shard: int
) -> None:
    """Safetensors files of about `shard` bytes in the dtypes of `wanted`, with an index if there are several.

    A file is written before the tensors of the next one are copied: a large model has no memory for all copies.
    """
    split = split_torch_state_dict_into_shards(dict(wanted), max_shard_size=shard)
    for file, names in split.filename_to_tensors.items():
        copies = {name: tensors[name].detach().to("cpu", wanted[name].dtype) for name in names}
        copies = {name: copy.clone(memory_format=torch.contiguous_format) for name, copy in copies.items()}
        save_file(copies, folder / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": dict(sorted(split.tensor_to_filename.items()))}
        store(folder / INDEX, [json.dumps(index, indent=2) + "\n"])
