"""load, save and merge: checkpoints and adapters as Models."""

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import GenerationConfig, PretrainedConfig
from transformers.utils import logging

from voidpad.errors import ConfigError, WeightsError
from voidpad.models.adapter import CONFIG as ADAPTER_CONFIG
from voidpad.models.adapter import attach, is_adapter
from voidpad.models.card import Card, read_card, read_json
from voidpad.models.family import FAMILIES, LLADA_NAMES, Family, translate
from voidpad.models.locate import base_of, locate
from voidpad.models.model import Model
from voidpad.models.place import Place
from voidpad.models.readme import write_readme
from voidpad.models.text import read_tokenizer
from voidpad.models.weights import check, headers, stored_dtype
from voidpad.roles import build, resolve


def load(
    name: str | Path,
    adapter: str | Path | None = None,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quantize: str | None = None,
    device_map: str | dict[str, Any] | None = None,
    roles: Mapping[str, Any] | None = None,
) -> Model:
    """A model by built-in name, folder or hub id, with or without a LoRA adapter.

    `dtype` is float32, bfloat16 or auto (float32 on a CPU, else bfloat16 where the weights are). `roles`
    gives ids by role, e.g. {"void": 56940}; they override the checkpoint's and the adapter's.
    """
    place = Place(device, dtype, quantize, device_map)
    folder, source = locate(name), (str(name), None if adapter is None else str(adapter))
    if not is_adapter(folder):
        model = _load_base(folder, str(name), place, roles)
        if adapter is not None:
            model = _with_adapter(model, locate(adapter), str(adapter), roles)
        return replace(model, source=source)
    if adapter is not None:
        raise ConfigError(f"{name}: is an adapter itself; give its base as the model and one adapter.")
    base = base_of(folder)
    model = _load_base(locate(base), base, place, roles)
    return replace(_with_adapter(model, folder, str(name), roles), name=str(name), source=source)


def save(model: Model, folder: str | Path) -> None:
    """Write a folder that `load` reads: the whole model, or the adapter alone where it is not merged."""
    with _fresh_folder(Path(folder)) as beside, quiet():
        if isinstance(model.net, PeftModel):
            model.net.save_pretrained(str(beside), save_embedding_layers=False)
        else:
            model.net.save_pretrained(str(beside), save_original_format=False)
            model.tokenizer.save_pretrained(str(beside))
        write_readme(beside, model.card, base=base_name(model))
        replace(model.card, roles=model.roles).write(beside)


def base_name(model: Model) -> str | None:
    """What an adapter belongs to; None for a whole model."""
    if not isinstance(model.net, PeftModel):
        return None
    return str(model.net.peft_config["default"].base_model_name_or_path)


def merge(model: Model) -> Model:
    """The model with its adapter folded into the weights. The network is changed in place."""
    if not isinstance(model.net, PeftModel):
        raise ConfigError(
            f"{model.name}: has no adapter to merge; name one with it (--adapter, adapter=...)."
        )
    if model.quantized:
        raise ConfigError(f"{model.name}: cannot merge into quantized weights; load it without quantize.")
    return replace(model, net=model.net.merge_and_unload(safe_merge=True))


def read_config(folder: Path) -> tuple[Family, PretrainedConfig]:
    """Family and config of a checkpoint folder, released or saved by us."""
    values = read_json(folder / "config.json")
    card = read_card(folder)
    if card is None:
        family, values = translate(values, where=str(folder))
        return family, family.config(values)
    family = FAMILIES[card.family]
    if values.get("model_type") != family.model_type:
        raise WeightsError(
            f"{folder}: model_type {values.get('model_type')!r} in config.json, but the card's family "
            f"{family.name!r} is saved as {family.model_type!r}; save the checkpoint again."
        )
    return family, family.config(family.config_class.from_dict(values).to_dict())


def _load_base(folder: Path, name: str, place: Place, given: Mapping[str, Any] | None) -> Model:
    if (folder / ADAPTER_CONFIG).is_file():  # transformers would attach it without a word
        raise WeightsError(f"{folder}: holds a whole model and an adapter; move {ADAPTER_CONFIG} elsewhere.")
    family, config = read_config(folder)
    found = headers(folder)
    check(found, family, config, where=str(folder))
    with quiet():
        net = family.net_class.from_pretrained(
            str(folder),
            config=config,
            key_mapping=LLADA_NAMES,
            use_safetensors=True,
            local_files_only=True,
            generation_config=GenerationConfig(),  # a release's own is about its remote decoding code
            **place.options(stored_dtype(found)),
        )
    net.name_or_path = name  # as the user wrote it: peft and the hub quote it
    # Forget the old names, or a later save_pretrained by a trainer writes them beside our config.
    net.__dict__.pop("_weight_conversions", None)
    tokenizer = read_tokenizer(folder)
    card = read_card(folder)
    if card is None:
        released = read_json(folder / "config.json")
        card = Card(family.name, resolve(tokenizer, released, rows=config.vocab_size))
    model = Model(place.move(net), tokenizer, card.roles, family, card, name)
    return _given(model, given)


def _given(model: Model, given: Mapping[str, Any] | None) -> Model:
    """The roles checked against the embedding, with the ids the caller gave."""
    values = {name: getattr(model.roles, name) for name in ("mask", "eos", "ends", "void", "rainbow")}
    return replace(model, roles=build({**values, **(given or {})}, rows=model.net.config.vocab_size))


def _with_adapter(model: Model, folder: Path, name: str, given: Mapping[str, Any] | None) -> Model:
    card = read_card(folder)
    if card is not None and card.family != model.family.name:
        raise WeightsError(
            f"{folder}: an adapter of family {card.family!r}, but {model.name} is of family "
            f"{model.family.name!r}; use the adapter's own base."
        )
    card = replace(card, calibration={**_canvases(model.card), **card.calibration}) if card else model.card
    net = attach(model, folder)
    return _given(replace(model, net=net, card=card, roles=card.roles, name=f"{model.name}+{name}"), given)


def _canvases(card: Card) -> dict[str, dict[str, Any]]:
    """What a base says about lengths holds for its adapters; what it says about probabilities does not."""
    kept = ("canvas", "limit", "block")
    return {plan: {k: v for k, v in said.items() if k in kept} for plan, said in card.calibration.items()}


@contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' progress bars: whether to show progress is the caller's choice."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def _fresh_folder(target: Path) -> Iterator[Path]:
    """A folder that appears under its name only when it is complete."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target}: already exists; choose another folder or remove it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    try:
        yield beside
        beside.chmod(0o755)  # mkdtemp makes it private
        beside.replace(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
