"""From a recipe to a network that is ready to train, and to the batches it trains on."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from voidpad import models
from voidpad.errors import ConfigError, DataError
from voidpad.models.adapter import base_folder, refuse_adapter
from voidpad.models.text import read_tokenizer
from voidpad.models.weights import headers, stored_dtype
from voidpad.training import prepared as data
from voidpad.training.batches import (
    BatchLayout,
    BatchShare,
    BatchWidth,
    FixedWidth,
    PackedRows,
    PaddedRows,
    VirtualWidth,
    Width,
    WindowWidth,
    shuffled,
)
from voidpad.training.losses import NORMALISERS
from voidpad.training.noising import Noising
from voidpad.training.padding import Pairs, policy
from voidpad.training.passes import Objective, PassLimit, UpdatePasses
from voidpad.training.recipe import LoraPart, Scratch, TrainingRecipe


def network(recipe: TrainingRecipe, prepared: data.Prepared) -> models.Model:
    """The model to train, with the card that its checkpoints will carry. Its weights are still on the host."""
    if recipe.model.scratch:
        model = _from_scratch(recipe, recipe.model.scratch, prepared)
    else:
        model = _from_checkpoint(recipe)
    _check_ids(model, prepared)
    how, roles = recipe.policy, model.roles
    if how:
        roles = how.roles(roles, recipe.padding.colours)
        if model.card.padding != how.name and not recipe.model.scratch:
            _init_rows(model, how.new_tokens(roles), recipe.model.init_void)
    card = models.Card(model.family.name, roles, how.name if how else None, recipe.model_dump(mode="json"))
    model = replace(model, roles=roles, card=card, source=None)  # its weights will differ from those files
    return _with_lora(model, recipe) if recipe.lora else model


def _from_checkpoint(recipe: TrainingRecipe) -> models.Model:
    part = recipe.model
    if recipe.lora:
        refuse_adapter(part.adapter or part.name or "")
    # Quantized weights are made on their device; all others are moved there by Trainer.
    device = training_device() if part.quantize else "cpu"
    model = models.load(
        part.name or "", part.adapter, device=device, dtype=_dtype(recipe), quantize=part.quantize
    )
    model.require_full_attention("training with padding")
    if model.adapted:
        model = models.merge(model)
        model.net.requires_grad_(True)  # an adapter's base is frozen
    if part.attention:
        model.net.set_attn_implementation(part.attention)
    return model


def training_device() -> str:
    """The device of this process."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"


def _dtype(recipe: TrainingRecipe) -> str:
    """Weights that train are float32. Frozen weights under LoRA stay bfloat16 on a GPU if they are stored so."""
    if recipe.model.dtype != "auto":
        return recipe.model.dtype
    if recipe.lora is None or not torch.cuda.is_available():
        return "float32"
    return "bfloat16" if stored_dtype(headers(base_folder(recipe.model.name or ""))) == "BF16" else "float32"


def _from_scratch(recipe: TrainingRecipe, part: Scratch, prepared: data.Prepared) -> models.Model:
    if part.family not in models.FAMILIES:
        known = ", ".join(models.FAMILIES)
        raise ConfigError(f"model.scratch.family: {part.family!r} is unknown; use one of {known}.")
    family = models.FAMILIES[part.family]
    if family.causal_block:
        raise ConfigError(
            f"model.scratch.family: {part.family!r} has block-causal attention, which training does not cover."
        )
    if family.experts:
        dense = ", ".join(n for n, one in models.FAMILIES.items() if not one.experts and not one.causal_block)
        raise ConfigError(
            f"model.scratch.family: {part.family!r} is a mixture of experts, which can be tuned but not trained from "
            f"scratch; use one of {dense}."
        )
    if recipe.model.tokenizer is None:
        raise ConfigError("model.tokenizer: a network from scratch needs the folder of its tokenizer.")
    tokenizer = read_tokenizer(base_folder(recipe.model.tokenizer))
    config = family.config(
        {
            "vocab_size": part.vocab or len(tokenizer),
            "hidden_size": part.hidden,
            "num_hidden_layers": part.layers,
            "num_attention_heads": part.heads,
            "num_key_value_heads": part.kv_heads or part.heads,
            "intermediate_size": part.intermediate,
            "max_position_embeddings": part.context,
            "tie_word_embeddings": part.tied,
            "bos_token_id": None,
            "eos_token_id": prepared.roles.eos,
            "pad_token_id": prepared.roles.eos,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(recipe.run.seed)
        net = family.net_class(config)
    if recipe.model.attention:
        net.set_attn_implementation(recipe.model.attention)
    return models.Model(
        net, tokenizer, prepared.roles, family, models.Card(family.name, prepared.roles), "scratch"
    )


def _check_ids(model: models.Model, prepared: data.Prepared) -> None:
    theirs, ours = prepared.roles, model.roles
    if (theirs.mask, theirs.eos) != (ours.mask, ours.eos):
        raise DataError(
            f"data.path: prepared for mask {theirs.mask}, eos {theirs.eos}, but {model.name} has mask {ours.mask}, "
            f"eos {ours.eos}; prepare the data with this model's tokenizer."
        )
    if prepared.largest_id >= model.net.config.vocab_size:
        raise DataError(
            f"data.path: token id {prepared.largest_id} is outside the vocabulary of {model.net.config.vocab_size}."
        )


@torch.no_grad()
def _init_rows(model: models.Model, ids: tuple[int, ...], rule: str) -> None:
    """Set the padding tokens' rows of embedding and head to EOS's rows (`eos`) or to the mean row (`mean`)."""
    if rule == "keep":
        return
    net: Any = model.net
    for table in (net.get_input_embeddings().weight, net.get_output_embeddings().weight):
        source = table[model.roles.eos] if rule == "eos" else table.float().mean(0)
        for row in ids:
            table[row] = source.to(table.dtype)


_EXPERT_PARTS = {"gate_proj", "up_proj", "gate_up_proj", "down_proj", "gate", "experts"}


def _with_lora(model: models.Model, recipe: TrainingRecipe) -> models.Model:
    part, how = recipe.lora or LoraPart(), recipe.policy
    ids = list(how.new_tokens(model.roles)) if how else []
    targets = part.targets
    if "targets" not in part.model_fields_set and (recipe.preset == "authors" or model.family.experts):
        targets = model.family.lora_targets
    inside = sorted({name.split(".")[-1] for name in targets} & _EXPERT_PARTS) if model.family.experts else []
    if inside:
        raise ConfigError(
            f"lora.targets: {inside[0]} is part of the experts, which LoRA does not cover; use "
            f"{', '.join(model.family.lora_targets)}."
        )
    modules = {name for name, _ in model.net.named_modules()}
    for wanted in targets:
        if not any(name == wanted or name.endswith(f".{wanted}") for name in modules):
            raise ConfigError(
                f"lora.targets: this network has no module {wanted!r}; the paper's are "
                f"{', '.join(model.family.lora_targets)}."
            )
    rows = {"embed_tokens": ids, "lm_head": ids} if part.void_rows and ids else None
    if rows and model.net.config.tie_word_embeddings:
        rows = {"embed_tokens": ids}
    config = LoraConfig(
        r=part.r,
        lora_alpha=part.alpha,
        lora_dropout=part.dropout,
        target_modules=list(targets),
        trainable_token_indices=rows,
        base_model_name_or_path=recipe.model.name,
        task_type=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(recipe.run.seed)
        net = get_peft_model(model.net, config)
    net.peft_config["default"].base_model_name_or_path = recipe.model.name
    return replace(model, net=net)


def update_passes(
    recipe: TrainingRecipe,
    model: models.Model,
    prepared: data.Prepared,
    *,
    share: BatchShare,
    limit: PassLimit,
) -> tuple[UpdatePasses, UpdatePasses | None]:
    """The run's passes for one process, and those over the held-out examples."""
    noise = recipe.noise
    noising = Noising(recipe.run.seed, noise.eps, noise.stratified, noise.suffix)
    pairs = prepared.pairs
    if recipe.padding.truncated_gets_eos:
        pairs = replace(pairs, complete=torch.ones_like(pairs.complete))
    how = recipe.policy
    normaliser = NORMALISERS[noise.normaliser or model.family.loss]
    objective = Objective(
        model.roles.mask, normaliser, model.family.shift, forced=how is not None and how.forced
    )
    layout = BatchLayout(
        _width(recipe),
        recipe.data.align,
        training_device(),
        group=recipe.run.global_batch if recipe.data.group_by_length else 0,
    )
    if how is None:
        length = recipe.data.length or 0
        _check_length(model, length)
        packed = PackedRows(pairs, model.roles, length=length, seed=noising.seed, layout=layout)
        return UpdatePasses(packed, noising, objective, share=share, limit=limit), None
    _check_pairs(recipe, model, pairs)
    held_out, count = None, recipe.data.held_out
    if count:
        if count >= len(pairs):
            raise DataError(f"data.held_out: {count} of only {len(pairs)} examples; hold out fewer.")
        order = shuffled(len(pairs), recipe.run.seed, -1)
        chosen, pairs = pairs.select(order[:count].sort().values), pairs.select(order[count:].sort().values)
        # The same rows with the same noise every time, over all noise levels evenly, so that losses compare.
        even = replace(noising, stratified=True)
        rows = PaddedRows(chosen, model.roles, how, noising=even, layout=replace(layout, group=0))
        held_out = UpdatePasses(rows, even, objective, share=share, limit=limit)
    rows = PaddedRows(pairs, model.roles, how, noising=noising, layout=layout)
    return UpdatePasses(rows, noising, objective, share=share, limit=limit), held_out


def _width(recipe: TrainingRecipe) -> Width:
    part = recipe.padding
    if isinstance(part.width, int):
        return FixedWidth(part.width)
    if part.width == "window":
        return WindowWidth(*part.window)
    if part.width == "virtual":
        return VirtualWidth(part.virtual_batch)
    return BatchWidth(part.longest_row_gets_eos or policy(part.policy).longest_row_gets_eos)


def _check_pairs(recipe: TrainingRecipe, model: models.Model, pairs: Pairs) -> None:
    if int(pairs.prompt.min()) < 1:
        raise DataError("data.path: an example has an empty prompt; prepare the data again.")
    longest, width = int(pairs.size.max()) + 1, recipe.padding.width
    if width == "window":
        _check_length(model, int(pairs.prompt.max()) + recipe.padding.window[1])
        return
    for name, limit in (
        ("data.length", recipe.data.length),
        ("padding.width", width if isinstance(width, int) else None),
    ):
        if limit and longest > limit:
            raise DataError(
                f"{name}: {limit} slots, but the longest example needs {longest}; prepare the data again."
            )
    _check_length(model, width if isinstance(width, int) else longest)


def _check_length(model: models.Model, slots: int) -> None:
    context = model.net.config.max_position_embeddings
    if slots > context:
        raise ConfigError(f"rows of {slots} slots are longer than the model's context of {context}.")
