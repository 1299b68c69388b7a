"""The penalty on EOS: what is taken off its logit before tokens are proposed and scored.

Everything else about decoding sees the logits as the network gave them.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from voidpad.decode.rules import Rule


class EosPenalty(Rule):
    """Lower the logit of EOS, in a measure that may depend on how much of the row's canvas is masked.

    `dream-coder` is nearly a ban while the canvas is empty and nothing once it is full (spec rivals 3.2).
    """

    eos_penalty: float = Field(
        default=3.0, ge=0, le=1e6, description="taken off the logit of EOS before tokens are chosen"
    )
    eos_annealing: Literal["constant", "linear", "dream-coder"] = Field(
        default="dream-coder", description="constant, linear or dream-coder: how the penalty fades"
    )

    def __call__(self, masked: Tensor) -> Tensor:
        """The penalty (N,) for slots in rows of which this share (N,) is masked."""
        if self.eos_annealing == "constant":
            weight = torch.ones_like(masked)
        elif self.eos_annealing == "linear":
            weight = masked
        else:
            weight = -torch.log(1 - masked + 1e-3)
        return self.eos_penalty * weight
