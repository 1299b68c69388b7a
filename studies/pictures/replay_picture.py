"""A picture of the replay page, for the README and the docs: needs Playwright and Chromium (`make browser`).

The README's: `python studies/pictures/replay_picture.py eos.jsonl void.jsonl --at 40 --out docs/img/replay.png`.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from PIL import Image
from playwright.sync_api import sync_playwright

from voidpad.diagnose.page import Named, page
from voidpad.diagnose.trace import read

COLOURS = {"state": "1", "confidence": "2", "eos": "3", "void": "4"}


def picture(
    traces: Annotated[list[Path], typer.Argument(help="one or two trace files")],
    out: Annotated[Path, typer.Option(help="the PNG to write")],
    at: Annotated[int, typer.Option(help="decoding pass to show; -1 is the end")] = -1,
    colour: Annotated[str, typer.Option(help=", ".join(COLOURS))] = "state",
    theme: Annotated[str, typer.Option(help="light or dark")] = "light",
    width: Annotated[int, typer.Option(help="of the window; the height follows")] = 1400,
    scale: Annotated[float, typer.Option(help="pixels of the picture for one of the window")] = 1.1,
) -> None:
    """Open the traces, go to a pass, and take the whole page."""
    shown = [Named(path.name, trace) for path in traces for trace in read(path)]
    with TemporaryDirectory() as folder, sync_playwright() as play:
        file = Path(folder) / "page.html"
        file.write_text(page(shown), encoding="utf-8")
        args = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=args)
        window = {"width": width, "height": 700}
        tab = browser.new_page(viewport=window, color_scheme=theme, device_scale_factor=scale)
        tab.goto(file.as_uri())
        tab.wait_for_selector("html[data-ready]")
        tab.locator("#time").fill(str(at if at >= 0 else tab.locator("#time").get_attribute("max")))
        tab.keyboard.press(COLOURS[colour])
        # As tall as the page, so that the playback bar stands below it and not across it.
        height = tab.evaluate("document.querySelector('main').scrollHeight + 160")
        tab.set_viewport_size({"width": width, "height": height})
        tab.evaluate("document.activeElement.blur()")
        out.parent.mkdir(parents=True, exist_ok=True)
        tab.wait_for_timeout(300)
        tab.screenshot(path=out)
        browser.close()
    shrink(out)


def shrink(path: Path) -> None:
    """The page has few colours, so a palette is enough."""
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


if __name__ == "__main__":
    typer.run(picture)
