"""The training recipe: a TOML file, validated as it is read. Every default of training is in this module."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from voidpad.errors import ConfigError, format_validation_error
from voidpad.files import readable, store
from voidpad.training.padding import POLICIES, PaddingPolicy, PolicyName

UnitFloat = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, lt=1)]


class RecipeSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Scratch(RecipeSection):
    """A new network with random weights and the vocabulary of the tokenizer."""

    family: str = "llada"
    hidden: Count = 256
    layers: Count = 8
    heads: Count = 8
    kv_heads: Count | None = None
    intermediate: Count = 704
    context: Count = 1024


class ModelPart(RecipeSection):
    name: str | None = None  # built-in name, hub id or folder
    scratch: Scratch | None = None
    tokenizer: str | None = None  # folder whose tokenizer is saved with a network from scratch
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    quantize: Literal["8bit", "4bit"] | None = None  # frozen weights in fewer bits under LoRA (4bit: QLoRA)
    attention: str | None = None  # a transformers attention back-end, such as flash_attention_2
    init_void: Literal["eos", "mean", "keep"] = "eos"  # what the VOID rows of embedding and head start from

    @model_validator(mode="after")
    def _one_source(self) -> ModelPart:
        if (self.name is None) == (self.scratch is None):
            raise ValueError("give model.name or [model.scratch], exactly one of them")
        if self.scratch and not self.tokenizer:
            raise ValueError("model.scratch needs model.tokenizer")
        return self


class DataPart(RecipeSection):
    path: str  # a file made by `voidpad data prepare` or voidpad.training.prepared.write
    layout: Literal["pairs", "packed"] = "pairs"  # packed: prompt response EOS prompt response EOS ...
    length: Count | None = None  # packed: slots of a row, which begins with a whole document
    # Examples kept apart; their loss is measured at every checkpoint.
    held_out: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _packed_length(self) -> DataPart:
        if self.layout == "packed" and self.length is None:
            raise ValueError('layout = "packed" needs data.length, the slots of a row')
        if self.layout == "packed" and self.held_out:
            raise ValueError('held_out needs layout = "pairs"')
        return self


class PaddingPart(RecipeSection):
    policy: PolicyName = "void"
    # batch: the paper's S_B; others: docs/train.md.
    width: Literal["batch", "window"] | Count = "batch"
    window: tuple[Count, Count] = (16, 208)  # canvas slots, drawn evenly between these, of width = "window"
    longest_row_gets_eos: bool = True  # False: the authors' collator
    truncated_gets_eos: bool = False  # True: the authors' data

    @model_validator(mode="after")
    def _window(self) -> PaddingPart:
        if self.window[0] > self.window[1]:
            raise ValueError(f"window: {self.window} must have the smaller number first")
        return self


class NoisePart(RecipeSection):
    eps: Share = 1e-3
    stratified: bool = False
    suffix: UnitFloat = 0.0
    normaliser: Literal["per_row", "per_slot"] | None = None  # None: the model family's


class LoraPart(RecipeSection):
    r: Count = 32
    alpha: Count = 64
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.05
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    void_rows: bool = True  # the VOID rows of embedding and head train too


class OptimPart(RecipeSection):
    name: Literal["adamw", "muon"] = "adamw"  # muon: matrices of the layers; AdamW for the rest
    lr: Positive = 5e-5
    muon_lr: Positive | None = None  # None: lr
    weight_decay: Annotated[float, Field(ge=0)] = 0.1
    betas: tuple[UnitFloat, UnitFloat] = (0.9, 0.999)
    clip: Annotated[float, Field(ge=0)] = 0.0  # 0: no clipping, as in the paper
    warmup: UnitFloat = 0.0  # shares of the run, linear both
    decay: UnitFloat = 0.0


LEARNING_FIELDS = ("global_batch", "micro_batch", "seed", "bf16")  # of [run], which change what is learnt


class RunPart(RecipeSection):
    output: str
    steps: Count | None = None  # updates; exactly one of steps, epochs, seconds
    epochs: Positive | None = None
    seconds: Positive | None = None  # training time over all restarts; the schedule follows the clock
    global_batch: Count = 48
    # Examples of a mini-batch: what padding.width = "batch" and the loss's divisor see.
    micro_batch: Count = 6
    pass_tokens: Count | Literal["auto"] = "auto"  # tokens computed at once; auto: by the free memory
    seed: int = 42
    bf16: Literal["auto", "on", "off"] = "auto"  # passes compute in bfloat16; auto: on a GPU
    compile: bool | Literal["auto"] = "auto"  # the layers, which share their code; auto: long runs on a GPU
    checkpointing: bool | Literal["auto"] = "auto"  # gradient checkpointing; auto: as many layers as needed
    fsdp: bool = False
    log_every: Count = 10
    save_every: Count | Share = 1000  # updates, or a share of the run
    keep: Count = 2  # checkpoints, besides the one with the lowest held-out loss
    report_to: tuple[str, ...] | None = None  # None: tensorboard where installed
    # Dtype of the final weights; None: as trained.
    export: Literal["float32", "bfloat16", "float16"] | None = None

    def computes_in_bfloat16(self, *, cuda: bool) -> bool:
        return self.bf16 == "on" or (self.bf16 == "auto" and cuda)

    @model_validator(mode="after")
    def _one_length(self) -> RunPart:
        if sum(value is not None for value in (self.steps, self.epochs, self.seconds)) != 1:
            raise ValueError("give exactly one of run.steps, run.epochs, run.seconds")
        if self.seconds and self.save_every < 1:
            raise ValueError("save_every is a share of run.steps or run.epochs; give a number of updates")
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"global_batch {self.global_batch} is no multiple of micro_batch {self.micro_batch}"
            )
        return self


# What the authors' code does where it differs from the paper (spec 1.1, 1.6); explicit settings still win.
AUTHORS: dict[str, Any] = {
    "model": {"init_void": "keep"},
    "padding": {"longest_row_gets_eos": False, "truncated_gets_eos": True},
    "lora": {"void_rows": False},
}


class TrainingRecipe(RecipeSection):
    preset: Literal["paper", "authors"] = "paper"
    model: ModelPart
    data: DataPart
    padding: PaddingPart = PaddingPart()
    noise: NoisePart = NoisePart()
    lora: LoraPart | None = None  # absent: every parameter trains
    optim: OptimPart = OptimPart()
    run: RunPart

    @property
    def policy(self) -> PaddingPolicy | None:
        """How answers are padded; None for packed rows, which have no padding."""
        return POLICIES[self.padding.policy] if self.data.layout == "pairs" else None

    def learnt(self) -> dict[str, Any]:
        """The settings that decide what is learnt, by their full names; a restart may not change them."""
        values = self.model_dump(mode="json")
        values["run"] = {name: values["run"][name] for name in LEARNING_FIELDS}
        sections = {name: part if isinstance(part, dict) else {"": part} for name, part in values.items()}
        return {f"{name}.{key}".rstrip("."): part[key] for name, part in sections.items() for key in part}

    @model_validator(mode="before")
    @classmethod
    def _preset(cls, values: Any) -> Any:
        """The preset's settings, over which those of the recipe win."""
        if not isinstance(values, dict) or values.get("preset") != "authors":
            return values
        values = dict(values)
        for name, settings in AUTHORS.items():
            given = values.get(name, None if name == "lora" else {})  # the preset does not turn LoRA on
            if isinstance(given, dict):
                values[name] = {**settings, **given}
        return values

    @model_validator(mode="after")
    def _combinations(self) -> TrainingRecipe:
        new_tokens = self.policy is not None and self.policy.adds_tokens
        if self.lora and new_tokens and not self.lora.void_rows and self.model.init_void != "keep":
            raise ValueError('lora.void_rows = false saves no rows, so model.init_void must be "keep"')
        if self.model.quantize and (self.lora is None or self.model.scratch or self.run.fsdp):
            raise ValueError("model.quantize needs [lora] on model.name, without run.fsdp")
        if self.optim.name == "muon" and self.run.fsdp:
            raise ValueError("optim.name = 'muon' needs whole matrices; use adamw with run.fsdp")
        if self.optim.name == "muon" and self.lora:
            raise ValueError("optim.name = 'muon' is for full-parameter training; drop [lora] or use adamw")
        return self


def read(path: Path | str, changes: Iterable[str] = ()) -> TrainingRecipe:
    """A recipe file with `key=value` changes applied; a relative data path is taken from the working directory."""
    with readable(Path(path), "TOML", ConfigError):
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    for change in changes:
        _apply(values, change)
    return check(values, name=str(path))


def check(values: Mapping[str, Any], *, name: str = "recipe") -> TrainingRecipe:
    """The settings as a recipe. All faults are reported in one message."""
    try:
        return TrainingRecipe.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{name}: {format_validation_error(error)}.") from None


LENGTHS = ("steps", "epochs", "seconds")


def _apply(values: dict[str, Any], change: str) -> None:
    """Set `part.field=value`; the value is TOML, or plain text where it is not TOML."""
    key, equals, text = change.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {change!r}: write it as part.field=value, for example run.steps=100.")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        value = text
    *parents, last = key.strip().split(".")
    for name in parents:
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"--set {change!r}: {name} is a value, not a section.")
    if parents == ["run"] and last in LENGTHS:
        for length in LENGTHS:  # a run has one length: the last one given
            values.pop(length, None)
    values[last] = value


SMALL = 100_000_000  # parameters below which a model learns at a rate that would wreck a large one


def write_starter(path: Path, *, model: str, data: str | None = None) -> None:
    """A recipe for LoRA fine-tuning with VOID padding. Its first lines name the commands to run with it.

    A model that is here is looked at: a small one gets a larger learning rate, and one that voidpad trained gets the
    canvas widths it was trained with. Nothing is downloaded.
    """
    from voidpad.models import read_card
    from voidpad.models.locate import BUILT_IN, locate, refuse_adapter
    from voidpad.models.weights import headers

    if path.exists():
        raise ConfigError(f"--init {path}: already exists; choose another name.")
    lr, width = "5e-5", 'width = "batch"'
    if model in BUILT_IN or Path(model).is_dir():
        refuse_adapter(model)
        folder = locate(model)
        card = read_card(folder)
        if sum(math.prod(tensor.shape) for tensor in headers(folder).values()) < SMALL:
            lr = "1e-3"
        before = (card.recipe if card else {}).get("padding") or {}
        if before.get("width") == "window":
            width = f'width = "window"\nwindow = {before["window"]}'
    data, output = data or str(path.with_suffix(".safetensors")), str(path.with_suffix(""))
    words = {"model": model, "data": data, "output": output}
    quoted = {f"{name}_text": json.dumps(text) for name, text in words.items()}  # as TOML strings
    chats = path.with_name("chats.jsonl")
    text = (files("voidpad") / "recipes" / "starter.txt").read_text(encoding="utf-8")
    store(path, [text.format(name=path, chats=chats, width=width, lr=lr, **words, **quoted)])
