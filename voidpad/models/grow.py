"""VOID for a vocabulary that has no room for it."""

from dataclasses import replace

import torch
from peft import PeftModel

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
    old = model.net.config.vocab_size
    if len(model.tokenizer) > old:
        model.net.resize_token_embeddings(len(model.tokenizer), mean_resizing=False)
        for rows in (model.net.get_input_embeddings().weight, model.net.get_output_embeddings().weight):
            with torch.no_grad():
                rows[old:] = rows[:old].float().mean(0)
    ids = tuple(model.tokenizer.convert_tokens_to_ids(names))
    roles = replace(model.roles, void=ids[0], rainbow=model.roles.rainbow or ids)
    return replace(model, roles=roles, card=replace(model.card, roles=roles))
