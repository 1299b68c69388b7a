"""Dream (Dream-org): Dream-v0, Dream-Coder, DiffuCoder, DreamOn, d3LLM-Dream. Transformers' Qwen2, full attention.

Open-dCoder belongs here too, but its config.json says plain `qwen2`: the user, or its hub id, must name the family.
"""

from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from voidpad.decode.presets import FamilyDefaults
from voidpad.decode.propose import SampledProposal
from voidpad.models.families.family import Family
from voidpad.roles import RoleNames

# The VOID and Rainbow ids of the paper's Dream runs: long runs of spaces, renamed <pad_0> .. <pad_6> in the authors'
# vocab.json. The first one is 128 spaces.
AUTHORS_RAINBOW = (56940, 86766, 79871, 65271, 51475, 95429, 97417)


def _adapter_roles(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """VOID and Rainbow ids of an adapter from the authors' code, if this tokenizer has their entries there."""
    pieces = tokenizer.convert_ids_to_tokens(list(AUTHORS_RAINBOW))
    spaces = all(piece and set(piece) == {"Ġ"} for piece in pieces)
    if not spaces and pieces != [f"<pad_{n}>" for n in range(len(AUTHORS_RAINBOW))]:
        return {}
    return {"void": AUTHORS_RAINBOW[0], "rainbow": AUTHORS_RAINBOW}


DREAM = Family(
    "dream",
    shift=1,
    config_class=Qwen2Config,
    net_class=Qwen2ForCausalLM,
    model_types=("dream",),
    unmarked_types=("qwen2",),
    hub_ids=("fredzzp/open-dcoder-0.5B",),
    tokenizer_class=Qwen2Tokenizer,
    role_names=RoleNames(
        void=("<|dlm_pad|>",),  # DiffuCoder fills the tail of an answer with it
        never=("<|expand|>",),  # DreamOn: becomes two masks in its own loop, and means nothing in ours
    ),
    adapter_roles=_adapter_roles,
    decoding=FamilyDefaults(
        score="neg_entropy",
        schedule="dream",
        scores="renormalised",
        proposal=SampledProposal,
        authors={"scores": "renormalised"},
        leaves_blocks=True,
        fields={
            # Renormalised scores lose answers on blocks above 32: a slot that wants VOID looks sure.
            "void": {"scores": "unbanned"},
            "void-expansion": {"scores": "unbanned", "tau_nonvoid": 0.15, "tau_gap": 0.55},
        },
    ),
    loss="per_slot",
    lora_targets=("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"),
)
