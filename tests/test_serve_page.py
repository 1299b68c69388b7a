"""The server's page in a real browser: ask, watch the canvas fill, compare two plans, save the trace."""

import json

import pytest

from serving import serving
from test_viewer_browser import chromium  # noqa: F401  a fixture
from voidpad.diagnose.trace import read
from voidpad.models import random_model


@pytest.fixture(scope="module")
def running():
    fields = {"canvas": 24, "block": 8}
    with serving(
        random_model("llada", kv_heads=2, seed=2), plan="void", fields=fields, name="mine", timeout=600.0
    ) as server:
        yield server


@pytest.fixture
def tab(chromium, running):  # noqa: F811
    said, fetched = [], []
    context = chromium.new_context(viewport={"width": 1500, "height": 950}, reduced_motion="reduce")
    page = context.new_page()
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(running.url)
    page.wait_for_selector("html[data-ready]", timeout=120_000)
    yield page
    context.close()
    # Chromium notes a refused request on its own; the page itself says nothing there.
    assert [line for line in said if not line.startswith("Failed to load resource")] == []
    assert all(url.startswith((running.url, "blob:", "data:")) for url in fetched), fetched


def answered(tab, count):
    tab.wait_for_selector(f'html[data-answered="{count}"]', timeout=300_000)


def test_a_person_asks_and_sees_the_canvas_and_the_answer(tab, tmp_path):
    tab.fill("#prompt", "two and two")
    tab.keyboard.press("Enter")
    answered(tab, 1)
    assert tab.locator(".talk .user").inner_text() == "two and two"
    answer = tab.locator(".talk .model span").inner_text()
    assert answer
    assert "passes" in tab.locator(".talk .model small").inner_text()
    assert tab.locator(".pane").count() == 1
    assert tab.locator(".slot.word").count() > 0
    assert "mine" not in tab.locator(".trouble").inner_text()
    with tab.expect_download() as download:
        tab.click("#save")
    download.value.save_as(tmp_path / "trace.jsonl")
    [trace] = read(tmp_path / "trace.jsonl")
    assert trace.result.text.strip() == answer.strip()
    assert (
        len(trace.passes)
        == trace.result.passes_decode + trace.result.passes_probe - trace.result.passes_shared
    )


def test_two_plans_side_by_side_and_a_chat_of_several_turns(tab, tmp_path):
    tab.fill("#prompt", "how many")
    tab.click("#settings summary")
    tab.check("#compare")
    tab.click("#go")
    answered(tab, 1)
    assert tab.locator(".pane").count() == 2
    assert tab.locator(".talk .model").count() == 2
    with tab.expect_download() as download:
        tab.click("#save")
    download.value.save_as(tmp_path / "both.jsonl")
    assert [trace.header.plan_name for trace in read(tmp_path / "both.jsonl")] == ["void", "original"]
    tab.uncheck("#compare")
    tab.fill("#prompt", "and then")
    tab.click("#go")
    answered(tab, 2)
    assert tab.locator(".talk .user").count() == 2
    tab.click("#fresh")
    assert tab.locator(".talk li").count() == 0


def test_a_refusal_is_shown_and_the_form_has_the_plans_fields(tab):
    names = tab.locator("#plan-a [data-field]").evaluate_all("all => all.map((one) => one.dataset.field)")
    assert {"canvas", "block", "threshold", "temperature"} <= set(names)
    assert not {"cut", "scores", "mute"} & set(names)
    tab.click("#settings summary")
    tab.fill('#plan-a [data-field="block"]', "7")
    tab.fill("#prompt", "why")
    tab.evaluate("document.getElementById('ask').noValidate = true")
    tab.click("#go")
    tab.wait_for_selector("#trouble:not([hidden])", timeout=120_000)
    assert "block=7" in tab.locator("#trouble").inner_text()
    assert (
        tab.locator("#talk li").count() == 0
    )  # the message is still in its field, and nothing of the turn stays
    assert tab.locator("#prompt").input_value()


def test_slots_that_follow_from_a_constraint_have_a_colour_of_their_own(tab):
    tab.click("#settings summary")
    tab.fill("#schema", '{"type": "multiple"}')
    tab.fill("#prompt", "why")
    tab.keyboard.press("Enter")
    tab.wait_for_selector("#trouble:not([hidden])", timeout=120_000)  # the schema was sent
    tab.fill("#schema", "")

    def marked(route):
        """The answer, with every slot of its first pass marked as forced."""
        events = route.fetch().text().split("\n\n")
        for place, event in enumerate(events):
            if '"type":"pass"' in event:
                chunk = json.loads(event.removeprefix("data: "))
                record = chunk["voidpad"]["record"]
                record["forced"] = [slot for slot, _, _ in record["commits"]]
                events[place] = "data: " + json.dumps(chunk)
                break
        route.fulfill(body="\n\n".join(events), content_type="text/event-stream")

    tab.route("**/v1/chat/completions", marked)
    tab.fill("#prompt", "why")
    tab.keyboard.press("Enter")
    answered(tab, 2)
    assert tab.locator(".grid .slot.forced").count() > 0
    assert "follows from the constraint" in tab.locator("#legend").inner_text()


def test_an_example_is_asked_with_one_click(tab):
    first = tab.locator("#examples button").first
    text = first.get_attribute("title")
    first.click()
    answered(tab, 1)
    assert tab.locator(".talk .user").inner_text().strip() == text.strip()
    assert tab.locator("#examples").is_hidden()


def test_on_a_phone_canvas_answer_and_message_field_are_in_view_and_nothing_is_cut_off(tab):
    tab.set_viewport_size({"width": 390, "height": 844})
    assert tab.locator("#bar").is_hidden()  # there is nothing to play yet
    tab.locator("#examples button").first.click()
    answered(tab, 1)
    # The page draws the answer anew and scrolls when it ends: look until everything is there.
    names = ("#bar", "#panes .grid", "#panes .text", "#ask", "#talk")
    for _ in range(200):
        boxes = [tab.locator(name).bounding_box() for name in names]
        if all(boxes) and boxes[2]["y"] + boxes[2]["height"] <= min(boxes[3]["y"], boxes[4]["y"]):
            break
        tab.wait_for_timeout(100)
    bar, canvas, answer, form, talk = boxes
    assert 0 <= bar["y"] < canvas["y"] < 422
    assert canvas["y"] < answer["y"] < answer["y"] + answer["height"] <= min(form["y"], talk["y"])
    assert form["y"] + form["height"] == pytest.approx(844, abs=1)
    assert tab.locator(".charts").is_hidden()
    tab.click(".plots summary")
    tab.wait_for_function("document.querySelector('.charts svg')?.getBoundingClientRect().width > 200")
    assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert tab.evaluate(
        "(({ scrollHeight, clientHeight }) => scrollHeight <= clientHeight)(document.querySelector('.text'))"
    )


def test_a_refused_key_says_where_to_enter_one_and_leaves_the_examples(tab):
    tab.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(status=401, json={"error": {"message": "Authorization: Bearer KEY"}}),
    )
    tab.locator("#examples button").first.click()
    tab.wait_for_selector("#trouble:not([hidden])", timeout=120_000)
    assert "API key" in tab.locator("#trouble").inner_text()
    assert "Bearer" not in tab.locator("#trouble").inner_text()
    assert tab.locator("#key").is_visible()
    assert tab.locator("#examples").is_visible()


def test_gaps_of_a_text_are_filled_on_the_canvas(tab, tmp_path, running):
    tab.fill("#prompt", "one [[gap:4]] two [[gap:2]].")
    tab.keyboard.press("Enter")
    answered(tab, 1)
    wanted = running.engine.served.model.fill("one [[gap:4]] two [[gap:2]].", "void", canvas=24, block=8)
    assert tab.locator(".talk .model span").text_content() == wanted.text
    assert tuple(tab.locator(".talk mark").all_text_contents()) == wanted.gaps
    with tab.expect_download() as download:
        tab.click("#save")
    download.value.save_as(tmp_path / "trace.jsonl")
    [trace] = read(tmp_path / "trace.jsonl")
    mask = trace.header.roles.mask
    assert sum(token == mask for token in trace.header.template) == 6
    assert tab.locator(".grid .slot.prompt").count() == len(trace.header.template) - 6
