"""LoRA adapters: saved by voidpad, or by the original training code of a family, with other tensor names."""

import re
from collections.abc import Mapping
from contextlib import nullcontext
from copy import copy

from peft import LoraConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.utils.other import get_pattern_key
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from voidpad.errors import WeightsError, first_line
from voidpad.models.families import Family
from voidpad.models.locate import ADAPTER_TENSORS, Adapter
from voidpad.models.weights import refuse_nan, refuse_unplaced
from voidpad.models.without_bitsandbytes import without_bitsandbytes

PREFIX = "base_model.model."
# What peft puts behind the name of the module it changes; a plain weight belongs to modules_to_save.
CHANGE = re.compile(r"\.(lora_\w+|token_adapter|weight|bias)\b.*$")


def has_original_names(adapter: Adapter, family: Family) -> bool:
    """Whether the tensors have the names of the family's original training code."""
    return any(_module(name, family) != name.removeprefix(PREFIX) for name in adapter.tensors)


def attach(
    net: PreTrainedModel, adapter: Adapter, family: Family, base: str, *, quantized: bool
) -> PeftModel:
    """The network with the adapter around it, not merged. `base` is the name of the network's checkpoint."""
    where = f"{adapter.folder} on {base}"
    tensors = load_file(adapter.folder / ADAPTER_TENSORS)
    refuse_nan(tensors.items(), where=where)
    try:  # peft checks its fields, and how they fit the network, with many exception types
        values = {name: value for name, value in adapter.config.items() if name != "runtime_config"}
        config: LoraConfig = LoraConfig.from_peft_type(**LoraConfig.check_kwargs(**values))
        config.base_model_name_or_path = base
        config.inference_mode = True
        config.init_lora_weights = True  # others decompose the base's weights
        if has_original_names(adapter, family):
            config, tensors = _from_original(config, tensors, family)
        with nullcontext() if quantized else without_bitsandbytes():
            adapted = PeftModel(net, config)
        if config.target_parameters:  # peft turns targets inside a mixture of experts into these
            raise ValueError("it adapts the experts, which is not covered")
        expected = get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()
        # peft may have stored the untouched rows of a targeted embedding or head as well; the base has them.
        given = {name for name in tensors if ".base_layer." not in name}
        refuse_unplaced(expected - given, given - expected, where=where)
        set_peft_model_state_dict(adapted, tensors)
    except WeightsError:
        raise
    except Exception as error:
        raise WeightsError(
            f"{where}: does not fit ({first_line(error)}); use the adapter's own base."
        ) from error
    return adapted.eval()


def _from_original(
    config: LoraConfig, tensors: Mapping[str, Tensor], family: Family
) -> tuple[LoraConfig, dict[str, Tensor]]:
    """An adapter made with a family's original code as one for the stock class.

    Modules are listed by their full path, because a short name may mean two of them: LLaDA's `ff_out` is the output
    of a block and the vocabulary head too.
    """
    lora: set[str] = set()
    saved: set[str] = set()
    for name in tensors:
        module, kind = CHANGE.sub("", name.removeprefix(PREFIX)), CHANGE.search(name)
        if kind is None or kind[1] != "token_adapter":
            (lora if kind and kind[1].startswith("lora_") else saved).add(module)

    def by_module(patterns: Mapping[str, int]) -> dict[str, int]:
        """Ranks or alphas by pattern of the original name, as ones by the full new name."""
        found = {name: get_pattern_key(list(patterns), name) for name in lora}
        return {
            f"^{re.escape(_module(name, family))}": patterns[key]
            for name, key in found.items()
            if key in patterns
        }

    renamed = copy(config)
    renamed.target_modules = sorted(_module(name, family) for name in lora)
    renamed.modules_to_save = sorted(_module(name, family) for name in saved) or None
    renamed.rank_pattern = by_module(config.rank_pattern or {})
    renamed.alpha_pattern = by_module(config.alpha_pattern or {})
    renamed.layers_to_transform = renamed.layers_pattern = renamed.exclude_modules = None
    if isinstance(config.trainable_token_indices, dict):
        rows = {name.split(".")[-1]: ids for name, ids in config.trainable_token_indices.items()}
        tables = {
            old: new for old, new in family.tensor_names.items() if "#" not in old
        }  # embedding, norm, head
        short = {old.split(".")[-2]: new.split(".")[-2] for old, new in tables.items()}
        renamed.trainable_token_indices = {short.get(name, name): ids for name, ids in rows.items()}
    return renamed, {PREFIX + _module(name, family): tensor for name, tensor in tensors.items()}


def _module(name: str, family: Family) -> str:
    """A tensor or module of an adapter by its name in transformers' own class, without peft's prefix."""
    return family.adapter_name(f"{name.removeprefix(PREFIX)}.").removesuffix(".")
