"""Dream (Dream-org): Dream-v0, Dream-Coder, DiffuCoder, DreamOn, d3LLM-Dream. Transformers' Qwen2, full attention.

Open-dCoder belongs here too, but its config.json says plain `qwen2`: the user must name the family.
"""

from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from voidpad.decode.presets import FamilyDefaults
from voidpad.decode.propose import SampledProposal
from voidpad.models.families.family import Family
from voidpad.roles import RoleNames

DREAM = Family(
    "dream",
    shift=1,
    config_class=Qwen2Config,
    net_class=Qwen2ForCausalLM,
    model_types=("dream",),
    unmarked_types=("qwen2",),
    tokenizer_class=Qwen2Tokenizer,
    role_names=RoleNames(
        void=("<|dlm_pad|>",),  # DiffuCoder fills the tail of an answer with it
        never=("<|expand|>",),  # DreamOn: becomes two masks in its own loop, and means nothing in ours
    ),
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
