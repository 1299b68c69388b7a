"""VOID for a vocabulary that has no room for it."""

from dataclasses import replace
from typing import Any, cast

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from voidpad.errors import ConfigError
from voidpad.models.model import Model
from voidpad.roles import RAINBOW_NAMES, VOID_NAME


def with_void(model: Model) -> Model:
    """The model with VOID and rainbow tokens; embedding and head grow in place where no row is spare.

    New rows start as the mean row. They mean nothing until they are trained.
    """
    if model.roles.void is not None:
        return model
    if isinstance(model.net, PeftModel):
        raise ConfigError(f"{model.name}: add VOID before the adapter, or merge(model) first.")
    names = [VOID_NAME, *RAINBOW_NAMES]
    model.tokenizer.add_tokens(names, special_tokens=True)
    if len(model.tokenizer) > model.net.config.vocab_size:
        _grow(model.net, len(model.tokenizer))
    vocab = model.tokenizer.get_vocab()
    ids = tuple(vocab[name] for name in names)
    roles = replace(model.roles, void=ids[0], rainbow=model.roles.rainbow or ids)
    return replace(model, roles=roles, card=replace(model.card, roles=roles))


def _grow(net: PreTrainedModel, rows: int) -> None:
    old = net.config.vocab_size
    net.resize_token_embeddings(rows, mean_resizing=False)
    for matrix in (
        cast(Any, net.get_input_embeddings()).weight,
        cast(Any, net.get_output_embeddings()).weight,
    ):
        with torch.no_grad():
            matrix[old:] = matrix[:old].float().mean(0)
