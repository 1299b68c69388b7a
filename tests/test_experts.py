"""Mixtures of experts: matrices stored apart or fused, and told from dense models of the same model_type."""

from dataclasses import replace

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from voidpad.decode.denoise import HFDenoiser
from voidpad.decode.rows import Rows
from voidpad.engine.packed import PackedDenoiser
from voidpad.models import LLADA
from voidpad.models.fresh import random_net
from voidpad.roles import Roles

MIXTURE = replace(
    LLADA, config_class=Qwen3MoeConfig, net_class=Qwen3MoeForCausalLM, experts=True, tensor_names={}
)
SIZES = {
    "vocab_size": 16,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 12,
    "moe_intermediate_size": 6,
    "num_experts": 3,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
}
ROLES = Roles(mask=0, eos=1)


def test_packed_rows_with_a_norm_of_the_keys():
    """Few requested slots: the last layer computes those only, and its keys must be normed as the layer norms them."""
    net = random_net(MIXTURE.config(SIZES | {"initializer_range": 0.4}), seed=2, dtype=torch.float64)
    net.set_experts_implementation("eager")  # the others have no float64
    for layer in net.model.layers:
        layer.self_attn.k_norm.weight.data.uniform_(0.5, 2, generator=torch.Generator().manual_seed(1))
    canvas = Rows.blank([[3, 9, 4, 5, 8], [7, 6]], torch.tensor([4, 6]), ROLES)
    denoise = HFDenoiser(net.model, net.lm_head)
    few = canvas.masked & (canvas.masked.cumsum(1) <= 2)
    for where in (few, canvas.masked):
        torch.testing.assert_close(
            PackedDenoiser(denoise)(canvas, where), denoise(canvas, where), atol=1e-12, rtol=0
        )
