"""Named speeds: the switches they stand for, where they are refused; and the frontier they were chosen from."""

import json
import sys
from dataclasses import replace

import pytest

from runs import write_run
from voidpad.commands import cli
from voidpad.commands.bench_frontier import _allowed, _limit, stored_timings
from voidpad.decode.plan import PRESETS, Plan
from voidpad.engine.speed import SPEEDS, check_speed, with_speed
from voidpad.errors import ConfigError
from voidpad.evaluate.scores import paired
from voidpad.evaluate.settings import Resources
from voidpad.experiments.frontier import EXACT, Timing, frontier, frontier_plot, narrowed
from voidpad.experiments.report.records import read as read_records
from voidpad.experiments.sweep import begin
from voidpad.experiments.sweep_recipe import read as read_recipe
from voidpad.models import load, random_model, save
from voidpad.recipes import find_recipe

QUICK = [name for name, speed in SPEEDS.items() if speed.approximates]
EACH = pytest.mark.parametrize("name", QUICK)
PROMPTS = ["Leo has 26 shells.\n(1) Leo takes 4.\nWhat is left after (1)?", "12 * 3 - 6", "What is 3 + 4?"]
RECIPE = read_recipe(find_recipe("tiny-frontier", "sweep"))
FASTEST = next(
    str(group.method)
    for group in RECIPE.groups
    if (group.fields, group.cache) == (SPEEDS["fastest"].fields, SPEEDS["fastest"].cache)
)


@pytest.fixture(scope="module")
def builtin():
    return load("tiny-void", device="cpu")


@pytest.fixture
def voidpad(monkeypatch, capsys):
    """`voidpad ARGUMENTS` in this process: (status, standard output, standard error)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["voidpad", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, *capsys.readouterr()

    return run


# The names


@EACH
def test_a_speed_gives_the_tokens_of_its_switches(builtin, name):
    speed = SPEEDS[name]
    for plan, limit in (("void", {}), ("void-expansion", {"limit": 48})):
        size = {"canvas": 32, "block": 16, **limit}
        named = builtin.generate(PROMPTS[:2], plan, speed=name, **size)
        given = builtin.generate(PROMPTS[:2], plan, cache=speed.cache, **speed.fields, **size)
        assert [(r.ids, r.passes_decode) for r in named] == [(r.ids, r.passes_decode) for r in given]
        assert named[0].approximations == given[0].approximations != ()
    size = {"canvas": 32, "block": 16}
    streamed = list(builtin.stream(PROMPTS[0], "void", speed=name, **size))
    assert len(streamed) == builtin.generate(PROMPTS[0], "void", speed=name, **size)[0].passes_decode


@EACH
def test_answers_of_a_speed_do_not_depend_on_the_batch(builtin, name):
    size = {"canvas": 32, "block": 16}
    together = builtin.generate(PROMPTS, speed=name, **size)
    alone = [builtin.generate(prompt, speed=name, rows=1, **size)[0] for prompt in PROMPTS]
    assert [r.ids for r in together] == [r.ids for r in alone]


def test_exact_is_what_happens_without_a_speed():
    model = random_model("llada", vocab=300, hidden=16, layers=1)
    plain, named = (
        model.generate("hi", "original", canvas=8, block=4, **way) for way in ({}, {"speed": "exact"})
    )
    assert plain[0].ids == named[0].ids
    assert named[0].approximations == ()
    assert with_speed("exact", {"block": 4}, None) == ({"block": 4}, None)
    assert with_speed(None, {"threshold": 0.9}, "dual") == ({"threshold": 0.9}, "dual")


@pytest.mark.parametrize(
    ("name", "fields", "cache", "said"),
    [
        ("fastest", {"threshold": 0.8}, None, "drop it or threshold=0.8"),
        ("fast", {"trim": True}, None, "drop it or trim=True"),
        ("fast", {}, "dual:4", "drop it or cache=dual:4"),
        ("exact", {"factor": 1.0}, "dual", "drop it or factor=1.0 and cache=dual"),
        ("quick", {}, None, "use one of exact, fast, fastest"),
    ],
)
def test_a_speed_and_a_switch_exclude_each_other(name, fields, cache, said):
    with pytest.raises(ConfigError, match=said):
        with_speed(name, fields, cache)


def test_a_switch_that_is_off_is_no_conflict_unless_the_speed_sets_it():
    assert with_speed("fast", {"trim": False, "factor": None}, None)[1] == SPEEDS["fast"].cache
    [own, *_] = SPEEDS["fast"].fields
    with pytest.raises(ConfigError, match=f"{own}=0"):
        with_speed("fast", {own: 0}, None)


@EACH
@pytest.mark.parametrize("plan", PRESETS)
def test_presets_either_take_a_speed_or_refuse_it(name, plan):
    model = random_model("llada", vocab=300, hidden=16, layers=1)
    if plan in ("daedal", "rho-eos", "ada-block"):
        with pytest.raises(ConfigError, match=f"plan '{plan}' has one of its own"):
            model.generate("hi", plan, speed=name)
    else:
        check_speed(name, f"{plan}@authors")
        assert model.plan(plan, **SPEEDS[name].fields).approximations != ()
    check_speed("exact", plan)


@EACH
def test_ready_plans_and_block_causal_models_take_no_speed(name, tmp_path, voidpad):
    with pytest.raises(ConfigError, match="this plan is ready"):
        check_speed(name, Plan())
    model = random_model("sdar", vocab=300, hidden=16, layers=1, causal_block=4)
    said = "is for full attention"
    with pytest.raises(ConfigError, match=said):
        model.generate("hi", speed=name)
    assert model.generate("hi", canvas=4, speed="exact")[0].approximations == ()
    folder = save(model, tmp_path / "sdar") or tmp_path / "sdar"
    for command in (("generate", "hi", "--model", folder), ("serve", folder, "--port", 0),
                    ("serve", folder, "--port", 0, "--replicas", 2),
                    ("eval", "--model", folder, "--tasks", "tiny_steps", "--out", tmp_path / "run")):  # fmt: skip
        status, _, err = voidpad(*command, "--speed", name)
        assert (status, said in err) == (2, True), command
    assert not (tmp_path / "run").exists()
    status, _, err = voidpad("bench", "--frontier", "--model", folder)
    assert status == 2
    assert "block-causal" in err


@pytest.mark.parametrize(
    "command", [("generate", "hi", "--model"), ("serve",), ("eval", "--out", "run", "--model")]
)
def test_wrong_speeds_are_refused_before_a_model_is_looked_for(voidpad, command):
    for options, said in (
        (("--speed", "quick"), "use one of"),
        (("--speed", "fast", "--cache", "dual"), "drop it or cache=dual"),
        (("--speed", "fastest", "--plan", "daedal"), "one of its own"),
    ):
        status, _, err = voidpad(*command, "/no/such/model", *options)
        assert status == 2
        assert said in err


def test_a_run_folder_holds_the_switches_of_its_speed(voidpad, tmp_path):
    speed = SPEEDS["fastest"]
    given = [
        word for field, value in speed.fields.items() for word in (f"--{field.replace('_', '-')}", value)
    ]
    for name, options in (("named", ("--speed", "fastest")), ("given", (*given, "--cache", speed.cache))):
        status, _, err = voidpad("eval", "--stage", "prepare", "--tasks", "tiny_steps", "--limit", 1,
                                 "--out", tmp_path / name, *options)  # fmt: skip
        assert status == 0, err
    named, given = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("named", "given"))
    assert named["settings"] == given["settings"]
    assert named["settings"]["cache"] == speed.cache
    status, _, err = voidpad("eval", "--stage", "answer", "--out", tmp_path / "named", "--speed", "fast")
    assert status == 2
    assert "--speed: --stage answer takes it from" in err


def test_a_server_decodes_at_its_speed(voidpad, monkeypatch):
    from voidpad.serve import server
    from voidpad.serve.access import read_access

    states = []

    def listen_to_nobody(load, options, *, ready):
        states.append(server.make_state(load(), options, read_access("127.0.0.1", None, no_auth=False)))
        return 0

    monkeypatch.setattr(server, "serve", listen_to_nobody)
    assert voidpad("serve", "--speed", "fastest")[0] == 0
    [state] = states
    speed = SPEEDS["fastest"]
    assert state.served.plan(state.served.plan_name, {}).approximations == ("entropy_bound",)
    assert state.served.cache == speed.cache


def test_the_help_names_every_speed_with_its_price(voidpad, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")
    for command in ("generate", "eval", "serve"):
        shown = " ".join(voidpad(command, "--help")[1].replace("│", " ").split())
        for name, speed in SPEEDS.items():
            assert f"{name} ({speed}: {speed.price})" in shown


# The frontier


def test_every_speed_is_a_setting_of_the_frontier():
    settings = [(group.fields, group.cache) for group in RECIPE.groups]
    assert [(speed.fields, speed.cache) in settings for speed in SPEEDS.values()] == [True] * len(SPEEDS)


def test_rows_are_paired_with_exact_decoding(tmp_path):
    recipe = narrowed(RECIPE, only=[FASTEST, "trim"], tasks=["tiny_steps", "tiny_expr"])
    assert [group.method for group in recipe.groups] == ["exact", "trim", FASTEST]
    every = begin(recipe, "frontier", tmp_path)
    # Luck below 0.6 is right. Of 10 problems a task: exact has 6 right, the other loses two of them and wins one.
    luck = {"exact": [0.1] * 6 + [0.8] * 4, FASTEST: [0.1] * 4 + [0.8] * 5 + [0.1]}
    for cell in every:
        if cell.method in luck:
            write_run(cell, tmp_path, size=10, draw=lambda cell, size: luck[cell.method])
    timed = {"exact": Timing(12.0, 1000), FASTEST: Timing(2.0, 100), "trim": Timing(6.0, 900)}
    [source] = read_records(tmp_path / "frontier.sweep.json")
    exact, bound = frontier(source.records, timed)  # trim has no answers: it has no row
    assert (exact.setting, exact.speed, exact.points, exact.faster) == ("exact", "exact", None, 1.0)
    assert (bound.speed, bound.cache, bound.fields) == (
        "fastest",
        SPEEDS["fastest"].cache,
        SPEEDS["fastest"].fields,
    )
    assert (bound.faster, bound.computed, bound.problems) == (6.0, 0.1, 20)
    assert (bound.lost, bound.won, exact.right, bound.right) == (4, 2, 60.0, 50.0)
    mean, half = paired([-100.0] * 4 + [100.0] * 2 + [0.0] * 14)
    assert bound.points == pytest.approx(mean)
    assert bound.points_interval == pytest.approx((mean - half, mean + half))
    assert bound.tasks == {"tiny_steps": 50.0, "tiny_expr": 50.0}
    labels = [
        text.get_text() for text in frontier_plot([exact, bound], where="cpu").axes[0].get_yticklabels()
    ]
    assert labels == ["exact", f"{FASTEST}  --speed fastest"]
    other = replace(exact, setting="another order")
    assert other.points is None
    drawn = frontier_plot([exact, bound, other], where="cpu").axes[1].containers
    assert sorted(round(float(dot[0].get_ydata()[0])) for dot in drawn) == [
        0,
        2,
    ]  # of three rows the first and the last


def test_the_command_measures_writes_and_goes_on(voidpad, tmp_path):
    folder = tmp_path / "frontier"
    size = ("--tasks", "tiny_steps", "--problems", 1, "--prompts", 1)
    command = ("bench", "--frontier", *size, "--only", FASTEST, "--out", folder)
    status, out, err = voidpad(*command, "--json")
    assert status == 0, err
    exact, bound = json.loads(out)
    assert (exact["setting"], exact["faster"], exact["computed"], exact["problems"]) == (EXACT, 1.0, 1.0, 1)
    assert bound["speed"] == "fastest"
    assert bound["computed"] < 0.5
    assert bound["passes"] < exact["passes"] / 2
    assert bound["faster"] > 1
    assert list(bound["tasks"]) == ["tiny_steps"]
    assert json.loads((folder / "frontier.json").read_text()) == [exact, bound]
    assert (folder / "frontier.png").read_bytes().startswith(b"\x89PNG")
    changed = {
        path: path.stat().st_mtime_ns for path in folder.rglob("*json*") if path.name != "frontier.json"
    }
    again = voidpad(*command)
    assert again[0] == 0
    assert f"{FASTEST}  fastest" in again[1]
    kept = {path for path, at in changed.items() if path.stat().st_mtime_ns == at}
    assert set(changed) - kept == {folder / "frontier.sweep.json"}  # nothing was timed or decoded anew


def test_timings_are_taken_from_a_file_of_the_same_job_only(tmp_path):
    path = tmp_path / "frontier.timings.json"

    def job(prompts: int, *names: str, seed: int = 0) -> dict:
        return {"prompts": prompts, "settings": {name: {"seed": seed} for name in names}}

    assert stored_timings(path, job(1, "exact")) is None
    timings = {name: {"seconds": 2.0, "computed": 9} for name in ("exact", "trim")}
    path.write_text(json.dumps({"of": job(1, "exact", "trim"), "timings": timings}))
    assert stored_timings(path, job(1, "exact")) == {"exact": Timing(2.0, 9)}
    for other in (job(2, "exact"), job(1, "exact", "dual"), job(1, "exact", seed=1)):
        assert stored_timings(path, other) is None
    for damaged in (b"\x89PNG", b"[]", b'{"of": {"prompts": 1, "settings": {"exact": {"seed": 0}}}}'):
        path.write_bytes(damaged)
        assert stored_timings(path, job(1, "exact")) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--frontier", "--file", "prompts.txt"), "--file: --frontier takes problems and settings from"),
        (("--frontier", "--block", "16"), "--block: --frontier takes"),
        (("--frontier", "--only", "bound 9"), "only=bound 9: no such setting; use some of exact; exact by"),
        (("--frontier", "--tasks", "gsm8k"), "tasks=gsm8k: no task of the frontier; use some of tiny_steps,"),
        (("--frontier", "--tasks", "tiny_write"), "runs only with --allow-code-execution"),
        (("--frontier", "--problems", "0"), "--problems"),
        (("--problems", "8"), "--problems belongs to --frontier"),
        (("--out", "folder"), "--out belongs to --frontier"),
        (("--allow-code-execution",), "--allow-code-execution belongs to --frontier"),
    ],
)
def test_wrong_combinations_are_refused_with_a_sentence(voidpad, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, err = voidpad("bench", "--model", "/no/such/model", *options)
    assert status == 2
    assert said in err
    assert list(tmp_path.iterdir()) == []


def test_tasks_that_run_code_are_left_out_unless_allowed():
    number, code = ["tiny_steps", "tiny_expr"], ["tiny_complete", "tiny_write"]
    assert _allowed(RECIPE.tasks, Resources()) == (number, code)
    assert _allowed(RECIPE.tasks, Resources(allow_code_execution=True)) == (number + code, [])


def test_all_problems_are_the_cells_of_the_whole_sweep():
    assert [_limit(count) for count in (1, 499, 500, 10_000)] == [1, 499, None, None]
    whole = narrowed(RECIPE, model="tiny-void", limit=_limit(500))
    assert whole.model_dump() == RECIPE.model_dump()
