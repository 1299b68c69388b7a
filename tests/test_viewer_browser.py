"""The replay page in a real browser: it shows what was recorded, by keyboard too, and asks nobody for anything."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from stories import HOSTILE, eos_first, expansion, hostile
from test_trace import PLANS, filled
from voidpad.decode.outcome import Result
from voidpad.diagnose.page import Named, page
from voidpad.diagnose.trace import Recorder, Trace
from voidpad.models import random_model

FLAGS = """--no-sandbox --headless --disable-gpu --disable-background-networking --disable-component-update
--disable-sync --no-first-run"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    sync = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed (pip install playwright)"
    )
    binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if binary is None:
        pytest.skip("no Chromium to test the page in: `make browser` installs it")
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=binary, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def show(chromium, tmp_path) -> Iterator[Callable[..., Any]]:
    """Opens traces as a page; afterwards the page must have said and fetched nothing."""
    said, fetched, contexts = [], [], []

    def opened(*traces: Trace, size=(1280, 900), scheme="light", name: str | None = None) -> Any:
        path = tmp_path / "page.html"
        shown = [Named(name or f"{trace.header.model}.jsonl", trace) for trace in traces]
        path.write_text(page(shown), encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: said.append(message.text))
        tab.on("pageerror", lambda error: said.append(str(error)))
        tab.on("request", lambda request: fetched.append(request.url))
        tab.goto(path.as_uri())
        tab.wait_for_selector("html[data-ready]", timeout=120_000)
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in fetched if not url.startswith(("file:///", "data:"))] == []
    assert all(url.endswith("page.html") for url in fetched if url.startswith("file:"))


def tiles(tab: Any, pane: int = 0) -> list[str]:
    """What the canvas shows, slot by slot; a dot for a mask, nothing beyond the canvas."""
    return tab.evaluate(
        """pane => [...document.querySelectorAll('.pane')[pane].querySelectorAll('.grid .slot')]
            .filter(cell => !cell.classList.contains('out'))
            .map(cell => cell.classList.contains('mask') || cell.classList.contains('spare')
                ? '·' : cell.textContent)""",
        pane,
    )


def expected(trace: Trace, position: int) -> list[str]:
    """The same from the trace: after the position's commits, before its edits."""
    canvases = [trace.start, *trace.canvases()]
    canvas = canvases[max(0, position - 1)].copy()
    for slot, token, _ in trace.passes[position - 1].commits if position else ():
        canvas[slot] = token
    return [name_of(trace, token) for token in canvas.tolist()]


def name_of(trace: Trace, token: int) -> str:
    """What the page calls a token."""
    special = {trace.header.roles.mask: "·", trace.header.roles.eos: "EOS", trace.header.roles.void: "VOID"}
    special |= {token: f"R{i}" for i, token in enumerate(trace.header.roles.rainbow) if token not in special}
    text = special.get(token) or trace.pieces[token]
    return text.strip() or ("∅" if not text else "↵" if "\n" in text else "␣")


def until(tab: Any, condition: str) -> None:
    """Playwright's own waiting evaluates text inside the page, which the page's policy forbids."""
    end = time.monotonic() + 120
    while not tab.evaluate(condition):
        assert time.monotonic() < end, f"never true: {condition}"
        tab.wait_for_timeout(20)


def press(tab: Any, *keys: str) -> None:
    for key in keys:
        tab.keyboard.press(key)


def changing(name: str) -> Trace:
    """A decode whose canvas changes its length."""
    model = random_model(vocab=64, seed=3)
    recorder = Recorder(model, plan_name=name, detail="top5")
    model.generate("hi", model.plan(name, **PLANS[name]), observe=recorder.observe, listen=recorder)
    return recorder.traces[0]


DECODES = {
    "fixed canvas": lambda: eos_first(20),
    "daedal": lambda: changing("daedal"),
    "void-expansion": lambda: changing("void-expansion"),
    "gaps in a text": lambda: filled(random_model(vocab=64, seed=3))[1],
}


@pytest.mark.parametrize("name", DECODES)
def test_every_step_shows_the_recorded_canvas(show, name):
    trace = DECODES[name]()
    tab = show(trace)
    press(tab, "Home")
    for position in range(len(trace.passes) + 1):
        assert tiles(tab) == expected(trace, position)
        press(tab, "ArrowRight")
    if trace.header.template:
        tab.locator(".grid .slot.prompt").nth(0).hover()
        assert "fixed text" in tab.locator("#card").inner_text()


def test_the_verdict_and_the_counts(show):
    trace = expansion()
    tab = show(trace)
    answer, decodes = len(trace.result.tokens) - 1, trace.result.passes_decode
    assert tab.locator("h2").inner_text().split() == ["tiny-void", "void-expansion"]
    told = tab.locator(".verdict").inner_text().replace("\n", " ")
    assert "Stopped at its EOS" in told
    counts = f"{decodes} decode, 3 probe, 1 shared"
    assert f"{decodes + 2} passes ({counts}) · canvas 64 · answer {answer} tokens" in told
    press(tab, "End")
    readings = tab.locator("figcaption b").all_inner_texts()
    assert readings == [f"slot {answer}", str(trace.passes[-1].masks)]
    assert tab.locator(".text").inner_text() == trace.result.text


def test_probes_are_rows_before_the_decode(show):
    tab = show(expansion())
    rows = tab.locator(".probe").all_inner_texts()
    assert [re.search(r"(\d+) slots", row).group(1) for row in rows] == ["32", "48", "64"]
    assert f"s_nonvoid {expansion().passes[0].signal['s_nonvoid']:.3f}" in rows[0]
    widths = [box["width"] for box in (strip.bounding_box() for strip in tab.locator(".track canvas").all())]
    assert widths[0] * 2 == pytest.approx(widths[2], rel=0.02)
    press(tab, "Home", "ArrowRight", "ArrowRight")
    assert tab.locator("#clock").inner_text() == "probe 2 of 2"  # the third decodes as well
    assert len(tiles(tab)) == 48
    assert "then 16 slots added" in tab.locator(".now").inner_text()
    tab.locator(".probe").nth(0).click()
    assert len(tiles(tab)) == 32


def test_playing_runs_to_the_end_and_pauses(show):
    tab = show(eos_first(40))
    tab.select_option("#speed", "2")  # twenty seconds: a busy machine still pauses in the middle
    tab.locator("body").click(position={"x": 5, "y": 5})
    press(tab, " ")
    until(tab, "document.querySelector('#time').value > 3")
    press(tab, " ")
    held = tab.input_value("#time")
    assert 3 < int(held) < 40
    assert f"pass {held} of 40" in tab.locator("#status").inner_text()
    tab.select_option("#speed", "40")
    tab.locator("#play").click()
    until(tab, "document.querySelector('#time').value == 40")
    until(tab, "document.querySelector('#play').ariaLabel == 'Play'")


FIELD = {"2": "top", "3": "p_eos", "4": "p_void"}


def test_colour_is_the_recorded_probability(show):
    trace = expansion()
    tab = show(trace)
    press(tab, *["ArrowRight"] * 12)
    for key in FIELD:
        press(tab, key)
        check_colours(tab, trace, FIELD[key])


def check_colours(tab, trace, field):
    shown = tab.evaluate(
        """() => {
            const parts = css => css.match(/\\d+/g).slice(0, 3).map(Number);
            const ends = getComputedStyle(document.querySelector('.scale i')).backgroundImage;
            const [low, high] = ends.match(/rgb\\(.*?\\)/g).map(parts);
            const far = low.map((v, i) => Math.abs(high[i] - v)), channel = far.indexOf(Math.max(...far));
            const share = v => (v[channel] - low[channel]) / (high[channel] - low[channel]);
            return [...document.querySelectorAll('.grid .slot.heat')].map(cell =>
                [cell.slot_, share(parts(getComputedStyle(cell).backgroundColor))]);
        }"""
    )
    masked = np.flatnonzero(list(trace.canvases())[11] == trace.header.roles.mask)
    values = getattr(trace.passes[11], field)
    assert len(shown) == 64
    found = dict(shown)
    assert [found[slot] for slot in masked] == pytest.approx([values[slot] for slot in masked], abs=0.012)
    (slot, _, _), *_ = trace.passes[8].commits  # a committed slot keeps what its own pass said
    assert found[slot] == pytest.approx(getattr(trace.passes[8], field)[slot], abs=0.012)


def test_colours_a_trace_cannot_give_are_off(show):
    tab = show(eos_first(12, "commits"))
    off = tab.evaluate("() => [...document.querySelectorAll('#modes input')].map(input => input.disabled)")
    assert off == [False, False, True, True]
    press(tab, "3")
    assert tab.evaluate("document.documentElement.dataset.mode") == "state"
    assert "trace_detail" in tab.locator("#modes label").nth(2).get_attribute("title")
    assert tab.locator("#guess").is_hidden()


def test_two_traces_run_in_step_from_where_decoding_starts(show):
    left, right = eos_first(64), expansion()
    tab = show(left, right, size=(1400, 1000))
    press(tab, "Home")
    assert (tiles(tab, 0), len(tiles(tab, 1))) == (["·"] * 64, 32)
    for _ in range(2 + 10):
        press(tab, "ArrowRight")
    assert tiles(tab, 0) == expected(left, 10)
    assert tiles(tab, 1) == expected(right, 12)
    assert tab.locator(".now b").all_inner_texts() == [
        "pass 10 of 64",
        f"pass 10 of {right.result.passes_decode}",
    ]
    press(tab, "End")
    assert tiles(tab, 1) == expected(right, len(right.passes))
    assert len(tab.locator(".ask").all()) == 1, "the same prompt is shown once"
    tab.select_option("#right", "-1")
    assert tab.locator(".pane").count() == 1
    tab.select_option("#left", "1")
    assert tab.locator("h2").inner_text().startswith("tiny-void")


def test_a_slot_tells_its_candidates_by_pointer_and_by_key(show):
    trace = expansion()
    tab = show(trace)
    press(tab, *["ArrowRight"] * 13)
    step = trace.passes[12]
    slot = int(np.flatnonzero(list(trace.canvases())[12] == trace.header.roles.mask)[0])
    tab.locator(".grid .slot").nth(slot).hover()
    ids = step.top5_ids.reshape(-1, 5)[slot]
    bars = [row.split("\n")[0] for row in tab.locator("#card li").all_inner_texts()]
    assert bars == [name_of(trace, int(token)) for token in ids]
    assert f"slot {slot}" in tab.locator("#card").inner_text()
    tab.mouse.move(2, 2)
    assert tab.locator("#card").is_hidden()
    tab.locator(".grid .slot").nth(0).focus()
    press(tab, "ArrowRight", "ArrowRight", "ArrowDown")
    at = tab.evaluate("document.activeElement.slot_")
    assert at == 2 + tab.evaluate("document.querySelector('.row').querySelectorAll('.slot').length")
    assert f"slot {at}" in tab.locator("#card").inner_text()
    assert tab.evaluate("document.activeElement.getAttribute('aria-describedby')") == "card"
    here = tab.input_value("#time")
    press(tab, ".")
    assert int(tab.input_value("#time")) == int(here) + 1
    press(tab, "Escape")
    assert tab.locator("#card").is_hidden()


def test_keys_move_through_time(show):
    tab = show(eos_first(30))
    time_of = lambda: int(tab.input_value("#time"))  # noqa: E731
    press(tab, "End")
    assert time_of() == 30
    press(tab, "ArrowLeft", "ArrowLeft", ",")
    assert time_of() == 27
    press(tab, "PageUp")
    assert time_of() == 17
    press(tab, "Home", "ArrowRight")
    assert time_of() == 1
    tab.locator("#time").focus()
    press(tab, "ArrowRight", "End")
    assert time_of() == 30
    last = eos_first(30).passes[-1].first_eos
    assert f"0 masks left, first EOS at slot {last}" in tab.locator("#time").get_attribute("aria-valuetext")


def test_the_page_reads_without_eyes(show):
    tab = show(eos_first(16), expansion())
    named_all = tab.evaluate(
        """() => [...document.querySelectorAll('button, select, input, [role=grid], [role=img], [role=gridcell]')]
            .filter(node => node.checkVisibility())
            .filter(node => !(node.ariaLabel || node.textContent.trim() || node.labels?.length))
            .map(node => node.outerHTML)"""
    )
    assert named_all == []
    stops = tab.evaluate(
        "() => [...document.querySelectorAll('.grid')].map(g => g.querySelectorAll('[tabindex=\"0\"]').length)"
    )
    assert stops == [1, 1], "a canvas is one tab stop"
    assert tab.locator("#status").get_attribute("aria-live") == "polite"
    press(tab, "ArrowRight")
    assert "tiny-eos, original, start" in tab.locator("#status").inner_text()
    assert "probe 1 of 2" in tab.locator("#status").inner_text()
    labels = tab.locator(".pane").nth(0).locator("[role=gridcell]").nth(0).get_attribute("aria-label")
    assert labels == "slot 0: masked"


CONTRAST = """() => {
  const paint = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgb = colour => { paint.clearRect(0, 0, 1, 1); paint.fillStyle = colour; paint.fillRect(0, 0, 1, 1);
    return [...paint.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = node => { for (; node; node = node.parentElement) {
    const c = rgb(getComputedStyle(node).backgroundColor); if (c[3] === 255) return c; } return [255, 255, 255]; };
  const texts = [...document.querySelectorAll('.grid .slot span, .token, .verdict *, .origin, .legend span, .now *,'
    + ' .probe *, figcaption, .keys, .chip, h1 span, .gap, #clock, .none, .modes span')];
  return texts.filter(node => node.textContent.trim() && node.checkVisibility()).map(node => {
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    return [(a + 0.05) / (b + 0.05), node.className, node.textContent];
  }).sort((a, b) => a[0] - b[0])[0];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_in_both_themes(show, scheme):
    tab = show(eos_first(40), expansion(), scheme=scheme, size=(1500, 1000))
    for key in "1234":
        for jump in ("Home", *["PageDown"] * 4, "End"):
            press(tab, key, jump)
            worst = tab.evaluate(CONTRAST)
            assert worst[0] >= 4.5, (scheme, key, jump, worst)


def test_a_narrow_screen_needs_no_sideways_scrolling(show):
    tab = show(eos_first(64), expansion(), size=(390, 800))
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390


def test_model_text_is_only_text(show):
    tab = show(hostile(), name=HOSTILE)
    press(tab, "End")
    assert tab.evaluate("window.hacked") is None
    assert tab.locator("img").count() == 0
    assert HOSTILE in tiles(tab)
    assert HOSTILE in tab.locator("h2").inner_text()
    tab.locator(".grid .slot").nth(0).hover()
    assert "img src=x" in tab.locator("#card").inner_text()
    assert tab.evaluate("document.scripts.length") == 2


def test_a_decode_of_no_passes_is_shown(show):
    result = Result(key=0, text="", tokens=[], ids=[], passes_decode=0, stop_reason="cancelled")
    tab = show(Trace(0, eos_first(8, "commits").header, (), result, {}))
    assert "Cancelled" in tab.locator(".verdict").inner_text()
    press(tab, "ArrowRight", "End", " ")


@pytest.mark.parametrize(("scheme", "white"), [("light", 255), ("dark", 18)])
def test_a_report_fits_a_phone_and_its_plots_follow_the_theme(chromium, tmp_path, scheme, white):
    """What `voidpad demo` and `voidpad report` write."""
    from PIL import Image

    from voidpad.experiments.report.pages import html_page

    wide = "|" + "column |" * 30 + "\n|" + "---|" * 30 + "\n|" + "1234 |" * 30
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" width="300" height="200"/>'
    (tmp_path / "report.html").write_text(
        html_page("t", f"![a plot](plot.svg)\n\n{wide}\n", {"plot.svg": svg})
    )
    context = chromium.new_context(
        viewport={"width": 390, "height": 844}, color_scheme=scheme, is_mobile=True, device_scale_factor=1
    )
    tab = context.new_page()
    tab.goto((tmp_path / "report.html").as_uri())
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    tab.locator("img").screenshot(path=tmp_path / "plot.png")
    assert Image.open(tmp_path / "plot.png").convert("L").getpixel((50, 50)) == pytest.approx(white, abs=3)
    context.close()
