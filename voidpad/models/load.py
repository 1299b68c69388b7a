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

from voidpad.errors import AssumedWarning, ConfigError, WeightsError, first_line
from voidpad.files import fresh_folder, read_json
from voidpad.models.adapter import CONFIG as ADAPTER_CONFIG
from voidpad.models.adapter import Adapter, attach, base_of, is_adapter, open_adapter
from voidpad.models.card import Card, check_causal_block, read_card, write_readme
from voidpad.models.checkpoint import Checkpoint, Source
from voidpad.models.device import DeviceConfig, quant_scheme
from voidpad.models.families import FAMILIES, Family, recognise
from voidpad.models.locate import locate
from voidpad.models.model import Model
from voidpad.models.text import read_tokenizer
from voidpad.models.weights import check, headers, open_tensors, refuse_nan, stored_dtype
from voidpad.roles import Roles, build, resolve


def load(
    name: str | Path,
    adapter: str | Path | None = None,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quantize: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    family: str | None = None,
    roles: Mapping[str, Any] | None = None,
    causal_block: int | None = None,
) -> Model:
    """A model by built-in name, folder or hub id, with or without a LoRA adapter.

    `device` is cpu, cuda, cuda:<n>, mps, auto (the best of this machine) or spread (over all GPUs). `dtype` is
    float32, bfloat16 or auto (float32 on a CPU, else bfloat16 where the weights are). `open_checkpoint` explains the
    other options.
    """
    DeviceConfig(device, dtype, quantize, device_map)  # refuse these before a file is read
    checkpoint = open_checkpoint(name, adapter, family=family, roles=roles, causal_block=causal_block)
    return checkpoint.load_weights(device, dtype, quantize, device_map=device_map)


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
    folder, title, tuned = locate(name, download=download), str(name), None
    if is_adapter(folder):
        if adapter is not None:
            raise ConfigError(
                f"{name}: is an adapter itself, of {base_of(folder)}; for another adapter give that base as the model."
            )
        tuned = open_adapter(folder, str(name))
        base = base_of(folder, tuned.config)
        folder = locate(base, download=download)
    else:
        base = str(name)
        if adapter is not None:
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
    if (folder / ADAPTER_CONFIG).is_file():  # transformers would attach it without a word
        if is_adapter(folder):
            raise WeightsError(
                f"{name}: is an adapter and cannot be the base of another; use `voidpad merge` first."
            )
        raise WeightsError(f"{folder}: holds a whole model and an adapter; move {ADAPTER_CONFIG} elsewhere.")
    values, card, where = read_json(folder / "config.json"), read_card(folder), str(folder)
    if card is None:
        known = recognise(values, where=where, name=name, given=family)
    else:
        known = FAMILIES[card.family]
        if family not in (None, known.name):
            raise ConfigError(
                f"{folder}: family {family!r} given, but the card says {known.name!r}; drop family."
            )
    if card is None or str(values.get("model_type")).lower() in known.model_types:
        config = known.read_config(values, where=where)
    elif values.get("model_type") != known.model_type:
        raise WeightsError(
            f"{folder}: model_type {values.get('model_type')!r} in config.json, but the card's family "
            f"{known.name!r} is saved as {known.model_type!r}; save the checkpoint again."
        )
    else:
        config = known.saved_config(values, where=where)
    tokenizer = read_tokenizer(folder, known.tokenizer_class)
    block = _causal_block(known, values, card, name, causal_block, where=where)
    for pattern, note in known.name_notes.items():
        if re.search(pattern, f"{name} {folder.name}"):
            _warn_assumed(f"{where}: {note}")
    if card is None:
        roles = resolve(tokenizer, values, rows=config.vocab_size, names=known.role_names, ids=known.role_ids)
        card = Card(known.name, roles)
    card = replace(card, causal_block=block)
    return Checkpoint(config, tokenizer, card.roles, known, card, name, Source(name, folder, values))


def _causal_block(
    family: Family, config: Mapping[str, Any], card: Card | None, name: str, given: int | None, *, where: str
) -> int:
    """The size of the blocks of block-causal attention, 0 for full attention: as given, or as the files say it.

    Where nobody says it, a warning names the usual size that was taken: a wrong one is a wrong network.
    """
    stated = given
    if stated is None:
        stated = card.causal_block if card else family.stated_block(config, name)
    if stated is None and family.causal_block:
        stated = family.causal_block
        if family.block_assumed:
            _warn_assumed(
                f"{where}: does not say in which blocks its attention runs; {stated} is the usual size "
                "(causal_block, --causal-block)."
            )
    check_causal_block(stated or 0, family, where=where)
    return stated or 0


def _with_adapter(base: Checkpoint, adapter: Adapter, given: Mapping[str, Any]) -> Checkpoint:
    """The base with the adapter's card, or with what can be known about an adapter that has none."""
    assert base.source is not None
    own, source = adapter.card, replace(base.source, adapter=adapter)
    if own is not None:
        if own.family != base.family.name:
            raise WeightsError(
                f"{adapter.folder}: an adapter of family {own.family!r}, but {base.name} is of family "
                f"{base.family.name!r}; use the adapter's own base."
            )
        calibration = {**_canvases(base.card), **own.calibration}
        own = replace(own, calibration=calibration, causal_block=base.card.causal_block)
        return replace(base, card=own, roles=own.roles, source=source)
    roles = base.roles
    if "void" in given:
        roles = replace(roles, void=given["void"])
    elif adapter.original(base.family) and base.family.adapter_roles is not None:
        ids = base.family.adapter_roles(base.tokenizer)
        if not ids:
            raise ConfigError(
                f"{adapter.folder}: was trained by the original {base.family.name} code, and its VOID id cannot be "
                'recognised with this tokenizer; give it: roles={"void": <id>} (--roles void=<id>).'
            )
        roles = replace(roles, **ids)
    card = replace(base.card, roles=roles)
    trained, others = adapter.trained_tokens, set(roles.rainbow) - {roles.void}
    if "void" in given or (roles.void in trained and not others & trained):
        card = replace(card, padding="void")
        _warn_assumed(
            f"{adapter.folder}: has no voidpad.json; its VOID id {roles.void} chooses the plan void."
        )
    elif card.padding is None and not base.card.causal_block:
        _warn_assumed(
            f"{adapter.folder}: has no voidpad.json, so its padding is unknown and VOID is not banned; if it was "
            "trained with VOID, use --plan void."
        )
    return replace(base, card=card, roles=roles, source=source)


def _canvases(card: Card) -> dict[str, dict[str, Any]]:
    """The part of a base's calibration that an adapter inherits: canvas, longest canvas and block of each plan.

    Thresholds are left out: they were chosen for the probabilities of the base.
    """
    kept = ("canvas", "limit", "block")
    return {plan: {k: v for k, v in said.items() if k in kept} for plan, said in card.calibration.items()}


def _warn_assumed(message: str) -> None:
    warnings.warn(message, AssumedWarning, stacklevel=5)


# Weights


def load_weights(
    checkpoint: Checkpoint,
    device: str = "cpu",
    dtype: str = "auto",
    quantize: str | None = None,
    *,
    device_map: str | dict[str, Any] | None = None,
) -> Model:
    """The checkpoint with its network, the adapter around it."""
    source, family = checkpoint.source, checkpoint.family
    place = DeviceConfig(device, dtype, quantize, device_map)
    if source is None:
        raise ConfigError(f"{checkpoint.name}: was made in this process and has no files to load.")
    folder, where = source.folder, str(source.folder)
    if quantize is not None and family.experts:
        raise ConfigError(
            f"{folder}: quantize={quantize!r} reaches linear layers only, not the experts, which hold nearly all "
            "weights; drop quantize."
        )
    found = headers(folder)
    check(found, family, checkpoint.config, where=where)
    stored = stored_dtype(found)
    place.check_memory(sum(torch.Size(t.shape).numel() for t in found.values()), stored, where=where)
    try:
        with _quiet(), open_tensors(folder, family, checkpoint.config) as tensors:
            net = family.net_class.from_pretrained(
                None,
                config=checkpoint.config,
                state_dict=tensors,
                generation_config=GenerationConfig(),  # a release's own is about its remote decoding code
                **place.options(stored),
            )
    except (TypeError, ValueError, KeyError, AttributeError, OSError) as error:
        raise WeightsError(
            f"{folder}: cannot be loaded ({type(error).__name__}: {first_line(error)})."
        ) from error
    refuse_nan(net.named_parameters(), where=where)
    net.name_or_path = source.name  # peft and the hub quote it
    # Forget the old names, or a later save_pretrained by a trainer writes them beside our config.
    net.__dict__.pop("_weight_conversions", None)
    model = Model(**vars(checkpoint), net=place.move(net))
    if source.adapter is not None:
        model.net = attach(net, source.adapter, family, source.name, quantized=quantize is not None)
    if place.scheme is not None:
        place.scheme.apply(model.base)
    return model


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bars: whether to show progress is the caller's choice."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


# Saving


def save(model: Model, folder: str | Path) -> None:
    """Write a folder that `load` reads: the whole model, or the adapter alone where it is not merged."""
    scheme = quant_scheme(model.net)
    if scheme is not None and not scheme.saves and not model.adapted:
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
