"""Mixtures of experts: matrices stored apart or fused, and told from dense models of the same model_type."""

from dataclasses import replace

import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from voidpad.decode.denoise import HFDenoiser
from voidpad.decode.rows import Rows
from voidpad.engine.packed import PackedDenoiser
from voidpad.models import LLADA
from voidpad.models.fresh import random_net
from voidpad.models.weights import split_experts
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


def test_splitting_undoes_what_transformers_fuses():
    experts = torch.randn(3, 3, 6, 8)  # gate, up, down of three experts
    gate, up, down = experts
    fused = {
        "model.layers.4.mlp.experts.gate_up_proj": torch.cat([gate, up], 1),
        "model.layers.4.mlp.experts.down_proj": down.transpose(1, 2),
    }
    parts = {part: matrix for name, tensor in fused.items() for part, matrix in split_experts(name, tensor)}
    assert len(parts) == 9
    for number in range(3):
        for kind, matrix in (("gate", gate[number]), ("up", up[number]), ("down", down[number].T)):
            assert torch.equal(parts[f"model.layers.4.mlp.experts.{number}.{kind}_proj.weight"], matrix)
    for name in (
        "model.norm.weight",
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.down_proj.weight",
    ):
        assert list(split_experts(name, gate)) == [(name, gate)]


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
