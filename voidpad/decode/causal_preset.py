"""Presets of block-causal families: their own decoding loops, as plans. Each family's file lists its presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as parts_of
from typing import Any

from voidpad.decode.causal import CausalBlocks
from voidpad.decode.fields import PlanField, settings_of
from voidpad.decode.length import LengthRule, RoundedUp
from voidpad.decode.plan import STEPS, FamilyDefaults, Plan, Preset
from voidpad.decode.stop import BetweenBlocks, ends_termination
from voidpad.decode.switches import made


@dataclass(frozen=True)
class CausalPreset(Preset):
    """A preset for networks with block-causal attention, made for the block size of the checkpoint.

    The stop rule is part of the method: a row ends at any of the model's stop ids, with `finish` after the block that
    holds one, else as soon as nothing before it is masked.
    """

    length: type[LengthRule] = RoundedUp
    small: int | None = None  # size of the blocks that are written one after the other inside a causal block
    lead: bool = False
    finish: bool = True

    def fields(self, family: FamilyDefaults) -> list[PlanField]:
        assert self.commit is not None
        own = {one.name: one for one in settings_of(Plan)}
        block = replace(own["block"], default=min(self.small or family.causal_block, family.causal_block))
        steps = [STEPS] if any(one.name == "steps" for one in parts_of(self.commit)) else []
        rules = [*settings_of(self.commit), *settings_of(family.proposal)]
        return [block, *settings_of(self.length), *steps, own["ban"], *rules, own["cut"]]

    def build(self, family: FamilyDefaults, values: Mapping[str, Any]) -> Plan:
        assert self.commit is not None
        size = family.causal_block
        commit = made(self.commit, values)
        return Plan(
            made(self.length, values),
            made(family.proposal, values),
            replace(commit, steps=values["steps"]) if "steps" in values else commit,
            BetweenBlocks(size) if self.finish else ends_termination,
            values["block"],
            values["ban"],
            cut=values["cut"],
            causal=CausalBlocks(size, self.lead),
        )
