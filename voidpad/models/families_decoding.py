"""Decoding defaults of each family, by family name.

Each entry belongs into the file of its family, as the field `decoding` of its `Family`.
"""

from voidpad.decode.plan import FamilyDefaults
from voidpad.decode.propose import GumbelProposal, SampledProposal

LLADA_DECODING = FamilyDefaults(
    score="confidence",
    schedule="even",
    scores="unbanned",
    proposal=GumbelProposal,
    authors={"cut": False},
    fields={"void-expansion": {"tau_nonvoid": 0.09, "tau_gap": -0.45}},
)
DREAM_DECODING = FamilyDefaults(
    score="neg_entropy",
    schedule="dream",
    scores="renormalised",
    proposal=SampledProposal,
    authors={},
    fields={"void-expansion": {"tau_nonvoid": 0.15, "tau_gap": 0.55}},
)
DECODING = {"llada": LLADA_DECODING, "dream": DREAM_DECODING}
