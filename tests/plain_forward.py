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


_LLADA = {  # released name -> Llama's, written out by hand; the head before the output of a block
    "model.transformer.ff_out": "lm_head",
    "transformer.blocks": "layers",
    "transformer.wte": "embed_tokens",
    "transformer.ln_f": "norm",
    "attn_norm": "input_layernorm",
    "ff_norm": "post_attention_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}


def plain_llada(tensors: dict[str, Tensor], config: dict, ids: list[int], block: int | None = None) -> Tensor:
    """Raw logits of one row of LLaDA over its released tensors."""
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in _LLADA.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    sizes = {"num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads", "hidden_size": "d_model"}
    sizes = {new: config[old] for new, old in sizes.items()} | {"num_hidden_layers": config["n_layers"]}
    return plain_forward(renamed, config | sizes, ids, block)


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


def plain_llada2(tensors: dict[str, Tensor], config: dict, ids: list[int], block: int) -> Tensor:
    """Raw logits of one row of LLaDA2 over its released tensors, head by head and token by token.

    Queries, keys and values lie below each other in one matrix; only the first half of each head is rotated; the first
    layers are dense; the others add a shared expert to experts that a sigmoid router chooses group by group.
    """
    heads, key_heads, size = (
        config[name] for name in ("num_attention_heads", "num_key_value_heads", "head_dim")
    )
    half = int(size * config["partial_rotary_factor"])
    step = config["rope_theta"] ** -(torch.arange(0, half, 2) / half)
    angle = torch.outer(torch.arange(len(ids)).float(), step)
    number = torch.arange(len(ids)) // block
    hidden_from = number[None, :] > number[:, None]

    def norm(x: Tensor, name: str) -> Tensor:
        return (
            x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * tensors[f"{name}.weight"]
        )

    def turned(x: Tensor) -> Tensor:
        first, second, rest = x[:, : half // 2], x[:, half // 2 : half], x[:, half:]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], 1)

    x = tensors["model.word_embeddings.weight"][ids]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        joined = norm(x, f"{at}.input_layernorm") @ tensors[f"{at}.attention.query_key_value.weight"].T
        parts = joined.split(
            size, 1
        )  # the heads of the queries, then those of the keys, then those of the values
        mixed = []
        for head in range(heads):
            shared = head // (heads // key_heads)
            query = turned(norm(parts[head], f"{at}.attention.query_layernorm"))
            key = turned(norm(parts[heads + shared], f"{at}.attention.key_layernorm"))
            weight = (query @ key.T / size**0.5).masked_fill(hidden_from, -torch.inf).softmax(1)
            mixed.append(weight @ parts[heads + key_heads + shared])
        x = x + torch.cat(mixed, 1) @ tensors[f"{at}.attention.dense.weight"].T
        y = norm(x, f"{at}.post_attention_layernorm")
        if layer < config["first_k_dense_replace"]:
            x = x + _dense(tensors, config, y, f"{at}.mlp")
        else:
            routed = torch.stack([_llada2_experts(tensors, config, token, f"{at}.mlp") for token in y])
            x = x + routed + _dense(tensors, config, y, f"{at}.mlp.shared_experts")
    return norm(x, "model.norm") @ tensors["lm_head.weight"].T


def _llada2_experts(tensors: dict[str, Tensor], config: dict, token: Tensor, at: str) -> Tensor:
    """The experts of one token: best groups by their two best biased scores, best experts in them, unbiased weights."""
    score = torch.sigmoid(tensors[f"{at}.gate.weight"].float() @ token.float())
    biased = (score + tensors[f"{at}.gate.expert_bias"]).tolist()
    each = len(biased) // config["n_group"]
    groups = [range(start, start + each) for start in range(0, len(biased), each)]
    best = sorted(groups, key=lambda group: -sum(sorted((biased[n] for n in group), reverse=True)[:2]))
    open_to = [n for group in best[: config["topk_group"]] for n in group]
    chosen = sorted(open_to, key=lambda n: -biased[n])[: config["num_experts_per_tok"]]
    total = sum(float(score[n]) for n in chosen) + 1e-20
    out = torch.zeros_like(token)
    for n in chosen:
        share = float(score[n]) / total * config["routed_scaling_factor"]
        out = out + share * _dense(tensors, config, token[None], f"{at}.experts.{n}")[0]
    return out
