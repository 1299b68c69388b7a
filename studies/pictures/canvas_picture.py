"""The README's moving picture: one question, decoded with EOS padding and with VOID padding at block = canvas.

    python -m studies.pictures.canvas_picture docs/img/canvas.svg

An SVG that moves by itself: every slot shows its token from the pass on in which it was written.
"""

import sys
from html import escape
from pathlib import Path

import voidpad

QUESTION = (
    "Write a function wimea(x) for a list x. (1) multiply each item by 4 (2) scale each item by 5 "
    "Return the maximum after (2)."
)
PANELS = (
    ("tiny-instruct", "original", "EOS padding: the tail fills with EOS first, and the answer has no room"),
    ("tiny-void", "void", "VOID padding: the words come first, and EOS ends them"),
)
CANVAS, COLUMNS = 96, 16
WIDTH, HEIGHT, GAP, TITLE = 50, 20, 3, 26  # of a slot, in pixels
PASS, PAUSE = 0.09, 3.0  # seconds


def slots(name: str, plan: str) -> tuple[list[tuple[int, int, str, bool]], int]:
    """Slot, pass, text and whether it is EOS for every token that was written; and the number of passes."""
    model = voidpad.load(name)
    found, passes = [], 0
    for passes, step in enumerate(model.stream(QUESTION, plan, canvas=CANVAS, block=CANVAS), 1):
        for slot, token, _ in step.written(0):
            text = model.tokenizer.decode([token], skip_special_tokens=False).replace("\n", "⏎")
            end = token == model.roles.eos
            found.append((slot, passes, "EOS" if end else text, end))
    return found, passes


def panel(name: str, plan: str, title: str, top: int) -> tuple[str, int]:
    """The panel's SVG and its height. Its own clock starts again after the pause."""
    written, passes = slots(name, plan)
    total = CANVAS * PASS + PAUSE  # the same for both panels, so that they start together
    parts = [f'<text x="0" y="{top + 15}" class="t">{escape(title)} ({name}, {passes} passes)</text>']
    seen = {slot: rest for slot, *rest in written}
    for slot in range(CANVAS):
        x = slot % COLUMNS * (WIDTH + GAP)
        y = top + TITLE + slot // COLUMNS * (HEIGHT + GAP)
        parts.append(f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="3" class="m"/>')
        if slot not in seen:
            continue
        at, text, end = seen[slot]
        share = at * PASS / total
        fit = f' textLength="{WIDTH - 4}" lengthAdjust="spacingAndGlyphs"' if len(text) > 6 else ""
        parts.append(
            f'<g class="{"e" if end else "w"}"><rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="3"/>'
            f'<text x="{x + WIDTH / 2}" y="{y + 14}" text-anchor="middle" xml:space="preserve"{fit}>'
            f"{escape(text)}</text>"
            f'<animate attributeName="opacity" values="0;1;1" keyTimes="0;{share:.4f};1" calcMode="discrete" '
            f'dur="{total:.2f}s" repeatCount="indefinite"/></g>'
        )
    return "\n".join(parts), TITLE + (CANVAS // COLUMNS) * (HEIGHT + GAP) + 12


def main(path: str) -> None:
    top, parts = 0, []
    for name, plan, title in PANELS:
        drawn, height = panel(name, plan, title, top)
        parts.append(drawn)
        top += height
    style = (
        "text{font:11px ui-monospace,Menlo,Consolas,monospace;fill:#1b1f24}"
        ".t{font:14px system-ui,sans-serif;fill:#57606a}"
        "@media(prefers-color-scheme:dark){.t{fill:#c9d1d9}}"
        ".m{fill:#d0d7de}.w rect{fill:#9fd8be}.e rect{fill:#f0b4ae}"
    )
    width = COLUMNS * (WIDTH + GAP)
    Path(path).write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">'
        f"<style>{style}</style>\n" + "\n".join(parts) + "\n</svg>\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main(sys.argv[1])
