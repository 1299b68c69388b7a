"""What training takes from a model family. `Family.loss` and `Family.lora_targets` win where the family has them."""

from __future__ import annotations

from voidpad.models.family import Family

LOSS = {"llada": "per_row", "dream": "per_slot"}
AUTHORS_TARGETS = {
    "llada": ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj", "lm_head"),
    "dream": ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"),
}


def loss_of(family: Family) -> str:
    """How the family's loss is normalised: a key of losses.NORMALISERS."""
    return getattr(family, "loss", None) or LOSS[family.name]


def authors_targets(family: Family) -> tuple[str, ...]:
    """The modules to which the authors' code adds LoRA."""
    return getattr(family, "lora_targets", None) or AUTHORS_TARGETS[family.name]
