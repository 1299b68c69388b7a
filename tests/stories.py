"""Two decodes of the built-in models, for tests of traces and of the page: one fills with EOS, one finds its length."""

from dataclasses import replace
from functools import cache

from voidpad import load
from voidpad.diagnose.trace import Recorder, Trace

ASK = "Rosa has 22 ropes.\n(1) Rosa buys 33.\nWhat is left after (1)?"
HOSTILE = "</script><img src=x onerror=window.hacked=1><!--"


loaded_once = cache(load)


def recorded(model: str, plan: str, detail: str, **fields) -> Trace:
    loaded = loaded_once(model)
    recorder = Recorder(loaded, plan_name=plan, detail=detail)
    loaded.generate(ASK, plan, observe=recorder.observe, listen=recorder, **fields)
    return recorder.traces[0]


@cache
def eos_first(length: int = 64, detail: str = "top5") -> Trace:
    """EOS padding, block = canvas, no early stop: EOS is written from the right."""
    return recorded("tiny-eos", "original", detail, canvas=length, block=length, stop="vanilla")


@cache
def expansion(detail: str = "top5") -> Trace:
    """VOID padding: probes of 32, 48 and 64 slots, the last of which also decodes, and a stop at the EOS."""
    return recorded("tiny-void", "void-expansion", detail, canvas=32, block=16, limit=128)


def hostile() -> Trace:
    """A decode with markup wherever a trace holds text."""
    trace = eos_first(16)
    odd = dict(trace.pieces) | dict.fromkeys(trace.result.tokens, HOSTILE)
    first = replace(trace.passes[0], signal={HOSTILE: 0.5})
    prompt = replace(trace.header.prompt, text=HOSTILE)
    head = replace(trace.header, model=HOSTILE, plan_name=HOSTILE, family=HOSTILE, prompt=prompt)
    result = replace(trace.result, text=HOSTILE, stop_reason=HOSTILE)
    odd[trace.header.prompt.ids[0]] = "\u2028\u2029 \ud800 \x00 ${data} $script &amp; ]]>"
    return Trace(0, head, (first, *trace.passes[1:]), result, odd)
