"""Rules of a user's own: docs/extend.md runs as it stands, and only the command line loads a module by name."""

import contextlib
import io
import json
import re
import sys
from pathlib import Path

import pytest

from voidpad.decode import plan
from voidpad.errors import ConfigError, PlanError
from voidpad.evaluate import EvalConfig, Resources
from voidpad.experiments.sweep import run_local
from voidpad.experiments.sweep_recipe import SweepCell, parse
from voidpad.models import Model, load

PAGE = (Path(__file__).parents[1] / "docs" / "extend.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.M | re.S)


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """my_rules.py of the page, importable from the current folder, as module."""
    parts = [block for block in blocks("python") if block.startswith("# my_rules.py")]
    assert len(parts) == 5
    (tmp_path / "my_rules.py").write_text("\n\n".join(parts), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("my_rules", None)
    import my_rules

    yield my_rules
    sys.modules.pop("my_rules", None)


@pytest.fixture(scope="module")
def model() -> Model:
    return load("tiny-void")


def test_the_pages_python_runs(rules):
    [usage] = [block for block in blocks("python") if not block.startswith("# my_rules.py")]
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        exec(compile(usage, "extend.md", "exec"), {})
    assert "('leftmost',)\n" in told.getvalue()
    assert told.getvalue().rstrip().endswith(("rule", "eos"))


def test_the_pages_commands_run(rules, voidpad, model):
    [commands] = blocks("console")
    generate, evaluate = (line.partition(" ")[2] for line in commands.splitlines())
    ran = voidpad(generate, "--json")
    assert ran.status == 0, ran.err
    [wanted] = model.generate("What is 2 plus 3?", rules.growing)
    assert ran.rows[0]["tokens"] == wanted.tokens
    assert "leftmost" in ran.out
    ran = voidpad(evaluate, "--allow-code-execution")
    assert ran.status == 0, ran.err
    config = json.loads(Path("run/config.json").read_text())
    assert config["config"]["plan"]["commit"] == {"rule": "my_rules:Leftmost", "count": 2}


def test_the_rules_of_the_page_do_what_it_says(rules, model):
    prompts = ["What is 2 plus 3?", "Write something long."]
    for answer in model.generate(prompts, rules.growing):
        assert answer.canvas <= 64
        assert answer.stop_reason in ("eos", "full")
    ended = model.generate(prompts, rules.short.replace(ban=("void", "eos")))
    assert [answer.stop_reason for answer in ended] == ["rule"] * 2
    assert all(len(answer.tokens) >= 8 and model.roles.mask not in answer.tokens for answer in ended)
    favoured = rules.short.replace(propose=rules.Favour(tokens=(20,), bonus=1e6))
    assert all(set(answer.tokens) == {20} for answer in model.generate(prompts, favoured))
    with pytest.raises(PlanError) as refused:
        rules.Leftmost(count=0)
    assert refused.value.field == "count"
    room = model.context - len(model.encode(prompts[0]))
    longest = rules.growing.replace(length=rules.GrowWhenFull(limit=4096))
    assert model.fit(model.encode(prompts[0]), longest).limit <= room


def test_a_sweep_cell_takes_a_plan(rules, tmp_path):
    settings = EvalConfig(model="tiny-void", tasks=("tiny_write",), plan=rules.growing, limit=1)
    cells = [
        SweepCell("tiny-void", "growing", settings),
        SweepCell("tiny-void", "void", settings.updated(plan="void")),
    ]
    assert cells[0].id != cells[1].id
    resources = Resources(allow_code_execution=True)
    [ended] = run_local(cells[:1], tmp_path / "out", resources=resources)
    assert ended.error is None
    assert ended.results["tasks"]["tiny_write"]["n"] == 1


# ------------------------------------------------------------------------------------------------- refusals
def test_modules_are_refused_everywhere_but_on_the_command_line(rules, tmp_path):
    refused = (
        "'my_rules:growing' names an object of a Python module, which only the command line's --plan loads"
    )
    recipe = {
        "title": "t",
        "tasks": ["tiny_write"],
        "group": [{"model": "tiny-void", "plan": "my_rules:growing"}],
    }
    with pytest.raises(ConfigError, match=refused):
        parse(recipe, "sweep")
    with pytest.raises(ConfigError, match=refused):
        plan("my_rules:growing")
    for value in ("my_rules:Favour", "os:system"):
        with pytest.raises(PlanError) as wrong:
            plan("void", calibration={"void": {"score": value}})
        assert wrong.value.field == "score"
    with pytest.raises(PlanError) as wrong:
        plan("void", calibration={"void": {"commit": "my_rules:Leftmost"}})
    assert wrong.value.field == "commit"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nowhere_to_be:seen", "plan 'nowhere_to_be:seen': cannot be imported"),
        ("my_rules:nothing", "plan 'my_rules:nothing': cannot be imported"),
        ("my_rules:Leftmost", "plan 'my_rules:Leftmost': is a "),
        ("my_rules:growing --canvas 8", "a ready plan takes no fields, got canvas; set them in the plan."),
    ],
)
def test_what_the_command_line_refuses(rules, voidpad, words, message):
    ran = voidpad(f"generate hi --plan {words}")
    assert (ran.status, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert message in ran.err
