"""load, save and merge: checkpoints and adapters as Models."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import PeftModel
from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from voidpad.errors import AssumedWarning, ConfigError, WeightsError, reason
from voidpad.files import fresh_folder
from voidpad.models.adapter import CONFIG as ADAPTER_CONFIG
from voidpad.models.adapter import (
    attach,
    base_folder,
    check_adapter_folder,
    is_adapter,
    original_roles,
    two_adapters,
)
from voidpad.models.card import (
    Card,
    check_causal_block,
    check_plain_files,
    default_plan,
    read_card,
    read_json,
    write_readme,
)
from voidpad.models.families import FAMILIES, Family, check_sizes, recognise
from voidpad.models.locate import base_of, locate
from voidpad.models.model import Model
from voidpad.models.place import Place
from voidpad.models.quantizer import Quantizer
from voidpad.models.text import read_tokenizer
from voidpad.models.weights import check, headers, refuse_nan, stored_dtype
from voidpad.roles import Roles, build, newline_ids, resolve

if TYPE_CHECKING:
    from voidpad.decode.plan import Plan


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
    float32, bfloat16 or auto (float32 on a CPU, else bfloat16 where the weights are). `family` is needed only
    where config.json does not show it. `roles` gives ids by role, e.g. {"void": 56940}; they override the
    checkpoint's and the adapter's. `causal_block` is the size of the blocks of block-causal attention, where the
    checkpoint does not say it or says it wrong.
    """
    place = Place(device, dtype, quantize, device_map)
    folder, source = locate(name), (str(name), None if adapter is None else str(adapter))
    if not is_adapter(folder):
        tuned = None if adapter is None else locate(adapter)
        if tuned is not None:
            check_adapter_folder(tuned, str(adapter))  # before the base is loaded
        model = _load_base(folder, str(name), place, family, roles, causal_block)
        if tuned is not None:
            model = _with_adapter(model, tuned, str(adapter), roles)
        return _quantized(replace(model, source=source), place)
    if adapter is not None:
        raise ConfigError(two_adapters(name, folder))
    base = base_of(folder)
    model = _load_base(locate(base), base, place, family, roles, causal_block)
    model = _with_adapter(model, folder, str(name), roles)
    return _quantized(replace(model, name=str(name), source=source), place)


def _quantized(model: Model, place: Place) -> Model:
    """The model, its network quantized in place if from_pretrained has not done so."""
    if place.quantizer is not None:
        place.quantizer.convert(model.base)
    return model


@dataclass(frozen=True)
class _Checkpoint:
    """A whole model's folder as its small files describe it: config.json and the card, each read once."""

    folder: Path
    released: dict[str, Any]  # config.json as it stands
    card: Card | None
    family: Family
    config: PretrainedConfig

    def vocabulary(self) -> tuple[PreTrainedTokenizerBase, Roles]:
        """The tokenizer, and the roles of the card or those that the names of its tokens give."""
        tokenizer = read_tokenizer(self.folder, self.family.tokenizer_class)
        if self.card is not None:
            return tokenizer, self.card.roles
        rows, names = self.config.vocab_size, self.family.role_names
        return tokenizer, resolve(tokenizer, self.released, rows=rows, names=names)

    def causal_block(self, name: str, given: int | None) -> int:
        """The size of the blocks of block-causal attention, 0 for full attention: as given, or as the files say it.

        Where nobody says it, a warning names the usual size that was taken: a wrong one is a wrong network.
        """
        family, stated = self.family, given
        if stated is None:
            stated = self.card.causal_block if self.card else family.stated_block(self.released, name)
        if stated is None and family.causal_block:
            stated = family.causal_block
            warnings.warn(
                f"{self.folder}: does not say in which blocks its attention runs; {stated} is the usual size "
                "(causal_block, --causal-block).",
                AssumedWarning,
                stacklevel=5,
            )
        check_causal_block(stated or 0, family, where=str(self.folder))
        return stated or 0


def _read_checkpoint(folder: Path, *, name: str = "", family: str | None = None) -> _Checkpoint:
    """Family and config of a checkpoint folder, released or saved by voidpad. No weights are read."""
    check_plain_files(folder)
    values, card = read_json(folder / "config.json"), read_card(folder)
    if card is None:
        known = recognise(values, where=str(folder), name=name, given=family)
        return _Checkpoint(folder, values, card, known, known.read_config(values, where=str(folder)))
    known = FAMILIES[card.family]
    if family not in (None, known.name):
        raise ConfigError(
            f"{folder}: family {family!r} given, but the card says {known.name!r}; drop family."
        )
    # Written by `export`: a release with a card.
    if str(values.get("model_type")).lower() in known.model_types:
        return _Checkpoint(folder, values, card, known, known.read_config(values, where=str(folder)))
    if values.get("model_type") != known.model_type:
        raise WeightsError(
            f"{folder}: model_type {values.get('model_type')!r} in config.json, but the card's family "
            f"{known.name!r} is saved as {known.model_type!r}; save the checkpoint again."
        )
    check_sizes(values, where=str(folder))
    try:
        own = known.config_class.from_dict(values).to_dict()
    except Exception as error:  # transformers validates fields with many exception types
        raise WeightsError(
            f"{folder}: damaged config.json ({reason(error)}); save the checkpoint again."
        ) from None
    config = known.checked_config(own, where=str(folder))
    return _Checkpoint(folder, values, card, known, config)


def vocabulary(name: str) -> tuple[PreTrainedTokenizerBase, Roles]:
    """Tokenizer and roles of a model folder, a hub id, or a folder that holds a tokenizer alone.

    Of an adapter, the roles are those of its own card if it has one.
    """
    folder = base_folder(name)
    if not (folder / "config.json").is_file():
        tokenizer = read_tokenizer(folder)
        return tokenizer, resolve(tokenizer, {}, rows=len(tokenizer))
    tokenizer, roles = _read_checkpoint(folder, name=name).vocabulary()
    own = read_card(locate(name))
    return tokenizer, own.roles if own is not None else roles


def family_of(name: str | Path, *, download: bool = True) -> Family:
    """The family of a checkpoint, or of an adapter's base, without reading weights."""
    return _read_checkpoint(base_folder(str(name), download=download), name=str(name)).family


def card_of(name: str | Path, adapter: str | Path | None = None) -> Card | None:
    """The card that `load(name, adapter)` would use, without reading weights: the adapter's, else the base's.

    None if neither folder has one.
    """
    if adapter is not None and is_adapter(locate(name)):
        raise ConfigError(two_adapters(name, locate(name)))
    folders = [locate(name)] if adapter is None else [locate(adapter), locate(name)]
    if is_adapter(folders[-1]):
        folders.append(base_folder(name))
    return next((card for folder in folders if (card := read_card(folder)) is not None), None)


def default_plan_of(name: str | Path, adapter: str | Path | None = None, *, family: str | None = None) -> str:
    """`load(name, adapter).default_plan`, without reading weights."""
    base = _read_checkpoint(base_folder(str(name)), name=str(name), family=family)
    return default_plan(card_of(name, adapter), base.family)


def plan_of(
    name: str | Path,
    adapter: str | Path | None = None,
    plan: "str | Plan | None" = None,
    *,
    family: str | None = None,
    causal_block: int | None = None,
    **fields: Any,
) -> "Plan":
    """The plan that `load(name, adapter).plan(plan, **fields)` gives, without reading weights.

    What is wrong with a plan is so said in a moment, not after minutes of loading.
    """
    from voidpad.decode.plan import describe

    base = _read_checkpoint(base_folder(str(name)), name=str(name), family=family)
    card = card_of(name, adapter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssumedWarning)  # said when the weights are loaded
        block = base.causal_block(str(name), causal_block)
    chosen = plan or default_plan(card, base.family)
    defaults = replace(base.family.decoding, causal_block=block)
    return describe(chosen, defaults=defaults, calibration=card.calibration if card else None, **fields)[0]


def save(model: Model, folder: str | Path) -> None:
    """Write a folder that `load` reads: the whole model, or the adapter alone where it is not merged."""
    storage = Quantizer.storage_of(model.net)
    if storage is not None and not storage.saves and not model.adapted:
        raise ConfigError(
            f"{model.name}: {model.quantized} weights cannot be saved; load it without quantize."
        )
    with fresh_folder(Path(folder)) as beside, _quiet():
        base = None
        if isinstance(model.net, PeftModel):
            base = str(model.net.peft_config["default"].base_model_name_or_path)
            model.net.save_pretrained(str(beside), save_embedding_layers=False)
        else:
            model.net.save_pretrained(str(beside), save_original_format=False)
            model.tokenizer.save_pretrained(str(beside))
        write_readme(beside, model.card, base=base)
        replace(model.card, roles=model.roles).write(beside)


def merge(model: Model) -> Model:
    """The model with its adapter folded into the weights. The network is changed in place."""
    if not isinstance(model.net, PeftModel):
        raise ConfigError(
            f"{model.name}: has no adapter to merge; name one with it (--adapter, adapter=...)."
        )
    if model.quantized:
        raise ConfigError(f"{model.name}: cannot merge into quantized weights; load it without quantize.")
    return replace(model, net=model.net.merge_and_unload(safe_merge=True))


def _load_base(
    folder: Path,
    name: str,
    place: Place,
    family: str | None,
    given: Mapping[str, Any] | None,
    causal_block: int | None,
) -> Model:
    if (folder / ADAPTER_CONFIG).is_file():  # transformers would attach it without a word
        if not (folder / "config.json").is_file():
            raise WeightsError(
                f"{name}: is an adapter and cannot be the base of another; use `voidpad merge` first."
            )
        raise WeightsError(f"{folder}: holds a whole model and an adapter; move {ADAPTER_CONFIG} elsewhere.")
    checkpoint = _read_checkpoint(folder, name=name, family=family)
    known, config = checkpoint.family, checkpoint.config
    block = checkpoint.causal_block(name, causal_block)
    if place.quantize is not None and known.experts:
        raise ConfigError(
            f"{folder}: quantize={place.quantize!r} reaches linear layers only, not the experts, which hold nearly all "
            "weights; drop quantize."
        )
    tensors = headers(folder)
    check(tensors, known, config, where=str(folder))
    stored = stored_dtype(tensors)
    place.check_memory(sum(torch.Size(t.shape).numel() for t in tensors.values()), stored, where=str(folder))
    tokenizer, roles = checkpoint.vocabulary()
    try:
        with _quiet():
            net = known.net_class.from_pretrained(
                str(folder),
                config=config,
                key_mapping=dict(known.tensor_names) or None,
                use_safetensors=True,
                local_files_only=True,
                generation_config=GenerationConfig(),  # a release's own is about its remote decoding code
                **place.options(stored),
            )
    except (TypeError, ValueError, KeyError, AttributeError, OSError) as error:
        raise WeightsError(
            f"{folder}: cannot be loaded ({type(error).__name__}: {reason(error)})."
        ) from error
    refuse_nan(net.named_parameters(), where=str(folder))
    net.name_or_path = name  # as the user wrote it: peft and the hub quote it
    # Forget the old names, or a later save_pretrained by a trainer writes them beside our config.
    net.__dict__.pop("_weight_conversions", None)
    card = replace(checkpoint.card or Card(known.name, roles), causal_block=block)
    return _given(Model(place.move(net), tokenizer, card.roles, known, card, name), given)


def _given(model: Model, given: Mapping[str, Any] | None) -> Model:
    """The roles checked against the embedding, with the ids that the tokenizer and the caller give."""
    rows, names = model.net.config.vocab_size, model.family.role_names
    newline = newline_ids(model.tokenizer, model.roles, rows=rows, names=names)
    values = {**vars(model.roles), "newline": newline, **(given or {})}
    return replace(model, roles=build(values, rows=rows))


def _with_adapter(model: Model, folder: Path, name: str, given: Mapping[str, Any] | None) -> Model:
    check_plain_files(folder)
    card = read_card(folder)
    if card is not None and card.family != model.family.name:
        raise WeightsError(
            f"{folder}: an adapter of family {card.family!r}, but {model.name} is of family "
            f"{model.family.name!r}; use the adapter's own base."
        )
    net, original = attach(model, folder)
    if card is not None:
        card = replace(card, calibration={**_canvases(model.card), **card.calibration})
        card = replace(card, causal_block=model.card.causal_block)
        roles = card.roles
    else:
        card, roles = model.card, model.roles
        if original and "void" not in (given or {}):
            roles = original_roles(model, where=str(folder))
        card = replace(card, roles=roles)
    return _given(replace(model, net=net, card=card, roles=roles, name=f"{model.name}+{name}"), given)


def _canvases(card: Card) -> dict[str, dict[str, Any]]:
    """The part of a base's calibration that an adapter inherits: canvas, longest canvas and block of each plan.

    Thresholds are left out: they were chosen for the probabilities of the base.
    """
    kept = ("canvas", "limit", "block")
    return {plan: {k: v for k, v in said.items() if k in kept} for plan, said in card.calibration.items()}


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
