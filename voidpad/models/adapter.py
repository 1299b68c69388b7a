"""LoRA adapters: saved by voidpad, or by the authors' training code of a family, with the released tensor names."""

import re
import warnings
from contextlib import nullcontext
from copy import copy

from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from voidpad.errors import WeightsError, first_line
from voidpad.models.families import Family
from voidpad.models.locate import ADAPTER_TENSORS, Adapter
from voidpad.models.weights import refuse_misfits
from voidpad.models.without_bitsandbytes import without_bitsandbytes

# peft 0.21 asks a network for a property that transformers 5.23 deprecates; users can do nothing about it.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)

PREFIX = "base_model.model."
# What peft puts behind the name of the module it changes; a plain weight belongs to modules_to_save.
CHANGE = re.compile(r"\.(lora_\w+|token_adapter|weight|bias)\b.*$")


def has_released_names(adapter: Adapter, family: Family) -> bool:
    """Whether the tensors have the names of the authors' training code."""
    return any(_stock_name(name, family) != name for name in adapter.tensors)


def attach(
    net: PreTrainedModel, adapter: Adapter, family: Family, base: str, *, quantized: bool
) -> PeftModel:
    """The network with the adapter around it, not merged. `base` is the name of the network's checkpoint."""
    where = f"{adapter.folder} on {base}"
    tensors = load_file(adapter.folder / ADAPTER_TENSORS)
    try:  # peft checks its fields, and how they fit the network, with many exception types
        values = {name: value for name, value in adapter.config.items() if name != "runtime_config"}
        config: LoraConfig = LoraConfig.from_peft_type(**LoraConfig.check_kwargs(**values))
        config.base_model_name_or_path = base
        config.inference_mode = True
        config.init_lora_weights = True  # others decompose the base's weights
        if has_released_names(adapter, family):
            tensors = {_stock_name(name, family): tensor for name, tensor in tensors.items()}
            config = _by_stock_names(config, tensors, family)
        with nullcontext() if quantized else without_bitsandbytes():
            adapted = PeftModel(net, config)
        if config.target_parameters:  # peft turns targets inside a mixture of experts into these
            raise ValueError("it adapts the experts, which is not covered")
        expected = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
        # peft may have stored the untouched rows of a targeted embedding or head as well; the base has them.
        given = {name for name in tensors if ".base_layer." not in name}
        refuse_misfits(where, missing=expected - given, surplus=given - expected)
        set_peft_model_state_dict(adapted, tensors)
    except WeightsError:
        raise
    except Exception as error:
        raise WeightsError(
            f"{where}: does not fit ({first_line(error)}); use the adapter's own base."
        ) from error
    return adapted.eval()


def _by_stock_names(config: LoraConfig, tensors: dict[str, Tensor], family: Family) -> LoraConfig:
    """The settings of an adapter of the authors' code for the stock class, given its renamed tensors.

    Modules are listed by their full path, because a short name may mean two of them: LLaDA's `ff_out` is the output
    of a block and the vocabulary head too.
    """
    if config.rank_pattern or config.alpha_pattern:
        raise ValueError("rank_pattern and alpha_pattern are not covered under released names")
    lora: set[str] = set()
    saved: set[str] = set()
    for name in tensors:
        module, kind = CHANGE.sub("", name.removeprefix(PREFIX)), CHANGE.search(name)
        if kind is None or kind[1] != "token_adapter":
            (lora if kind and kind[1].startswith("lora_") else saved).add(module)
    renamed = copy(config)
    renamed.target_modules = sorted(lora)
    renamed.modules_to_save = sorted(saved) or None
    renamed.layers_to_transform = renamed.layers_pattern = renamed.exclude_modules = None
    if isinstance(config.trainable_token_indices, dict):
        tables = family.tensor_names.items()  # embedding and head, beside others; their last words are given
        short = {old.split(".")[-2]: new.split(".")[-2] for old, new in tables if "#" not in old}
        rows = {name.split(".")[-1]: ids for name, ids in config.trainable_token_indices.items()}
        renamed.trainable_token_indices = {short.get(name, name): ids for name, ids in rows.items()}
    return renamed


def _stock_name(name: str, family: Family) -> str:
    """The stock name of an adapter's tensor. The authors' training wrapper puts one `model.` more before it."""
    plain = re.sub(r"^(?:model\.)+(?=model\.|lm_head\b)", "", name.removeprefix(PREFIX))
    return PREFIX + family.stock_name(plain)
