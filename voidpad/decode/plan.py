"""Plans: one rule of each kind, as one value. `presets.py` has the plans that users ask for by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from voidpad.decode.commit import CommitRule, StepsRule, TopK
from voidpad.decode.length import Fixed, LengthRule
from voidpad.decode.propose import EosPenalty, GumbelProposal, ProposeRule
from voidpad.decode.rows import Rows, block_end
from voidpad.decode.rules import MOST_SLOTS, Names, Rule, name_of
from voidpad.decode.stop import StopRule, Vanilla
from voidpad.errors import PlanError
from voidpad.roles import Roles


class CausalBlocks(Rule):
    """How a plan follows a network with block-causal attention, where a token sees its own block and those before it.

    Blocks count from position 0 of the row, not from the end of the prompt. So the last tokens of a prompt may share a
    block with the first slots of the answer, and a canvas need not be a whole number of blocks.
    """

    size: int = Field(ge=1, le=MOST_SLOTS, description="positions in a block of the network's attention")
    lead: bool = Field(
        default=False,
        description="a block's first slot is written before its other slots, alone and greedily",
    )


class Plan(Rule):
    """How to decode: one rule each for length, proposal, commit and stop, the block size, and what is banned.

    Frozen, hashable and picklable, so a plan can be a dict key, a sweep cell and a run record. A rule of the user's own
    is a subclass of `LengthRule`, `ProposeRule`, `CommitRule` or `StopRule`.
    """

    length: LengthRule = Fixed()
    propose: ProposeRule = GumbelProposal()
    commit: CommitRule = TopK()
    stop: StopRule = Vanilla()
    block: int = Field(
        default=32, ge=1, le=MOST_SLOTS, description="block size: slots open for writing at a time"
    )
    ban: Names = Field(default=(), description="roles or ids never chosen, separated by commas")
    mute: Names = Field(default=(), description="roles or ids left out of the scores (overrides `scores`)")
    cut: bool = Field(default=True, description="cut the answer at the first EOS")
    trim: bool = Field(
        default=False, description="cut the canvas right after a committed EOS (approximate; needs stop=eos)"
    )
    fill: bool = Field(
        default=False,
        description="prompts are templates: the masks in them are the slots, everything else stays",
    )
    penalty: EosPenalty | None = None
    causal: CausalBlocks | None = None  # for networks with block-causal attention; None for full attention

    # A block is left after `steps` passes even if masks remain (`DreamLoop` in authors.py).
    leaves_blocks: ClassVar[bool] = False

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for rule in (self.length, self.propose, self.commit, self.stop):
            if "<locals>" in type(rule).__qualname__:
                raise PlanError(
                    f"{name_of(rule)} is defined inside a function, so that it cannot be sent to other processes; "
                    "define it at the top level of a module."
                )
        if self.commit.reads_entropy and not self.propose.gives_entropy:
            raise PlanError(
                f"commit={name_of(self.commit)} reads entropies, which propose={name_of(self.propose)} does not give; "
                "use another rule.",
                field="commit",
            )
        if self.commit.edits and (self.causal is None or not isinstance(self.length, Fixed)):
            raise PlanError(
                f"commit={name_of(self.commit)} edits the open block; it needs block-causal attention "
                "and a canvas of one length.",
                field="commit",
            )
        decays = getattr(self.commit, "position_decay", 0) > 0
        if decays and getattr(self.propose, "score", None) == "neg_entropy":
            raise PlanError(
                "position_decay multiplies scores, and neg_entropy is negative; use score=confidence.",
                field="position_decay",
            )
        if self.trim and not self.stop.ends_early:
            raise PlanError("trim=True drops what follows an EOS, so it needs stop=eos.", field="trim")
        if self.trim and not self.length.allows_trim:
            raise PlanError(
                f"trim=True cuts off the tail by which {name_of(self.length)} sets the length; drop one of them.",
                field="trim",
            )
        if self.fill and (not isinstance(self.length, Fixed) or self.trim or self.causal is not None):
            raise PlanError(
                "fill=True needs a canvas of one length, full attention and no trim: the text behind a gap stays.",
                field="fill",
            )
        if self.causal is not None and self.causal.size % self.block:
            raise PlanError(
                f"block={self.block} does not divide the blocks of {self.causal.size} in which the model's attention "
                f"runs; use {self.causal.size} or a divisor.",
                field="block",
            )
        if self.causal is not None and (self.trim or not isinstance(self.length, Fixed)):
            name = "trim" if self.trim else "length"
            raise PlanError(
                f"{name} has no meaning for block-causal attention, where no slot sees later blocks; "
                "use a canvas of one length without trim.",
                field=name,
            )
        return self

    @property
    def steps(self) -> int:
        """Passes per block."""
        return self.commit.passes(self.block)

    @property
    def limit(self) -> int:
        """The longest canvas this plan allows."""
        return self.length.longest

    def whole_blocks(self, prompt: Tensor, slots: Tensor) -> Tensor:
        """The length (B,) of a canvas for `slots` slots after prompts of these lengths; it ends with a causal block."""
        return slots if self.causal is None else block_end(prompt + slots - 1, self.causal.size) - prompt

    def first_block(self, prompt: Tensor) -> Tensor:
        """Where the first block starts (B,): at the prompt's end, or with causal blocks at the last multiple of `block`
        up to there."""
        return prompt if self.causal is None else prompt // self.block * self.block

    def frontier(self, rows: Rows) -> Tensor:
        """The slots (B, L) that may be written in the next pass: the masked ones of the open block.

        While a block's leading slot is masked, it alone. For a commit rule that edits, all slots of the block.
        """
        if self.commit.edits:
            return rows.slots & rows.in_block(self.block)
        masks, leads = rows.open_masks(self.block), self.leading(rows.offset)
        if leads is None:
            return masks
        return torch.where((masks & leads).any(1, keepdim=True), masks & leads, masks)

    def leading(self, position: Tensor) -> Tensor | None:
        """True at positions that lead a causal block (`CausalBlocks.lead`); None if the plan has no such slots."""
        if self.causal is None or not self.causal.lead:
            return None
        return position % self.causal.size == 0

    def final_prefix(self, rows: Rows) -> Tensor:
        """How many leading canvas slots (B,) no later pass can change."""
        final = self.length.final_prefix(rows)
        if not self.commit.edits:
            return final
        return torch.minimum(final, (rows.block_start - rows.prompt).clamp(min=0))

    def ends(self, roles: Roles) -> tuple[int, ...]:
        """The ids that end an answer: EOS, and for block-causal models every stop id."""
        return (roles.eos,) if self.causal is None else roles.ends

    def for_gaps(self, template: Sequence[int], roles: Roles) -> Self:
        """The plan that fills the masks of a template: all gaps are open together, and no text ends inside one.

        End tokens and VOID are banned, decoding goes on until every gap is full, and nothing is cut. A rule with a
        number of steps keeps its pace: the gaps take as many passes for each slot as a block would.
        """
        masked = [place for place, token in enumerate(template) if token == roles.mask]
        if not masked or not masked[0]:
            raise PlanError(
                "the template needs a gap, and at least one token before the first one.", field="template"
            )
        voids = () if roles.void is None else (roles.void,)
        commit = self.commit
        if isinstance(commit, StepsRule):
            commit = commit.model_copy(update={"steps": -(-len(masked) * self.steps // self.block)})
        return self.replace(
            commit=commit,
            length=Fixed(canvas=len(masked)),
            block=masked[-1] + 1 - masked[0],
            ban=tuple(dict.fromkeys((*roles.ids(self.ban), *roles.ends, *voids))),
            stop=Vanilla(),
            cut=False,
            trim=False,
            fill=True,
        )

    def fitted(self, room: int) -> Self:
        """The plan with its longest canvas cut to `room` slots, rounded down to whole blocks.

        A first canvas that fits the room is kept as it is; one that does not is cut, too.
        """
        whole = room // self.block * self.block
        longest = max(whole, self.length.canvas) if self.length.canvas <= room else whole
        if longest < 1:
            raise PlanError(
                f"block={self.block} does not fit the {room} slots that are left; shorten the prompt.",
                field="block",
            )
        return self if self.limit <= longest else self.replace(length=self.length.bounded(longest))

    @property
    def approximations(self) -> tuple[str, ...]:
        """The names of what makes this plan faster at some risk for quality: its commit rule, and `trim`."""
        commit = self.commit.approximation
        named = name_of(self.commit) if commit == "" else commit
        return tuple(name for name in (named, "trim" if self.trim else None) if name)

    @property
    def patience(self) -> int:
        """Decoding passes without any change after which a row counts as stalled."""
        return self.length.patience or max(self.block, self.steps) + 1
