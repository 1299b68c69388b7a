"""What a recipe names, built: the network, ready to train, and the passes it trains on."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, cast

import torch
from accelerate import Accelerator
from peft import LoraConfig, get_peft_model

from voidpad import models
from voidpad.engine import packed
from voidpad.errors import ConfigError, DataError
from voidpad.models.fresh import random_net
from voidpad.models.locate import find_source, refuse_adapter
from voidpad.models.text import read_tokenizer
from voidpad.models.weights import headers, stored_dtype
from voidpad.training.batches import BatchShare, PackedRows, PaddedRows, PassLimit, UpdatePasses, shuffled
from voidpad.training.losses import Normaliser, Objective
from voidpad.training.prepared import Prepared
from voidpad.training.recipe import LoraPart, Scratch, TrainingRecipe

# Shorter runs are not compiled, because compilation takes a minute or two.
COMPILED_UPDATES, COMPILED_SECONDS = 300, 600.0
# A GPU lays the rows of networks of so many parameters end to end. That was faster at 7.6 billion, and slower than
# padding at 2.5 million.
END_TO_END_PARAMETERS = 1_000_000_000
# Tokens of a pass. On a CPU larger ones are no faster; on a GPU smaller ones compute below full speed, and larger ones
# are no faster beyond this product of tokens and the layers' parameters.
CPU_TOKENS, LEAST_GPU_TOKENS, GPU_WORK = 4096, 2048, 5e13
# Tokens times parameters that a GPU computes while the host launches another pass: an estimate for 20 ms.
LAUNCH_WORK = 1e12


# The network


def model_to_train(recipe: TrainingRecipe, prepared: Prepared, device: torch.device) -> models.Model:
    """The model to train, with the card that its checkpoints will carry. Only quantized weights are on `device` yet."""
    scratch, policy = recipe.model.scratch, recipe.policy
    model = _from_scratch(recipe, scratch, prepared) if scratch else _from_checkpoint(recipe, device)
    net: Any = model.net
    roles, vocabulary = model.roles, net.config.vocab_size
    largest = int(prepared.pairs.tokens.max())
    if (prepared.roles.mask, prepared.roles.eos) != (roles.mask, roles.eos) or largest >= vocabulary:
        raise DataError(
            f"data.path: prepared for mask {prepared.roles.mask}, eos {prepared.roles.eos} and ids up to {largest}, "
            f"but {model.name} has mask {roles.mask}, eos {roles.eos} and {vocabulary} ids; prepare the data with its "
            "tokenizer."
        )
    if recipe.model.attention:
        net.set_attn_implementation(recipe.model.attention)
    if policy:
        start_from = recipe.model.init_void
        has_values = scratch is not None or model.card.padding == policy.name
        if policy.adds_tokens and not has_values and start_from != "keep":
            with torch.no_grad():
                for table in (net.get_input_embeddings().weight, net.get_output_embeddings().weight):
                    row = table[roles.eos].clone() if start_from == "eos" else table.float().mean(0)
                    table[list(policy.tokens(roles))] = row.to(table.dtype)
    padding = policy.name if policy else None
    card = models.Card(model.family.name, roles, padding, recipe.model_dump(mode="json"))
    model = replace(model, card=card, source=None)  # its weights will differ from those files
    return _with_lora(model, recipe, recipe.lora) if recipe.lora else model


def _from_checkpoint(recipe: TrainingRecipe, device: torch.device) -> models.Model:
    """Weights that train are float32. Frozen weights under LoRA stay bfloat16 on a GPU if they are stored so."""
    name, dtype, quantize = recipe.model.name or "", recipe.model.dtype, recipe.model.quantize
    refuse_adapter(name)
    if dtype == "auto":
        frozen = recipe.lora and torch.cuda.is_available()
        half = frozen and stored_dtype(headers(find_source(name).folder)) == torch.bfloat16
        dtype = "bfloat16" if half else "float32"
    model = models.load(name, device=str(device) if quantize else "cpu", dtype=dtype, quantize=quantize)
    model.require_full_attention("training with padding")
    return model


def _from_scratch(recipe: TrainingRecipe, part: Scratch, prepared: Prepared) -> models.Model:
    dense = [name for name, one in models.FAMILIES.items() if not one.experts and not one.causal_block]
    if part.family not in dense:
        raise ConfigError(f"model.scratch.family: {part.family!r} is not one of {', '.join(dense)}.")
    family = models.FAMILIES[part.family]
    tokenizer = read_tokenizer(find_source(recipe.model.tokenizer or "").folder)
    config = family.config(
        {
            "vocab_size": len(tokenizer),
            "hidden_size": part.hidden,
            "num_hidden_layers": part.layers,
            "num_attention_heads": part.heads,
            "num_key_value_heads": part.kv_heads or part.heads,
            "intermediate_size": part.intermediate,
            "max_position_embeddings": part.context,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": prepared.roles.eos,
            "pad_token_id": prepared.roles.eos,
        }
    )
    card, net = models.Card(family.name, prepared.roles), random_net(config, seed=recipe.run.seed)
    return models.Model(config, tokenizer, card, "scratch", net=net)


def _with_lora(model: models.Model, recipe: TrainingRecipe, part: LoraPart) -> models.Model:
    policy, targets = recipe.policy, part.targets
    if "targets" not in part.model_fields_set and (recipe.preset == "authors" or model.family.experts):
        targets = model.family.lora_targets
    modules = [f".{name}" for name, _ in model.net.named_modules()]
    for target in targets:
        if not any(name.endswith(f".{target}") for name in modules):
            known = ", ".join(model.family.lora_targets)
            raise ConfigError(f"lora.targets: LoRA finds no module {target!r} here; the paper's are {known}.")
    rows = None
    if policy and policy.adds_tokens and part.void_rows:
        tables = ["embed_tokens"] if model.net.config.tie_word_embeddings else ["embed_tokens", "lm_head"]
        rows = {name: list(policy.tokens(model.roles)) for name in tables}
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


def should_compile(recipe: TrainingRecipe, *, examples: int) -> bool:
    """Whether the layers are compiled. `auto`: on a GPU, in a run long enough to earn the time back.

    Compilation needs triton, which builds its launchers with a C compiler.
    """
    run = recipe.run
    if run.compile != "auto":
        return run.compile
    updates = run.steps or (run.epochs or 0) * examples / run.global_batch
    is_long = updates >= COMPILED_UPDATES or (run.seconds or 0) >= COMPILED_SECONDS
    if not is_long or run.fsdp or recipe.model.quantize:
        return False
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return torch.cuda.is_available() and find_spec("triton") is not None and compiler is not None


# The passes


def update_passes(
    recipe: TrainingRecipe,
    model: models.Model,
    prepared: Prepared,
    accelerator: Accelerator,
    *,
    compiled: bool,
) -> tuple[UpdatePasses, UpdatePasses | None]:
    """The run's passes for this process, and those over the held-out examples."""
    run, noise, policy, pairs = recipe.run, recipe.noise, recipe.policy, prepared.pairs
    processes, context = accelerator.num_processes, model.net.config.max_position_embeddings
    if run.global_batch % (run.micro_batch * processes):
        together = f"micro_batch {run.micro_batch} x {processes} processes"
        raise ConfigError(f"run.global_batch: {run.global_batch} is not a multiple of {together}.")
    share = BatchShare(run.global_batch, run.micro_batch, accelerator.process_index, processes, even=run.fsdp)
    objective = Objective(
        model.roles.mask,
        cast(Normaliser, noise.normaliser or model.family.loss),
        model.family.shift,
        forced=policy is not None and policy.forced,
        seed=run.seed,
        eps=noise.eps,
        stratified=noise.stratified,
        suffix=noise.suffix,
    )
    if recipe.padding.truncated_gets_eos:
        pairs = replace(pairs, complete=~pairs.has_gaps)
    common: Any = {"seed": run.seed, "device": accelerator.device}
    rows: PackedRows | PaddedRows
    held_out = None
    if policy is None:
        rows = PackedRows(pairs, model.roles, recipe.data.length or 0, **common)
    else:
        width, needed, count = recipe.padding.width, int(pairs.size.max()) + 1, recipe.data.held_out
        if isinstance(width, int) and needed > width:
            raise DataError(f"padding.width: {width} slots, but the longest example needs {needed}.")
        if count >= len(pairs):
            raise DataError(f"data.held_out: {count} of only {len(pairs)} examples; hold out fewer.")
        if count:
            order = shuffled(len(pairs), run.seed, -1)
            kept = pairs.select(order[:count].sort().values)
            pairs = pairs.select(order[count:].sort().values)
            held_out = PaddedRows(kept, model.roles, recipe.padding, **common)
        rows = PaddedRows(pairs, model.roles, recipe.padding, **common)
    longest = max(rows.longest, held_out.longest if held_out else 0)
    if longest > context:
        raise ConfigError(f"rows of {longest} slots are longer than the model's context of {context}.")

    # Tokens of a pass to begin with; they are halved when a pass does not fit.
    if isinstance(run.pass_tokens, int):
        tokens = run.pass_tokens
    elif torch.cuda.is_available():
        inside = sum(p.numel() for p in model.net.get_decoder().layers.parameters())
        tokens = max(LEAST_GPU_TOKENS, rows.longest, int(GPU_WORK / inside))
    else:
        tokens = max(CPU_TOKENS, rows.longest)
    limit = pass_limit(recipe, compiled=compiled, parameters=model.parameters, tokens=tokens)
    if limit.end_to_end:
        model.net.set_attn_implementation(packed.NAME)
    passes = UpdatePasses(rows, objective, share, limit)
    if held_out is None:
        return passes, None
    # The same rows with the same noise every time, over all noise levels evenly, so that losses compare.
    return passes, UpdatePasses(held_out, replace(objective, stratified=True), share, limit)


def pass_limit(recipe: TrainingRecipe, *, compiled: bool, parameters: int, tokens: int) -> PassLimit:
    """How rows lie in a pass.

    They lie end to end on a CPU, where attention runs row by row, and on a GPU for large networks in half precision,
    where a kernel takes rows of different lengths. They are padded if all have one length, if compiled code would
    otherwise see too many shapes, and if the recipe names a `model.attention`, which may not know rows end to end. A
    GPU computes the padding of a small network faster than the host launches another pass.
    """
    cuda = torch.cuda.is_available()
    uniform = recipe.data.layout == "packed" or isinstance(recipe.padding.width, int)
    if not (uniform or recipe.model.attention):
        half = recipe.run.computes_in_bfloat16(cuda=cuda)
        if cuda and half and parameters >= END_TO_END_PARAMETERS and packed.kernel_exists():
            return PassLimit(tokens, end_to_end=True, multiple=128)
        if not (cuda or compiled):
            return PassLimit(tokens, end_to_end=True)
    small = int(LAUNCH_WORK / parameters) if cuda else 0
    return PassLimit(tokens, multiple=32 if compiled and not uniform else 1, small=small)
