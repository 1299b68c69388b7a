"""open_checkpoint, load, save and merge: checkpoints and adapters as Models."""

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from voidpad.errors import AssumedWarning, ConfigError, VoidpadError, WeightsError, first_line
from voidpad.files import fresh_folder, read_json
from voidpad.models.adapter import Adapter, attach, base_of, is_adapter, open_adapter
from voidpad.models.card import Card, read_card, write_readme
from voidpad.models.checkpoint import Checkpoint, Source
from voidpad.models.device import DeviceConfig
from voidpad.models.families import FAMILIES, recognise
from voidpad.models.locate import locate
from voidpad.models.model import Model
from voidpad.models.text import read_tokenizer
from voidpad.models.weights import (
    headers,
    network_size,
    open_tensors,
    refuse_nan,
    refuse_unplaced,
    stored_dtype,
)
from voidpad.roles import Roles, build, resolve


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
    DeviceConfig(device, dtype, quantize)  # refuse these before a file is read
    checkpoint = open_checkpoint(name, adapter, family=family, roles=roles, causal_block=causal_block)
    return checkpoint.load_weights(device, dtype, quantize)


# Opening


def open_checkpoint(
    name: str | Path,
    adapter: str | Path | None = None,
    *,
    family: str | None = None,
    roles: Mapping[str, Any] | None = None,
    causal_block: int | None = None,
    download: bool = True,
) -> Checkpoint:
    """Config, card, tokenizer and roles of a model and its adapter; no weights are read, and each file is read once.

    `name` is a built-in name, a folder or a hub id; a folder that holds an adapter leads to its base. `family` is
    needed only where config.json does not show it. `roles` gives ids by role, such as {"void": 56940}; they override
    those of the checkpoint and of the adapter. `causal_block` is the block size of block-causal attention, where
    the checkpoint does not say it or says it wrong. Without `download` a hub id must be on this machine already.
    """
    folder, base, title, tuned = locate(name, download=download), str(name), str(name), None
    if is_adapter(folder):
        if adapter is not None:
            raise ConfigError(
                f"{name}: is an adapter itself, of {base_of(folder)}; give that base as the model."
            )
        tuned = open_adapter(folder, base)
        base = base_of(folder, tuned.config)
        folder = locate(base, download=download)
    elif adapter is not None:
        tuned = open_adapter(locate(adapter, download=download), str(adapter))
        title = f"{name}+{adapter}"
    opened = _open_base(folder, base, family, causal_block)
    if tuned is not None:
        opened = _with_adapter(opened, tuned, roles or {})
    given = build({**vars(opened.roles), **(roles or {})}, rows=opened.config.vocab_size)
    return replace(opened, roles=given, name=title)


def vocabulary(name: str) -> tuple[PreTrainedTokenizerBase, Roles]:
    """Tokenizer and roles of a model, an adapter, or a folder that holds a tokenizer alone."""
    folder = locate(name)
    if not is_adapter(folder) and not (folder / "config.json").is_file():
        tokenizer = read_tokenizer(folder)
        return tokenizer, resolve(tokenizer, {}, rows=len(tokenizer))
    opened = open_checkpoint(name)
    return opened.tokenizer, opened.roles


def _open_base(folder: Path, name: str, family: str | None, causal_block: int | None) -> Checkpoint:
    """A whole model's folder, released or saved by voidpad."""
    values, card, where = read_json(folder / "config.json"), read_card(folder), str(folder)
    known = FAMILIES[card.family] if card else recognise(values, where=where, name=name, given=family)
    if family not in (None, known.name):
        raise ConfigError(f"{folder}: is of family {known.name!r}, not {family!r}; drop family.")
    released = card is None or str(values.get("model_type")).lower() in known.model_types
    config = known.read_config(values, where=where, released=released)
    tokenizer = read_tokenizer(folder, known.tokenizer_class)
    for pattern, note in known.name_notes.items():
        if re.search(pattern, f"{name} {folder.name}"):
            _warn_assumed(f"{where}: {note}")
    if causal_block is None:
        causal_block = card.causal_block if card else known.stated_block(values, name)
    if causal_block is None:  # a wrong one is a wrong network
        causal_block = known.causal_block
        if causal_block and known.block_assumed:
            _warn_assumed(
                f"{where}: does not say in which blocks its attention runs; {causal_block} is the usual size "
                "(--set causal_block=N of generate, --causal-block N of merge)."
            )
    known.check_causal_block(causal_block, where=where)
    if card is None:
        roles = resolve(tokenizer, values, rows=config.vocab_size, names=known.role_names, ids=known.role_ids)
        card = Card(known.name, roles)
    card = replace(card, causal_block=causal_block)
    return Checkpoint(config, tokenizer, card.roles, known, card, name, Source(name, folder, values))


def _with_adapter(base: Checkpoint, adapter: Adapter, given: Mapping[str, Any]) -> Checkpoint:
    """The base with the adapter's card, or with what can be known about an adapter that has none."""
    assert base.source is not None
    own, family, source = adapter.card, base.family, replace(base.source, adapter=adapter)
    if own is not None:
        if own.family != family.name:
            raise WeightsError(
                f"{adapter.folder}: an adapter of family {own.family!r}, but {base.name} is of family "
                f"{family.name!r}; use the adapter's own base."
            )
        # An adapter inherits its base's canvases, but not its thresholds, which were chosen for its probabilities.
        kept = ("canvas", "limit", "block")
        calibration = {
            plan: {field: value for field, value in said.items() if field in kept}
            for plan, said in base.card.calibration.items()
        }
        own = replace(
            own, calibration={**calibration, **own.calibration}, causal_block=base.card.causal_block
        )
        return replace(base, card=own, roles=own.roles, source=source)
    roles = base.roles
    if "void" in given:
        roles = replace(roles, void=given["void"])
    elif adapter.original(family) and family.adapter_roles is not None:
        ids = family.adapter_roles(base.tokenizer)
        if not ids:
            raise ConfigError(
                f"{adapter.folder}: was trained by the original {family.name} code, and its VOID id cannot be "
                'recognised with this tokenizer; give it: roles={"void": <id>} '
                "(--set roles=void=<id> of generate, --roles void=<id> of merge)."
            )
        roles = replace(roles, **ids)
    card = replace(base.card, roles=roles)
    trained, others = adapter.trained_tokens, set(roles.rainbow) - {roles.void}
    if "void" in given or (roles.void in trained and not others & trained):
        card = replace(card, padding="void")
        _warn_assumed(
            f"{adapter.folder}: has no voidpad.json; its VOID id {roles.void} chooses the plan void."
        )
    elif card.padding is None and not card.causal_block:
        _warn_assumed(
            f"{adapter.folder}: has no voidpad.json, so its padding is unknown and VOID is not banned; if it was "
            "trained with VOID, use --plan void."
        )
    return replace(base, card=card, roles=roles, source=source)


def _warn_assumed(message: str) -> None:
    warnings.warn(message, AssumedWarning, stacklevel=5)


# Weights


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


# Saving


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
        replace(model.card, roles=model.roles).write(draft)


def merge(model: Model) -> Model:
    """The model with its adapter folded into the weights. The network is changed in place."""
    if not isinstance(model.net, PeftModel):
        raise ConfigError(
            f"{model.name}: has no adapter to merge; name one with it (--adapter, adapter=...)."
        )
    if model.quantized:
        raise ConfigError(f"{model.name}: cannot merge into quantized weights; load it without quantize.")
    return replace(model, net=model.net.merge_and_unload(safe_merge=True))
