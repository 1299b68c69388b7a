"""Models with random weights and a small real tokenizer, for tests and benchmarks."""

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from voidpad.errors import ConfigError
from voidpad.models.card import Card
from voidpad.models.families import family_named
from voidpad.models.model import Model
from voidpad.roles import RAINBOW_NAMES, VOID_NAME, resolve

SPECIAL = ("<|mask|>", "<|endoftext|>", "<|eot_id|>", "<|unk|>", VOID_NAME, *RAINBOW_NAMES)
# Every printable character, the likeliest first: a small vocabulary keeps those that fit.
LETTERS = (
    " etaoinshrdlcumwfgypbvkjxqz0123456789\n.,:?!+-*/=()'\"ABCDEFGHIJKLMNOPQRSTUVWXYZ<>[]{}#$%&@\\^_`|~;"
)
TEMPLATE = (
    "{% for turn in messages %}{{ turn['role'] + ': ' + turn['content'] + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def character_tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """One id per character, special tokens first; characters that do not fit become <|unk|>."""
    if vocab <= len(SPECIAL):
        raise ConfigError(f"vocab {vocab} is too small; use at least {len(SPECIAL) + 1}.")
    table = {token: index for index, token in enumerate((*SPECIAL, *LETTERS)[:vocab])}
    core = Tokenizer(models.WordLevel(table, unk_token="<|unk|>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        mask_token="<|mask|>",
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        unk_token="<|unk|>",
        clean_up_tokenization_spaces=False,
        chat_template=TEMPLATE,
    )
    tokenizer.add_tokens(list(SPECIAL), special_tokens=True)
    return tokenizer


def random_model(
    family: str = "llada",
    *,
    vocab: int = 64,
    hidden: int = 32,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int | None = None,
    intermediate: int = 64,
    experts: int = 4,
    context: int = 512,
    causal_block: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Model:
    """A model of a family with random weights and a character tokenizer.

    `experts` is for families that have them; `intermediate` is then the size of one, and two see each token.
    `causal_block` is for families with block-causal attention; without it their usual one is taken.
    """
    known, tokenizer = family_named(family), character_tokenizer(vocab)
    sizes = {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads or heads,
        "head_dim": hidden // heads,
        "intermediate_size": intermediate,
        "max_position_embeddings": context,
        "initializer_range": hidden**-0.5,  # activations and logits of order one at any width
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if known.experts:
        sizes |= dict.fromkeys(("num_experts", "n_routed_experts"), experts)  # by the name of the class
        sizes |= {"num_experts_per_tok": 2, "moe_intermediate_size": intermediate}
    config = known.config(sizes)
    block = known.causal_block if causal_block is None else causal_block
    known.check_causal_block(block, where=f"random-{family}")
    card = Card(family, resolve(tokenizer, {}, rows=vocab, names=known.role_names), causal_block=block)
    net = random_net(config, seed=seed, dtype=dtype, device=device)
    return Model(config, tokenizer, card, f"random-{family}", net=net)


def random_net(
    config: PretrainedConfig, *, seed: int, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> PreTrainedModel:
    """A network of this config with random weights, the caller's random state left alone."""
    with torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed)
        net: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        return net
