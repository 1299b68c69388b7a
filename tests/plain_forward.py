"""A forward pass in plain torch over tensors named as Qwen's classes name them: Qwen2, Qwen3 and Qwen3Moe.

It says what those classes should compute, written from the facts about them and not from their code.
"""

import torch
from torch import Tensor


def plain_forward(
    tensors: dict[str, Tensor], config: dict, ids: list[int], block: int | None = None
) -> Tensor:
    """Raw logits of one row, head by head. With blocks of B, token i sees token j iff j//B <= i//B."""
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    step = config["rope_theta"] ** -(torch.arange(0, size, 2) / size)
    angle = torch.outer(torch.arange(len(ids)).float(), step)
    cos, sin = torch.cat([angle.cos()] * 2, 1), torch.cat([angle.sin()] * 2, 1)
    number = torch.arange(len(ids)) // (block or len(ids))
    hidden_from = number[None, :] > number[:, None]

    def norm(x: Tensor, name: str) -> Tensor:
        scale = (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).rsqrt()
        return x * scale * tensors[f"{name}.weight"]

    def project(x: Tensor, name: str) -> Tensor:
        y = x @ tensors[f"{name}.weight"].T
        return y + tensors[f"{name}.bias"] if f"{name}.bias" in tensors else y

    def turned(x: Tensor, name: str) -> Tensor:
        if f"{name}.weight" in tensors:  # Qwen3 norms queries and keys, Qwen2 does not
            x = norm(x, name)
        return x * cos + torch.cat([-x[:, size // 2 :], x[:, : size // 2]], 1) * sin

    x = tensors["model.embed_tokens.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        y = norm(x, f"{at}.input_layernorm")
        q, k, v = (project(y, f"{at}.self_attn.{name}_proj") for name in "qkv")
        mixed = []
        for head in range(heads):
            mine = slice(head * size, (head + 1) * size)
            shared = head // (heads // key_heads)
            theirs = slice(shared * size, (shared + 1) * size)
            query = turned(q[:, mine], f"{at}.self_attn.q_norm")
            key = turned(k[:, theirs], f"{at}.self_attn.k_norm")
            weight = (query @ key.T / size**0.5).masked_fill(hidden_from, -torch.inf).softmax(1)
            mixed.append(weight @ v[:, theirs])
        x = x + project(torch.cat(mixed, 1), f"{at}.self_attn.o_proj")
        y = norm(x, f"{at}.post_attention_layernorm")
        x = x + (_mixture if "num_experts" in config else _dense)(tensors, config, y, f"{at}.mlp")
    head = "lm_head" if "lm_head.weight" in tensors else "model.embed_tokens"
    return norm(x, "model.norm") @ tensors[f"{head}.weight"].T


def _dense(tensors: dict[str, Tensor], config: dict, x: Tensor, at: str) -> Tensor:
    gate, up, down = (tensors[f"{at}.{name}_proj.weight"].T for name in ("gate", "up", "down"))
    return (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down


def _mixture(tensors: dict[str, Tensor], config: dict, x: Tensor, at: str) -> Tensor:
    """Token by token: the likeliest experts by a softmax over all of them, their weights made to sum to one."""
    out = []
    for token in x:
        p = (tensors[f"{at}.gate.weight"] @ token).softmax(0)
        best = p.topk(config["num_experts_per_tok"])
        share = best.values / best.values.sum() if config["norm_topk_prob"] else best.values
        parts = [_dense(tensors, config, token[None], f"{at}.experts.{int(n)}") for n in best.indices]
        out.append(sum(weight * part[0] for weight, part in zip(share, parts, strict=True)))
    return torch.stack(out)
