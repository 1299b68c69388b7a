"""load: the weights of a checkpoint and its adapter as a Model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from voidpad.errors import ConfigError, VoidpadError, WeightsError, first_line
from voidpad.models.adapter import attach
from voidpad.models.checkpoint import Checkpoint, open_checkpoint
from voidpad.models.device import DeviceConfig
from voidpad.models.model import Model
from voidpad.models.weights import (
    headers,
    open_tensors,
    quiet_transformers,
    refuse_nan,
    refuse_unplaced,
    stored_dtype,
)


def load(
    name: str | Path,
    adapter: str | Path | None = None,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quantize: str | None = None,
    family: str | None = None,
    roles: Mapping[str, Any] | None = None,
    causal_block: int | None = None,
) -> Model:
    """A model by built-in name, folder or hub id, with or without a LoRA adapter.

    `device` is cpu, cuda, cuda:<n>, mps, auto (the best of this machine) or spread (over all GPUs). `dtype` is
    float32, bfloat16 or auto (float32 on a CPU, else bfloat16 where the weights are). `open_checkpoint` explains the
    other options.
    """
    place = DeviceConfig(device, dtype, quantize)  # refused, if at all, before a file is read
    checkpoint = open_checkpoint(name, adapter, family=family, roles=roles, causal_block=causal_block)
    return load_weights(checkpoint, place)


def load_weights(checkpoint: Checkpoint, place: DeviceConfig) -> Model:
    """The checkpoint with its network, the adapter around it."""
    source, family = checkpoint.source, checkpoint.family
    if source is None:
        raise ConfigError(f"{checkpoint.name}: was made in this process and has no files to load.")
    if place.quantize is not None and family.experts:
        raise ConfigError(
            f"{checkpoint.name}: quantize={place.quantize!r} reaches linear layers only, not the experts, which hold "
            "nearly all weights; drop quantize."
        )
    where, found = str(source.folder), headers(source.folder)
    stored, size = stored_dtype(found), sum(torch.Size(tensor.shape).numel() for tensor in found.values())
    try:
        # A config must not make us allocate what the files do not hold. Tensors are compared one by one below.
        many = checkpoint.config.num_hidden_layers > len(found)
        with torch.device("meta"):
            if many or family.net_class(checkpoint.config).num_parameters() > 2 * size:
                raise WeightsError(
                    f"{where}: config.json asks for more layers or weights than the files hold."
                )
        place.check_memory(size, stored, where=where)
        with quiet_transformers(), open_tensors(source.folder, family, checkpoint.config) as tensors:
            loaded: Any = family.net_class.from_pretrained(
                None,
                config=checkpoint.config,
                state_dict=tensors,
                generation_config=GenerationConfig(),  # a release's own is about its remote decoding code
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                **place.options(stored),
            )
    except (VoidpadError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # transformers checks configs and tensors with many exception types
        raise WeightsError(
            f"{where}: cannot be loaded ({type(error).__name__}: {first_line(error)}); use the complete checkpoint "
            "with its own config."
        ) from error
    net, placed = loaded
    misshapen = [
        f"{name} {list(given)} instead of {list(own)}" for name, given, own in placed["mismatched_keys"]
    ]
    refuse_unplaced(placed["missing_keys"], placed["unexpected_keys"], misshapen=misshapen, where=where)
    refuse_nan(net.named_parameters(), where=where)
    net.name_or_path = source.name  # peft and the hub quote it
    # Forget the old names, or a later save_pretrained by a trainer writes them beside our config.
    net.__dict__.pop("_weight_conversions", None)
    model = Model(**vars(checkpoint), net=place.move(net), scheme=place.scheme)
    if source.adapter is not None:
        model.net = attach(net, source.adapter, family, source.name, quantized=place.quantize is not None)
    if place.scheme is not None and place.scheme.convert is not None:
        place.scheme.convert(model.base)
    return model
