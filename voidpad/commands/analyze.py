"""`voidpad analyze`: why answers come out short. Each analysis has a module of its own."""

from __future__ import annotations

import typer

from voidpad.commands.analyze_attention import attention
from voidpad.commands.analyze_overflow import overflow
from voidpad.commands.analyze_prior import eos_prior
from voidpad.commands.analyze_theory import theory

app = typer.Typer(help="See why: EOS priors, overflow, attention, the theorems.", no_args_is_help=True)
app.command("eos-prior")(eos_prior)
app.command()(overflow)
app.command()(attention)
app.command()(theory)
