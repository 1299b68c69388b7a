"""A forward pass in plain torch over released tensors, for every family.

It says what the stock classes should compute, written from the facts about them and not from their code. Tensors are
named as Qwen's classes name them; those of LLaDA and LLaDA2 are renamed first.
"""

import torch
from torch import Tensor


def plain_forward(
    tensors: dict[str, Tensor], config: dict, ids: list[int], block: int | None = None
) -> Tensor:
    """Raw logits of one row, head by head. With blocks of B, token i sees token j iff j//B <= i//B."""
    heads, key_heads = config["num_attention_heads"], config["num_key_value_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rotated = int(size * config.get("partial_rotary_factor", 1))
    step = config["rope_theta"] ** -(torch.arange(0, rotated, 2) / rotated)
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
        turning, rest = x[:, :rotated], x[:, rotated:]
        half = rotated // 2
        crossed = torch.cat([-turning[:, half:], turning[:, :half]], 1)
        return torch.cat([turning * cos + crossed * sin, rest], 1)

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
        sparse = "num_experts" in config and layer >= config.get("first_k_dense_replace", 0)
        x = x + (_mixture if sparse else _dense)(tensors, config, y, f"{at}.mlp")
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
_LLADA2 = {
    "word_embeddings": "embed_tokens",
    "attention.dense": "self_attn.o_proj",
    "attention.query_layernorm": "self_attn.q_norm",
    "attention.key_layernorm": "self_attn.k_norm",
}


def _renamed(tensors: dict[str, Tensor], names: dict[str, str]) -> dict[str, Tensor]:
    renamed = {}
    for name, tensor in tensors.items():
        for old, new in names.items():
            name = name.replace(old, new)
        renamed[name] = tensor
    return renamed


def plain_llada(tensors: dict[str, Tensor], config: dict, ids: list[int], block: int | None = None) -> Tensor:
    """Raw logits of one row of LLaDA over its released tensors."""
    sizes = {"num_attention_heads": "n_heads", "num_key_value_heads": "n_kv_heads", "hidden_size": "d_model"}
    sizes = {new: config[old] for new, old in sizes.items()} | {"num_hidden_layers": config["n_layers"]}
    return plain_forward(_renamed(tensors, _LLADA), config | sizes, ids, block)


def plain_llada2(tensors: dict[str, Tensor], config: dict, ids: list[int], block: int) -> Tensor:
    """Raw logits of one row of LLaDA2 over its released tensors.

    Queries, keys and values lie below each other in one matrix; only the first half of each head is rotated; the first
    layers are dense.
    """
    renamed, heads = _renamed(tensors, _LLADA2), config["num_attention_heads"]
    for name in [name for name in renamed if "query_key_value" in name]:
        at = name.replace("attention.query_key_value.weight", "self_attn.")
        parts = renamed[name].split(config["head_dim"])
        ends = (heads, heads + config["num_key_value_heads"])
        for kind, rows in zip(
            "qkv", (parts[: ends[0]], parts[ends[0] : ends[1]], parts[ends[1] :]), strict=True
        ):
            renamed[f"{at}{kind}_proj.weight"] = torch.cat(rows)
    return plain_forward(renamed, config, ids, block)


def _dense(tensors: dict[str, Tensor], config: dict, x: Tensor, at: str) -> Tensor:
    gate, up, down = (tensors[f"{at}.{name}_proj.weight"].T for name in ("gate", "up", "down"))
    return (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down


def _mixture(tensors: dict[str, Tensor], config: dict, x: Tensor, at: str) -> Tensor:
    """The experts of every token, token by token, and the expert that all tokens share, if there is one."""
    share_of = _shares_by_group if "n_group" in config else _shares_of_the_likeliest
    out = []
    for token in x:
        shares = share_of(tensors, config, token, at)
        parts = [
            share * _dense(tensors, config, token[None], f"{at}.experts.{n}")[0]
            for n, share in shares.items()
        ]
        out.append(sum(parts))
    routed = torch.stack(out)
    if f"{at}.shared_experts.up_proj.weight" in tensors:
        routed = routed + _dense(tensors, config, x, f"{at}.shared_experts")
    return routed


def _shares_of_the_likeliest(tensors: dict[str, Tensor], config: dict, token: Tensor, at: str) -> dict:
    """The likeliest experts by a softmax over all of them; their weights sum to one if the config says so."""
    p = (tensors[f"{at}.gate.weight"] @ token).softmax(0)
    best = p.topk(config["num_experts_per_tok"])
    total = best.values.sum() if config["norm_topk_prob"] else 1.0
    return {int(n): value / total for n, value in zip(best.indices, best.values, strict=True)}


def _shares_by_group(tensors: dict[str, Tensor], config: dict, token: Tensor, at: str) -> dict:
    """LLaDA2: best groups by their two best biased scores, best experts in them, weights by the unbiased scores."""
    score = torch.sigmoid(tensors[f"{at}.gate.weight"].float() @ token.float())
    biased = (score + tensors[f"{at}.gate.expert_bias"]).tolist()
    each = len(biased) // config["n_group"]
    groups = [range(start, start + each) for start in range(0, len(biased), each)]
    best = sorted(groups, key=lambda group: -sum(sorted((biased[n] for n in group), reverse=True)[:2]))
    open_to = [n for group in best[: config["topk_group"]] for n in group]
    chosen = sorted(open_to, key=lambda n: -biased[n])[: config["num_experts_per_tok"]]
    total = sum(float(score[n]) for n in chosen) + 1e-20
    return {n: float(score[n]) / total * config["routed_scaling_factor"] for n in chosen}
