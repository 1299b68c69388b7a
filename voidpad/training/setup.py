"""From a recipe to a network that is ready to train, and to the batches it trains on."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model

from voidpad import models
from voidpad.engine import packed
from voidpad.errors import ConfigError, DataError
from voidpad.models.adapter import base_folder, refuse_adapter
from voidpad.models.text import read_tokenizer
from voidpad.models.weights import headers, stored_dtype
from voidpad.training import prepared as data
from voidpad.training.batches import (
    BatchShare,
    Objective,
    PackedRows,
    PaddedRows,
    PassLimit,
    UpdatePasses,
    shuffled,
)
from voidpad.training.losses import NORMALISERS, Noising
from voidpad.training.recipe import LoraPart, Scratch, TrainingRecipe

LONG = (300, 600.0)  # updates or seconds of a run that compilation, a minute or two, pays for
# Parameters from which on a GPU computes rows end to end: faster at 7.6 billion, slower than padding at 2.5 million.
LARGE = 1_000_000_000
# Parameters times tokens that a GPU computes in the time which the host needs to launch a pass: an estimate for 20 ms.
LAUNCHED = 1e12
ON_CPU = 4096  # tokens of a pass; larger ones are no faster there
ON_GPU = 2048  # at least: smaller ones leave a GPU's matrix products below full speed
# Parameters of the layers times tokens of a pass: beyond it a larger pass is no faster on a GPU.
ENOUGH = 5e13


def network(recipe: TrainingRecipe, prepared: data.Prepared, device: torch.device) -> models.Model:
    """The model to train, with the card that its checkpoints will carry. Only quantized weights are on `device` yet."""
    scratch, how = recipe.model.scratch, recipe.policy
    model = _from_scratch(recipe, scratch, prepared) if scratch else _from_checkpoint(recipe, device)
    theirs, roles, vocabulary = prepared.roles, model.roles, model.net.config.vocab_size
    if (theirs.mask, theirs.eos) != (roles.mask, roles.eos) or prepared.largest_id >= vocabulary:
        raise DataError(
            f"data.path: prepared for mask {theirs.mask}, eos {theirs.eos} and ids up to {prepared.largest_id}, but "
            f"{model.name} has mask {roles.mask}, eos {roles.eos} and {vocabulary} ids; prepare the data with its "
            "tokenizer."
        )
    if recipe.model.attention:
        model.net.set_attn_implementation(recipe.model.attention)
    if how:
        roles, rule = how.roles(roles, recipe.padding.colours), recipe.model.init_void
        net: Any = model.net
        learnt = model.card.padding == how.name or scratch  # the rows of its padding tokens have their values
        if how.adds_tokens and not learnt and rule != "keep":
            with torch.no_grad():
                for table in (net.get_input_embeddings().weight, net.get_output_embeddings().weight):
                    row = table[roles.eos].clone() if rule == "eos" else table.float().mean(0)
                    table[list(how.tokens(roles))] = row.to(table.dtype)
    card = models.Card(model.family.name, roles, how.name if how else None, recipe.model_dump(mode="json"))
    model = replace(model, card=card, source=None)  # its weights will differ from those files
    return _with_lora(model, recipe) if recipe.lora else model


def _from_checkpoint(recipe: TrainingRecipe, device: torch.device) -> models.Model:
    """Weights that train are float32. Frozen weights under LoRA stay bfloat16 on a GPU if they are stored so."""
    part, name, dtype = recipe.model, recipe.model.name or "", recipe.model.dtype
    if recipe.lora:
        refuse_adapter(part.adapter or name)
    if dtype == "auto":
        frozen = recipe.lora and torch.cuda.is_available()
        dtype = (
            "bfloat16" if frozen and stored_dtype(headers(base_folder(name))) == torch.bfloat16 else "float32"
        )
    where = str(device) if part.quantize else "cpu"
    model = models.load(name, part.adapter, device=where, dtype=dtype, quantize=part.quantize)
    model.require_full_attention("training with padding")
    if model.adapted:
        model = models.merge(model)
        model.net.requires_grad_(True)  # an adapter's base is frozen
    return model


def _from_scratch(recipe: TrainingRecipe, part: Scratch, prepared: data.Prepared) -> models.Model:
    dense = [name for name, one in models.FAMILIES.items() if not one.experts and not one.causal_block]
    if part.family not in dense:
        raise ConfigError(f"model.scratch.family: {part.family!r} is not one of {', '.join(dense)}.")
    family = models.FAMILIES[part.family]
    tokenizer = read_tokenizer(base_folder(recipe.model.tokenizer or ""))
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
    card = models.Card(family.name, prepared.roles)
    return models.Model(config, tokenizer, card, "scratch", net=net)


def _with_lora(model: models.Model, recipe: TrainingRecipe) -> models.Model:
    part, how = recipe.lora or LoraPart(), recipe.policy
    targets = part.targets
    if "targets" not in part.model_fields_set and (recipe.preset == "authors" or model.family.experts):
        targets = model.family.lora_targets
    modules = {name for name, _ in model.net.named_modules()}
    for wanted in targets:
        if not any(name == wanted or name.endswith(f".{wanted}") for name in modules):
            known = ", ".join(model.family.lora_targets)
            raise ConfigError(f"lora.targets: LoRA finds no module {wanted!r} here; the paper's are {known}.")
    rows = None
    if how and how.adds_tokens and part.void_rows:
        tables = ["embed_tokens"] if model.net.config.tie_word_embeddings else ["embed_tokens", "lm_head"]
        rows = {name: list(how.tokens(model.roles)) for name in tables}
    config = LoraConfig(
        r=part.r,
        lora_alpha=part.alpha,
        lora_dropout=part.dropout,
        target_modules=list(targets),
        trainable_token_indices=rows,
    )
    with torch.random.fork_rng():
        torch.manual_seed(recipe.run.seed)
        net = get_peft_model(model.net, config)
    net.peft_config["default"].base_model_name_or_path = recipe.model.name
    return replace(model, net=net)


def compiles(recipe: TrainingRecipe, *, examples: int) -> bool:
    """Whether the layers are compiled. `auto`: on a GPU, in a run long enough to earn the time back.

    It takes triton, which builds its launchers with a C compiler.
    """
    run = recipe.run
    if run.compile != "auto":
        return run.compile
    updates = run.steps or (run.epochs or 0) * examples / run.global_batch
    if (updates < LONG[0] and (run.seconds or 0) < LONG[1]) or run.fsdp or recipe.model.quantize:
        return False
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return torch.cuda.is_available() and find_spec("triton") is not None and compiler is not None


def pass_limit(recipe: TrainingRecipe, *, compiled: bool, parameters: int) -> PassLimit:
    """How rows lie in a pass.

    They lie end to end on a CPU, where attention runs row by row, and for LARGE networks in half precision on a GPU,
    by a variable-length kernel. Rows of one length need no such thing, compiled code without the kernel has few shapes
    only if rows are padded, and a `model.attention` that the recipe names is used as it is. A GPU computes padding of a
    small network faster than the host launches another pass.
    """
    cuda = torch.cuda.is_available()
    uniform = recipe.data.layout == "packed" or isinstance(recipe.padding.width, int)
    if not (uniform or recipe.model.attention):
        half = recipe.run.computes_in_bfloat16(cuda=cuda)
        if cuda and half and parameters >= LARGE and packed.kernel_exists():
            return PassLimit(packed=True, multiple=128)
        if not (cuda or compiled):
            return PassLimit(packed=True)
    small = int(LAUNCHED / parameters) if cuda else 0
    return PassLimit(multiple=32 if compiled and not uniform else 1, small=small)


def update_passes(
    recipe: TrainingRecipe,
    model: models.Model,
    prepared: data.Prepared,
    accelerator: Accelerator,
    *,
    compiled: bool,
) -> tuple[UpdatePasses, UpdatePasses | None]:
    """The run's passes for this process, and those over the held-out examples."""
    noise, run, how, pairs = recipe.noise, recipe.run, recipe.policy, prepared.pairs
    device, processes = accelerator.device, accelerator.num_processes
    if run.global_batch % (run.micro_batch * processes):
        together = f"micro_batch {run.micro_batch} x {processes} processes"
        raise ConfigError(f"run.global_batch: {run.global_batch} is not a multiple of {together}.")
    share = BatchShare(run.global_batch, run.micro_batch, accelerator.process_index, processes, even=run.fsdp)
    limit = pass_limit(recipe, compiled=compiled, parameters=model.parameters)
    if limit.packed:
        model.net.set_attn_implementation(packed.NAME)
    noising = Noising(run.seed, noise.eps, noise.stratified, noise.suffix)
    normaliser = NORMALISERS[noise.normaliser or model.family.loss]
    forced = how is not None and how.forced
    objective = Objective(model.roles.mask, normaliser, model.family.shift, forced=forced)
    if recipe.padding.truncated_gets_eos:
        pairs = replace(pairs, complete=~pairs.has_gaps)
    rows: PackedRows | PaddedRows
    held_out = None
    if how is None:
        rows = PackedRows(pairs, model.roles, recipe.data.length or 0, noising=noising, device=device)
    else:
        needed, width, count = int(pairs.size.max()) + 1, recipe.padding.width, recipe.data.held_out
        if isinstance(width, int) and needed > width:
            raise DataError(f"padding.width: {width} slots, but the longest example needs {needed}.")
        if count >= len(pairs):
            raise DataError(f"data.held_out: {count} of only {len(pairs)} examples; hold out fewer.")
        if count:
            order = shuffled(len(pairs), run.seed, -1)
            kept = pairs.select(order[:count].sort().values)
            pairs = pairs.select(order[count:].sort().values)
            # The same rows with the same noise every time, over all noise levels evenly, so that losses compare.
            even = replace(noising, stratified=True)
            apart = PaddedRows(kept, model.roles, recipe.padding, noising=even, device=device)
            held_out = UpdatePasses(apart, objective, share, limit)
        rows = PaddedRows(pairs, model.roles, recipe.padding, noising=noising, device=device)

    longest, context = rows.longest, model.net.config.max_position_embeddings
    if held_out:
        longest = max(longest, held_out.rows.longest)
    if longest > context:
        raise ConfigError(f"rows of {longest} slots are longer than the model's context of {context}.")
    # Tokens of a pass to begin with; they are halved when a pass does not fit.
    if isinstance(run.pass_tokens, int):
        limit.tokens = run.pass_tokens
    elif not torch.cuda.is_available():
        limit.tokens = max(ON_CPU, rows.longest)
    else:
        inside = sum(p.numel() for p in model.net.get_decoder().layers.parameters())
        limit.tokens = max(ON_GPU, rows.longest, int(ENOUGH / inside))
    return UpdatePasses(rows, objective, share, limit), held_out
