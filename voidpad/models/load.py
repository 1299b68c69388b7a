"""load, save and merge: checkpoints and adapters as Models."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import GenerationConfig
from transformers.utils import logging

from voidpad.errors import ConfigError, VoidpadError, WeightsError, first_line
from voidpad.files import fresh_folder
from voidpad.models.adapter import attach
from voidpad.models.card import write_readme
from voidpad.models.checkpoint import Checkpoint, open_checkpoint
from voidpad.models.device import DeviceConfig
from voidpad.models.model import Model
from voidpad.models.weights import (
    headers,
    network_size,
    open_tensors,
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
        if (
            checkpoint.config.num_hidden_layers > len(found)
            or network_size(family, checkpoint.config) > 2 * size
        ):
            raise WeightsError(f"{where}: config.json asks for more layers or weights than the files hold.")
        place.check_memory(size, stored, where=where)
        with _quiet(), open_tensors(source.folder, family, checkpoint.config) as tensors:
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars and reports: what to show is the caller's choice."""
    shown, verbosity = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def save(model: Model, folder: str | Path) -> None:
    """Write a folder that `load` reads: the whole model, or the adapter alone where it is not merged."""
    if model.quantized and not model.adapted:
        raise ConfigError(
            f"{model.name}: {model.quantized} weights cannot be saved; load it without quantize."
        )
    with fresh_folder(Path(folder)) as draft, _quiet():
        base = None
        if isinstance(model.net, PeftModel):
            base = str(model.net.peft_config["default"].base_model_name_or_path)
            model.net.save_pretrained(str(draft), save_embedding_layers=False)
        else:
            model.net.save_pretrained(str(draft), save_original_format=False)
            model.tokenizer.save_pretrained(str(draft))
        write_readme(draft, model.card, base=base)
        model.card.write(draft)


def merge(model: Model) -> Model:
    """The model with its adapter folded into the weights. The network is changed in place."""
    if not isinstance(model.net, PeftModel):
        raise ConfigError(
            f"{model.name}: has no adapter to merge; name one with it (--adapter, adapter=...)."
        )
    if model.quantized:
        raise ConfigError(f"{model.name}: cannot merge into quantized weights; load it without quantize.")
    return replace(model, net=model.net.merge_and_unload(safe_merge=True))
