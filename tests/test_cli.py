"""The command line: every preset on both families, prompts from everywhere, and one line for every mistake."""

import io
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console

import voidpad.models
from voidpad.builtin.tasks import TASKS
from voidpad.commands.chat import LiveView
from voidpad.commands.generate import JSON_FIELDS, show
from voidpad.commands.options import DIRECT_FIELDS
from voidpad.commands.prompts import gather
from voidpad.decode.presets import ALIASES, PRESETS, describe
from voidpad.diagnose import trace
from voidpad.errors import ConfigError
from voidpad.evaluate.tasks import known_tasks
from voidpad.models import FAMILIES, Checkpoint, Model, Result, load, random_model, read_card, save
from voidpad.models.device import SCHEMES
from voidpad.roles import Roles

REASONS = {"eos", "full", "limit", "stalled", "cancelled"}
SMALL = "--canvas 8 --block 4"
BOTH = pytest.mark.parametrize("family", ["llada", "dream"])


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A saved model of each family whose EOS and VOID are common enough to occur."""
    root = tmp_path_factory.mktemp("models")
    for family in ("llada", "dream"):
        model = random_model(family, context=128, seed=5)
        with torch.no_grad():
            model.net.lm_head.weight[[model.roles.eos, model.roles.void]] *= 2
        save(model, root / family)
    return {family: root / family for family in ("llada", "dream")}


@pytest.fixture(scope="module")
def models(folders) -> dict[str, Model]:
    return {family: load(folder) for family, folder in folders.items()}


@pytest.fixture
def generate(voidpad, folders):
    """`voidpad generate OPTIONS`, or another command, with a small random model."""

    def run(options: str, *more: object, family="llada", given=b"", command="generate"):
        return voidpad(f"{command} {options}", *more, "--model", folders[family], given=given)

    return run


def told(results: list[Result]) -> list[dict]:
    """Results as --json tells them, but for the time."""
    names = [name for name in JSON_FIELDS if name != "seconds"]
    return json.loads(json.dumps([{name: getattr(one, name) for name in names} for one in results]))


def untimed(rows: list[dict]) -> list[dict]:
    assert all(row["seconds"] >= 0 for row in rows)
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


# Every preset, both families


@BOTH
@pytest.mark.parametrize("name", [*PRESETS, *ALIASES, *(f"{name}@authors" for name in PRESETS)])
def test_every_preset_decodes(generate, models, family, name):
    fields = describe(name, defaults=FAMILIES[family].decoding)[1]
    limit = {"limit": 16} if "limit" in fields else {}
    more = ["--set", "limit=16"] if limit else []
    ran = generate(f"'two words' hi --plan {name} {SMALL} --json", *more, family=family)
    assert ran.status == 0, ran.err
    for row in ran.rows:
        assert tuple(row) == JSON_FIELDS
        assert row["stop_reason"] in REASONS
        assert row["passes_decode"] > 0
        assert len(row["tokens"]) <= row["canvas"] <= max(8, limit.get("limit", 0))
    wanted = models[family].generate(["two words", "hi"], name, canvas=8, block=4, **limit)
    assert untimed(ran.rows) == told(wanted)


@pytest.mark.parametrize(("command", "most"), [("generate", 25), ("eval", 30)])
def test_a_command_has_few_options_and_names_the_way_to_the_others(voidpad, command, most):
    shown = {word for word in voidpad(f"{command} --help").out.split() if word.startswith("--")}
    assert len(shown - {"--help"}) <= most
    ran = voidpad(f"{command} --entropy-bound 0.1")
    assert ran.status == 2
    assert "--set FIELD=VALUE" in ran.err
    assert "--set" not in voidpad("sweep --entropy-bound 0.1").err  # it has no --set


def test_help_names_every_task_and_every_quantization(voidpad):
    shown = voidpad("eval --help").out.replace("│", " ").replace(",", " ")
    for name, known in (("--tasks", known_tasks()), ("--quantize", SCHEMES)):
        assert set(known) <= set(shown.split(name)[1].split(" --")[0].split())


def test_options_reach_the_plan(generate, models):
    fields = {"temperature": 0.7, "score": "margin", "ban": "void,12", "scores": "renormalised", "steps": 4}
    words = [
        word
        for key, value in fields.items()
        for word in ((f"--{key}", value) if key in DIRECT_FIELDS else ("--set", f"{key}={value}"))
    ]
    ran = generate(f"hi {SMALL} --seed 9 --set cut=false --json", *words)
    wanted = models["llada"].generate("hi", canvas=8, block=4, seed=9, cut=False, **fields)
    assert untimed(ran.rows) == told(wanted)
    assert ran.rows[0]["passes_decode"] <= 4


def test_plans_lists_presets_and_fields(voidpad, folders, tmp_path):
    assert all(name in voidpad("plans").out for name in PRESETS)
    shutil.copytree(folders["dream"], tmp_path / "dream")
    taught = {"void-expansion": {"tau_nonvoid": 0.33, "canvas": 8}}
    replace(read_card(tmp_path / "dream"), calibration=taught).write(tmp_path / "dream")
    for where, tau in (
        ("--family llada", "0.09"),
        ("--family dream", "0.15"),
        (f"--model {tmp_path}/dream", "0.33"),
    ):
        lines = voidpad(f"plans void-expansion {where}").out.splitlines()
        [line] = [line for line in lines if line.split()[:1] == ["tau_nonvoid"]]
        assert line.split()[1] == tau


def test_the_command_line_wins_over_the_calibration_and_it_over_the_family(voidpad, folders, tmp_path):
    shutil.copytree(folders["llada"], tmp_path / "model")
    taught = {"canvas": 12, "limit": 20, "block": 4, "window": 4, "tau_nonvoid": 0.0, "tau_gap": 0.0}
    card = read_card(tmp_path / "model")
    replace(card, calibration={"void-expansion": taught}).write(tmp_path / "model")
    run = f"generate hi --model {tmp_path}/model --json"
    for options, canvas in (
        ("--plan void-expansion", 20),
        ("--plan void-expansion --set limit=16", 16),
        ("--plan void-expansion --set tau_nonvoid=1 --set tau_gap=-1", 12),
        (SMALL, 8),
    ):
        assert voidpad(f"{run} {options}").rows[0]["canvas"] == canvas


def test_generate_opens_a_checkpoint_builds_a_plan_and_checks_a_prompt_once(generate, monkeypatch):
    calls = Counter()

    def count(owner: object, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda *a, **k: (calls.update([name]), real(*a, **k))[1])

    count(voidpad.models, "open_checkpoint")
    for name in ("plan", "encode", "check_prompt"):
        count(Checkpoint, name)
    assert generate(f"hi {SMALL}").status == 0
    assert calls == {"open_checkpoint": 1, "plan": 1, "encode": 1, "check_prompt": 1}


# Output


def test_text_goes_to_stdout_and_numbers_to_stderr(generate, models):
    [wanted] = models["llada"].generate("hi", canvas=8, block=4)
    ran = generate(f"hi {SMALL}")
    assert ran.out == wanted.text + "\n"
    size = sum(token not in models["llada"].roles.all() for token in wanted.tokens)
    chosen, numbers = ran.err.splitlines()
    assert chosen == "plan: original (this checkpoint names no padding)"
    assert numbers.startswith(f"{size} tokens, {wanted.passes_decode} passes, canvas 8, stopped: ")
    assert generate(f"hi ho {SMALL}").out.startswith(f"--- 0\n{wanted.text}\n--- 1\n")


def test_texts_are_printed_as_they_are(capsys):
    text = ":smile: [bold]a[/bold]\ttab  \x1b[1m" + "long " * 60
    counts = {"passes_decode": 1, "passes_probe": 0, "passes_shared": 0}
    result = Result(key=0, ids=[1], tokens=[1], stop_reason="eos", seconds=0.1, text=text, **counts)
    show(result, Roles(mask=0, eos=1), as_json=False, many=False)
    assert capsys.readouterr().out == text + "\n"


def test_many_prompts_are_json_lines_in_their_order(generate, models):
    prompts = ["a", "some longer prompt", "b c", "d" * 30, "e?"]
    ran = generate(f"--set rows=2 --set tokens=60 --json {SMALL}", *prompts, family="dream")
    assert ran.err == "plan: original (this checkpoint names no padding)\n"
    for prompt, row in zip(prompts, ran.rows, strict=True):
        assert untimed([row]) == told(models["dream"].generate(prompt, canvas=8, block=4))


@pytest.mark.parametrize(("padding", "plan"), [("void", "void"), ("rainbow", "original"), (None, "original")])
def test_the_plan_follows_the_padding_of_the_checkpoint(voidpad, folders, tmp_path, padding, plan):
    shutil.copytree(folders["llada"], tmp_path / "model")
    replace(read_card(tmp_path / "model"), padding=padding).write(tmp_path / "model")
    run = f"generate hi --model {tmp_path}/model {SMALL} --json"
    chosen, named = voidpad(run), voidpad(f"{run} --plan {plan}")
    assert untimed(chosen.rows) == untimed(named.rows)
    assert untimed(chosen.rows) == told(load(tmp_path / "model").generate("hi", canvas=8, block=4))
    trained = f"was trained with {padding} padding" if padding else "names no padding"
    assert chosen.err.splitlines()[0] == f"plan: {plan} (this checkpoint {trained})"
    assert "plan:" not in named.err


def test_an_empty_answer_names_what_helps_and_the_command_that_explains_it(generate, voidpad, models):
    roles = models["llada"].roles
    others = ",".join(str(token) for token in range(64) if token not in (roles.eos, roles.mask))
    run = f"'it is' {SMALL} --set ban={others} --set trim=false"
    hint = generate(run).err.splitlines()[-1]
    assert "--plan eos-last" in hint
    assert "analyze overflow" in hint
    assert generate(run, command="analyze overflow").status == 0  # it takes the same options
    unknown = generate(f"{chr(0x6F22)} {run}").err
    assert "the tokenizer does not know" in unknown
    assert "answer 0" not in unknown


# Prompts

TURNS = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "so"},
]


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        (b"one\ntwo three\n\n", ["one", "two three"]),
        (b"no final newline\r\nsecond\r\n", ["no final newline", "second"]),
        (b"\xef\xbb\xbfwith a byte order mark\n", ["with a byte order mark"]),
        ("f\u2028g\x0ch\n".encode(), ["f\u2028g\x0ch"]),
        (
            '{"prompt": "a\u2028b\u0085c"}\n\n{"prompt": "two", "id": 7}\n'.encode(),
            ["a\u2028b\u0085c", "two"],
        ),
        (json.dumps({"messages": TURNS}).encode() + b'\n{"prompt": "x"}', [TURNS, "x"]),
    ],
)
def test_prompts_from_a_file_and_from_standard_input(generate, models, tmp_path, content, prompts):
    (tmp_path / "prompts").write_bytes(content)
    wanted = told(models["llada"].generate(prompts, canvas=4, block=4))
    run = "--canvas 4 --block 4 --json --file"
    assert untimed(generate(f"{run} {tmp_path}/prompts").rows) == wanted
    assert untimed(generate(f"{run} -", given=content).rows) == wanted


def test_arguments_files_and_messages_add_up_and_standard_input_is_one_prompt(generate, models, tmp_path):
    (tmp_path / "prompts").write_text("two\n")
    (tmp_path / "turns.json").write_text(json.dumps(TURNS))
    ran = generate(f"one --file {tmp_path}/prompts --messages {tmp_path}/turns.json {SMALL} --json")
    assert untimed(ran.rows) == told(models["llada"].generate(["one", "two", TURNS], canvas=8, block=4))
    ran = generate(f"{SMALL} --json", given=b"several\nlines\n")
    assert untimed(ran.rows) == told(models["llada"].generate("several\nlines", canvas=8, block=4))


@pytest.mark.parametrize(
    ("options", "fields"), [("--system 'be brief'", {"system": "be brief"}), ("--raw", {"raw": True})]
)
def test_system_prompt_and_raw_text(generate, models, options, fields):
    wanted = models["llada"].generate("hi", canvas=8, block=4, **fields)
    assert untimed(generate(f"hi {SMALL} --json {options}").rows) == told(wanted)
    assert wanted[0].tokens != models["llada"].generate("hi", canvas=8, block=4)[0].tokens


# Traces, live views, approximations


@pytest.mark.parametrize(
    ("name", "family", "more"),
    [
        ("void", "llada", "--temperature 0.8 --seed 3"),
        ("void-expansion", "dream", "--set limit=16"),
        ("rho-eos", "llada", "--set limit=16"),
        ("original", "dream", "--cache prompt:2"),
    ],
)
def test_traces_and_live_views_change_nothing(generate, tmp_path, family, name, more):
    run = f"'two words' hi x --plan {name} {SMALL} --json {more}"
    plain = generate(run, family=family)
    for extra in ("--live --set rows=2", ""):
        traced = generate(f"{run} --trace {tmp_path}/trace.jsonl {extra}", family=family)
        assert traced.status == 0, traced.err
        assert untimed(traced.rows) == untimed(plain.rows)
        for one, row in zip(trace.read(tmp_path / "trace.jsonl"), traced.rows, strict=True):
            assert (list(one.result.tokens), one.result.text) == (row["tokens"], row["text"])
            assert len(one.passes) == row["passes_probe"] + row["passes_decode"] - row["passes_shared"]
    assert os.listdir(tmp_path) == ["trace.jsonl"]


def test_the_live_view_draws_masks_and_written_eos(models):
    model, drawn = models["llada"], Console(file=io.StringIO(), force_terminal=True, width=100)
    others = [token for token in range(64) if token not in (model.roles.eos, model.roles.mask)]
    with LiveView(model, drawn) as view:
        model.generate("hi", canvas=8, block=8, ban=others, trim=False, listen=view)
    assert all(mark in drawn.file.getvalue() for mark in ("·", "⏹", "masked 0"))


def test_a_chat_keeps_its_turns_until_a_new_one_begins(voidpad, folders, models):
    lines = b"hi\nso\n/again\n/new\nhi \\\nso\n/help\n/quit\nnever\n"
    ran = voidpad(f"chat --model {folders['llada']} {SMALL} --temperature 1.5", given=lines)
    assert ran.status == 0, ran.err

    def answer(*turns: str) -> str:
        chat = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)]
        return models["llada"].generate([chat], canvas=8, block=4, temperature=1.5)[0].text

    first = answer("hi")
    told = [first, answer("hi", first, "so"), answer("hi \nso")]
    prompts = ("> ", "> ", "> > > . ")  # commands print nothing there; the last message has two lines
    assert ran.out == "".join(map("{}{}\n".format, prompts, told)) + "> > "
    assert "/again is unknown" in ran.err
    assert ran.err.count("/new starts over") == 2  # the greeting, and /help


def test_watched_rows_keep_their_own_canvas_bound(generate):
    """Context 128: beside the long prompt a canvas may reach 28 slots, beside the short one 64."""
    thresholds = "--set limit=64 --set tau_nonvoid=0 --set tau_gap=0.5"
    run = f"{'a' * 80} hi --plan void-expansion {SMALL} {thresholds} --json"
    for more in ("", "--live", "--set trim=true --set ban=void,eos"):
        assert [row["canvas"] for row in generate(f"{run} {more}").rows] == [28, 64]


def test_what_means_little_is_warned_of_once(generate, voidpad, models, tmp_path):
    run = f"a b c --plan void-expansion {SMALL} --json"
    for more in ("", "--live"):
        assert generate(f"{run} {more}").err.count("warning: tau_gap=-0.45 cannot bind") == 1
    assert "warning" not in generate(f"{run} --set tau_gap=0.2").err
    for padding, warned in (("eos", True), ("void", False)):
        card = replace(models["llada"].card, padding=padding)
        save(replace(models["llada"], card=card), tmp_path / padding)
        ran = voidpad(f"generate {run} --set limit=16 --set tau_gap=0.5 --model {tmp_path}/{padding}")
        assert ("was trained with eos padding" in ran.err) == warned


def test_approximations_are_named(generate):
    for more, named in (("--cache dual --threshold 0.2", ["dual cache", "threshold"]), ("", [])):
        assert [row["approximations"] for row in generate(f"a b {SMALL} --json {more}").rows] == [named] * 2


# Mistakes


def complains(ran, status: int, named: str) -> None:
    """One line on standard error, the right status, nothing on standard output."""
    assert ran.status == status, ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.startswith("voidpad: ")
    assert named in ran.err
    assert ran.out == ""


USAGE = {  # wrong options, and the name that the one line must have
    "--plan vod": "vod",
    "--canvs 8": "--canvs",
    "--canvas x": "--canvas",
    "--set trace_detail=all --trace x": "trace_detail",
    "--seed -1": "--seed",
    "--set window=8": "window",
    "--canvas 10 --block 4": "block=4",
    f"{SMALL} --set ban=99": "99",
    f"{SMALL} --set rows=0": "rows",
    f"{SMALL} --set block": "block",
    f"{SMALL} --set block=4": "block",
    f"{SMALL} --cache all": "cache='all'",
    f"{SMALL} --dtype float8": "float8",
    f"{SMALL} --device warp": "warp",
    f"{SMALL} --quantize 3bit": "3bit",
    f"{SMALL} --raw --system 'be brief'": "raw=True",
    f"{SMALL} --trace .": "is a folder",
    "--canvas 512 --block 32": "canvas 512",
}


@pytest.mark.parametrize("options", USAGE)
def test_wrong_usage(generate, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    complains(generate(f"hi {options}"), 2, USAGE[options])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("prompt", "named"),
    [
        ("", "prompt is empty"),
        ("x" * 200, "context of 128"),
        ("x" * 103, "context of 128 leaves room for 120 at most"),
    ],
)
def test_prompts_that_cannot_be_answered(generate, prompt, named):
    complains(generate(SMALL, "fine", prompt), 2, named)
    assert "prompt 1: " in generate(SMALL, "fine", prompt).err


def test_a_mask_is_text_in_a_message_and_refused_in_raw_text(generate):
    assert generate(f"'see <|mask|> here' {SMALL}").status == 0
    complains(generate(f"'see <|mask|> here' {SMALL} --raw"), 2, "the mask (0)")


def test_no_prompt_at_all(generate):
    complains(generate(""), 2, "no prompt")
    complains(generate("", given=b" \n"), 2, "no prompt")


def test_at_a_terminal_no_prompt_shows_an_example_of_each_task(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    with pytest.raises(ConfigError, match="no prompt"):
        gather(examples=True)
    assert capsys.readouterr().err.count("voidpad generate ") == len(TASKS) - 1  # one has several turns


FILES = [
    (b"", ""),
    (b"fine\nna\xefve\n", "UTF-8"),
    (b'{"prompt": "a"}\nplain text\n', "line 2"),
    (b'{"text": "a"}\n', "line 1"),
    (b'{"prompt": 7}\n', "line 1"),
    (b'{"messages": 7}\n', "line 1"),
]


@pytest.mark.parametrize(("content", "named"), FILES)
def test_damaged_prompt_files(generate, tmp_path, content, named):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    ran = generate(f"{SMALL} --file {path}")
    complains(ran, 1, named)
    assert str(path) in ran.err


def test_missing_prompt_files_and_wrong_conversations(generate, tmp_path):
    complains(generate(f"--file {tmp_path}/none"), 1, "none: no such file")
    complains(generate(f"--file {tmp_path}"), 1, "cannot be read (Is a directory)")
    complains(generate("", "fine", "caf\udce9"), 1, "prompt 1: not UTF-8")
    (tmp_path / "halves").write_text('{"prompt": "a\\ud800"}\n')
    complains(generate(f"--file {tmp_path}/halves"), 1, "prompt 0: not UTF-8")
    complains(generate("", given=b"caf\xe9"), 1, "standard input: damaged UTF-8")
    turns = tmp_path / "turns.json"
    for content, status, named in (
        ("[", 1, "turns.json"),
        ("7", 1, "turns.json"),
        ("[]", 2, "prompt is empty"),
        ('[{"role": "user"}]', 2, "messages[0]"),
    ):
        turns.write_text(content)
        complains(generate(f"--messages {turns}"), status, named)
    turns.write_text(json.dumps(TURNS))
    complains(generate(f"--messages {turns} --raw"), 2, "raw=True")


def test_a_checkpoint_without_void_cannot_follow_a_void_plan(voidpad, models, tmp_path):
    card = replace(models["llada"].card, roles=Roles(mask=0, eos=1))
    save(replace(models["llada"], card=card), tmp_path / "bare")
    run = f"generate hi {SMALL} --model {tmp_path}/bare"
    for plan in ("void", "void-expansion --set tau_gap=0.0"):
        complains(voidpad(f"{run} --plan {plan}"), 1, "role 'void'")
    complains(voidpad(f"{run} --set ban=colour"), 1, "role 'colour'")
    assert voidpad(run).status == 0  # its default is `original`
    (tmp_path / "prompts").write_text("a\nb\n")
    complains(voidpad(f"calibrate --model {tmp_path}/bare --file {tmp_path}/prompts"), 1, "no VOID token")


def test_models_and_adapters_that_are_not_there_or_damaged(voidpad, generate, folders, tmp_path):
    """What can be wrong with a folder is in test_damaged_folders.py."""
    complains(voidpad("generate hi --model tiny-nothing"), 1, "tiny-nothing")
    complains(generate(f"hi {SMALL} --adapter {tmp_path}/none"), 1, "no such folder")
    shutil.copytree(folders["llada"], tmp_path / "model")
    os.truncate(tmp_path / "model" / "model.safetensors", 1000)
    run = f"generate hi --model {tmp_path}/model {SMALL} --trace {tmp_path}/trace.jsonl"
    complains(voidpad(run), 1, "damaged safetensors")
    assert not (tmp_path / "trace.jsonl").exists()


def test_a_failure_leaves_an_existing_output_alone(generate, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("what was here before")
    complains(generate(f"hi {SMALL} --trace {path} --set ban=99"), 2, "99")
    complains(generate(f"{SMALL} --file {path} --trace {path}"), 2, "is read too")
    assert path.read_text() == "what was here before"
    assert os.listdir(tmp_path) == ["trace.jsonl"]


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("analyze overflow --plot x.txt", "x.txt"),
        ("eval --tasks tiny_steps --limit 1 --canvas 32 --out here", "here"),
        ("merge tiny-void --out here/below", "here"),
        ("train --init here/x.toml", "here"),
    ],
)
def test_what_cannot_be_written_is_named(voidpad, tmp_path, monkeypatch, command, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("")
    ran = voidpad(command)
    assert ran.status in (1, 2)
    assert ran.err.splitlines()[-1].startswith(f"voidpad: {named}")
    assert os.listdir(tmp_path) == ["here"]


def test_commands_that_do_not_exist(voidpad):
    complains(voidpad("generat"), 2, "generat")
    complains(voidpad("plans nope"), 2, "nope")
    complains(voidpad("plans --family gpt"), 2, "gpt")
    complains(voidpad("merge"), 2, "voidpad merge --help")
    shown = voidpad("")
    assert shown.status == 0
    assert "generate" in shown.out


def test_debug_shows_where(voidpad):
    ran = voidpad("--debug generate hi --plan vod")
    assert ran.status == 2
    assert "Traceback" in ran.err
    assert ran.err.splitlines()[-1].startswith("voidpad: plan 'vod'")


@pytest.mark.parametrize(
    ("error", "status", "named"), [(ZeroDivisionError, 1, "--debug"), (KeyboardInterrupt, 130, "interrupted")]
)
def test_an_unforeseen_error_and_an_interrupt_are_one_line(voidpad, monkeypatch, error, status, named):
    def stop(*_, **__):
        raise error

    monkeypatch.setattr("voidpad.models.open_checkpoint", stop)
    complains(voidpad("generate hi"), status, named)


def test_a_plan_module_that_exits_is_an_error(voidpad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    complains(voidpad("generate hi --plan leaving:plan"), 2, "leaving")


# Calibrate


def test_calibrate_writes_the_card(voidpad, folders, tmp_path):
    shutil.copytree(folders["llada"], tmp_path / "model")
    (tmp_path / "prompts").write_text("one\ntwo words\nand three words\n")
    run = f"calibrate --model {tmp_path}/model --file {tmp_path}/prompts --canvas 4 --block 4 --limit 16"
    ran = voidpad(f"{run} --save {tmp_path}/model")
    assert ran.status == 0, ran.err
    assert "tau nonvoid" in ran.out
    fields = read_card(tmp_path / "model").calibration["void-expansion"]
    assert {"canvas": 4, "limit": 16, "block": 4}.items() <= fields.items()
    assert f"{fields['tau_nonvoid']:.4g}" in ran.out
    [row] = voidpad(f"generate hi --model {tmp_path}/model --plan void-expansion --json").rows
    assert 4 <= row["canvas"] <= 16


def test_calibrate_reads_the_prompts_of_training_data(voidpad, folders, tmp_path):
    chats = [
        {"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "1"}]},
        {"instruction": "two", "input": "words", "output": "2"},
    ]
    (tmp_path / "chats.json").write_text(json.dumps(chats))
    run = f"calibrate --model {folders['llada']} --data {tmp_path}/chats.json --canvas 4 --block 4"
    ran = voidpad(f"{run} --limit 16")
    assert ran.status == 0, ran.err
    assert f"{folders['llada']}: 2 prompts ({tmp_path}/chats.json)" in ran.err
    (tmp_path / "chats.json").write_text("[]")
    assert voidpad(run).status == 1


@pytest.mark.parametrize(
    ("options", "status", "named"),
    [
        ("--block 0", 2, "block=0"),
        ("--canvas 4 --block 4 --save none", 2, "--save"),
        ("--canvas 4 --block 4 --save .", 2, "--save"),
        ("--canvas 4 --block 4 --file none", 1, "none"),
        ("--canvas 4 --block 4 --model tiny-instruct", 2, "eos padding"),
        ("--canvas 32 --limit 96 --file long", 2, "context of 128"),
    ],
)
def test_calibrations_that_cannot_work(voidpad, folders, tmp_path, monkeypatch, options, status, named):
    monkeypatch.chdir(tmp_path)
    Path("prompts").write_text("one\ntwo\n")
    Path("long").write_text("x" * 60 + "\n")
    run = f"calibrate --model {folders['llada']} --file prompts --limit 16 {options}"
    complains(voidpad(run), status, named)
    assert sorted(os.listdir(tmp_path)) == ["long", "prompts"]


# Merge


@pytest.fixture
def adapter(folders, tmp_path) -> Path:
    model = load(folders["llada"])
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model.net = get_peft_model(model.net, config).eval()
    save(model, tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_merged_checkpoint_answers_like_its_parts(voidpad, generate, folders, adapter, tmp_path):
    ran = voidpad(f"merge {folders['llada']} --adapter {adapter} --out {tmp_path}/merged")
    assert ran.status == 0, ran.err
    apart = generate(f"hi --adapter {adapter} {SMALL} --json")
    merged = voidpad(f"generate hi --model {tmp_path}/merged {SMALL} --json")
    assert untimed(merged.rows) == untimed(apart.rows) != untimed(generate(f"hi {SMALL} --json").rows)


def test_merges_that_cannot_work_write_nothing(voidpad, folders, adapter, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("x")
    run = f"merge {folders['llada']} --adapter {adapter} --out"
    complains(voidpad(f"{run} {taken}"), 2, "already exists")
    assert os.listdir(taken) == ["mine"]
    complains(
        voidpad(f"merge {folders['dream']} --adapter {adapter} --out {tmp_path}/m"), 1, "family 'llada'"
    )
    assert sorted(os.listdir(tmp_path)) == ["adapter", "taken"]


# In a process of its own


def test_a_real_process_reads_a_pipe_and_answers(folders, models):
    run = [sys.executable, "-m", "voidpad", "generate", "--model", folders["llada"], *SMALL.split(), "--json"]
    ran = subprocess.run(run, input=b"cafe?", capture_output=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    assert untimed([json.loads(ran.stdout)]) == told(models["llada"].generate("cafe?", canvas=8, block=4))
    assert ran.stderr == b"plan: original (this checkpoint names no padding)\n"
