"""Models as folders: `save` in transformers' layout, `export` in the layout of the release, and `merge` before either.

voidpad keeps networks under transformers' own names; the authors' code, Fast-dLLM, dInfer and llama.cpp's converter
read the released ones. `export` writes those, beside the config.json and the tokenizer files of the release that the
weights come from, with the values that training changed.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_hub import save_torch_state_dict
from peft import PeftModel
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from voidpad.errors import ConfigError, WeightsError
from voidpad.files import fresh_folder, read_json, store
from voidpad.models.card import CARD, TAUGHT_ROLES, read_card
from voidpad.models.device import DTYPES
from voidpad.models.locate import locate
from voidpad.models.model import Model
from voidpad.models.text import read_tokenizer
from voidpad.models.weights import headers, quiet_transformers

TOKENIZER_FILES = ("*token*.json", "vocab.json", "merges.txt", "*.jinja")
_README = """---
{front}
pipeline_tag: text-generation
tags:
- masked-diffusion
- voidpad
---

# Masked diffusion language model of the {family} family

{about}

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
    max_shard_size: int | str = "5GB",
) -> None:
    """Write the whole model the way its family was released; `load` reads the folder too.

    The fields of config.json, the tokenizer files and generation_config.json are those of the release that the model
    was loaded from, or of `like` (a folder or a hub id). `dtype` None keeps the dtype of every stored tensor.
    """
    if model.adapted:
        raise ConfigError(f"{model.name}: has an adapter that is not merged; merge it first.")
    _refuse_quantized(model)
    release = _release(model, like)
    config = _released_config(model, release)
    if dtype is not None:
        config["dtype" if "dtype" in config else "torch_dtype"] = dtype
    about = "A whole model in the layout of its release; the code that its `auto_map` names is not here."
    with _described_folder(model, folder, about) as draft:
        store(draft / "config.json", [json.dumps(config, indent=2) + "\n"])
        _write_tokenizer(model, release, draft)
        if (release / "generation_config.json").is_file():
            shutil.copyfile(release / "generation_config.json", draft / "generation_config.json")
        save_torch_state_dict(_released_tensors(model, dtype), draft, max_shard_size=max_shard_size)


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
    with fresh_folder(Path(folder)) as draft:
        yield draft
        text = _README.format(front=front, family=model.family.name, about=about, options=options, card=CARD)
        store(draft / "README.md", [text])
        model.card.write(draft)


# The layout of a release


def _release(model: Model, like: str | Path | None) -> Path:
    """The folder of the release to follow: `like`, or what the model was loaded from."""
    family, folder = model.family, model.source.folder if model.source else None
    if like is not None:
        folder = locate(like)
    if folder is not None:
        kind = str(read_json(folder / "config.json").get("model_type")).lower()
        if kind in family.model_types or (kind in family.unmarked_types and not read_card(folder)):
            return folder
    raise ConfigError(
        f"{folder or model.name}: is no released {family.name} checkpoint; name one to follow (like=..., --like)."
    )


def _released_config(model: Model, release: Path) -> dict[str, Any]:
    """The fields of the release, with the mask and the size of causal blocks of this model."""
    config, block = read_json(release / "config.json"), model.family.block_field
    for name, value in model.family.stock_fields(config).items():
        if name not in ("bos_token_id", "eos_token_id") and getattr(model.net.config, name) != value:
            raise WeightsError(
                f"{release}: config.json means {name}={value!r}, but {model.name} has another; use the release "
                "it was made from."
            )
    if block in config:
        config[block] = model.card.causal_block
    if "mask_token_id" in config:
        config["mask_token_id"] = model.roles.mask
    return config


def _write_tokenizer(model: Model, release: Path, folder: Path) -> None:
    """The tokenizer files of the release, or the model's own if training gave meaning to tokens those do not name."""
    taught = TAUGHT_ROLES.get(model.card.padding or "")
    used = model.roles.ids([taught]) if taught else ()
    known = read_tokenizer(release, model.family.tokenizer_class).get_vocab().values()
    if any(token not in known for token in used):
        model.tokenizer.save_pretrained(str(folder))
        return
    for path in (path for pattern in TOKENIZER_FILES for path in release.glob(pattern)):
        shutil.copyfile(path, folder / path.name)


def _released_tensors(model: Model, dtype: str | None) -> dict[str, Tensor]:
    """Every tensor of a release by its name, in the dtype in which the model's files hold it. A tied head is left out.

    The files have the names of the release, or those of the network if voidpad saved them.
    """
    family, net = model.family, model.base
    files = headers(model.source.folder) if model.source is not None else {}
    stored = {name: header.dtype for name, header in files.items()}
    state = {name: one.to("cpu", stored.get(name, one.dtype)) for name, one in net.state_dict().items()}
    if net.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    # transformers fuses the experts of a layer while it loads them; releases store their matrices apart.
    parts = family.join(revert_weight_conversion(net, state))
    released = {family.released_name(name): part for name, part in parts.items()}
    # A copy where experts are parts of a fused tensor: safetensors writes no part of another one's memory.
    return {
        name: part.to(DTYPES[dtype] if dtype else stored.get(name, part.dtype), copy=family.experts)
        for name, part in released.items()
    }
