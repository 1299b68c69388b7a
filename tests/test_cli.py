"""The command line: every preset on both families, prompts from everywhere, and one line for every mistake."""

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from voidpad.commands import cli
from voidpad.commands.generate import Others, show
from voidpad.commands.options import DIRECT_FIELDS
from voidpad.decode.presets import ALIASES, PRESETS, describe, every_field
from voidpad.diagnose import trace
from voidpad.evaluate.config import known_tasks
from voidpad.models import FAMILIES, Model, Result, load, random_model, read_card, save
from voidpad.models.device import SCHEMES
from voidpad.roles import Roles

FIELDS = (
    "text",
    "tokens",
    "passes_decode",
    "passes_probe",
    "passes_shared",
    "canvas",
    "stop_reason",
    "seconds",
)
REASONS = {"eos", "full", "limit", "stalled", "cancelled"}
SMALL = ("--canvas", "8", "--block", "4")
BOTH = pytest.mark.parametrize("family", ["llada", "dream"])


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


SET = {one.name: one for one in every_field() if one.name not in DIRECT_FIELDS}
SET |= dict.fromkeys(Others.model_fields)


def with_set(words: list[str]) -> list[str]:
    """The words of a command; fields that it takes by --set may be written as options here, which reads better."""
    if words[:1] not in (["generate"], ["chat"]) and words[:2] != ["analyze", "overflow"]:
        return words
    spelled: list[str] = []
    while words:
        word, *words = words
        name = word.removeprefix("--").removeprefix("no-").replace("-", "_")
        if not word.startswith("--") or name not in SET:
            spelled.append(word)
        elif word.startswith("--no-") or name in ("trim", "report_delta", "compile"):
            spelled += ["--set", f"{name}={'false' if word.startswith('--no-') else 'true'}"]
        else:
            value, *words = words
            spelled += ["--set", f"{name}={value}"]
    return spelled


@pytest.fixture
def voidpad(monkeypatch, capsys):
    """`voidpad ARGUMENTS` in this process, with `given` as standard input."""

    def run(*arguments: object, given: bytes | None = None) -> Ran:
        monkeypatch.setattr(sys, "argv", ["voidpad", *with_set(list(map(str, arguments)))])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given or b"")))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return Ran(ended.value.code or 0, *capsys.readouterr())

    return run


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


def told(result: Result) -> dict:
    """A result as --json tells it, but for the time."""
    names = (*FIELDS, "approximations")
    return json.loads(json.dumps({name: getattr(result, name) for name in names if name != "seconds"}))


def untimed(row: dict) -> dict:
    assert row["seconds"] >= 0
    return {name: value for name, value in row.items() if name != "seconds"}


# --------------------------------------------------------------------------------- every preset, both families
NAMES = [*PRESETS, *ALIASES, *(f"{name}@authors" for name in PRESETS)]


@BOTH
@pytest.mark.parametrize("name", NAMES)
def test_every_preset_decodes(voidpad, folders, models, family, name):
    limits = {"limit": 16} if "limit" in described(name, family) else {}
    options = [part for key, value in limits.items() for part in (f"--{key}", value)]
    ran = voidpad(
        "generate", "two words", "hi", "--model", folders[family], "--plan", name, *SMALL, *options, "--json"
    )
    assert ran.status == 0, ran.err
    assert [tuple(row)[:8] for row in ran.rows] == [FIELDS] * 2
    for row in ran.rows:
        assert tuple(row) == (*FIELDS, "approximations")
        assert row["stop_reason"] in REASONS
        assert row["passes_decode"] > 0
        assert len(row["tokens"]) <= row["canvas"] <= max(8, *limits.values(), 0)
    wanted = models[family].generate(["two words", "hi"], name, canvas=8, block=4, **limits)
    assert [untimed(row) for row in ran.rows] == [told(result) for result in wanted]


def described(name: str, family: str) -> dict:
    return describe(name, defaults=FAMILIES[family].decoding)[1]


def test_generate_has_few_options_and_set_reaches_every_field(voidpad, folders, models):
    """At most 25 options; every other field of a plan goes through --set, and an option of its name says so."""
    shown = {word for word in voidpad("generate", "--help").out.split() if word.startswith("--")}
    assert len(shown - {"--help"}) <= 25
    assert {f"--{name}" for name in DIRECT_FIELDS} <= shown
    for name in PRESETS:
        for family in ("llada", "dream"):
            assert set(described(name, family)) <= {one.name for one in every_field()}
    ran = voidpad("generate", "hi", "--model", folders["llada"], "--entropy_bound", "0.1")
    assert ran.status == 2


def test_help_names_every_task_and_every_quantization(voidpad):
    for name, known in (("--tasks", known_tasks()), ("--quantize", SCHEMES)):
        shown = voidpad("eval", "--help").out.replace("│", " ").replace(",", " ")
        words = shown.split(name)[1].split(" --")[0].split()
        assert set(known) <= set(words), words


def test_options_reach_the_plan(voidpad, folders, models):
    fields = {"temperature": 0.7, "score": "margin", "ban": "void,12", "scores": "renormalised", "steps": 4}
    options = [part for key, value in fields.items() for part in (f"--{key}", value)]
    ran = voidpad(
        "generate", "hi", "--model", folders["llada"], *SMALL, *options, "--seed", 9, "--no-cut", "--json"
    )
    wanted = models["llada"].generate("hi", canvas=8, block=4, seed=9, cut=False, **fields)
    assert [untimed(row) for row in ran.rows] == [told(result) for result in wanted]
    assert ran.rows[0]["passes_decode"] <= 4


def test_plans_lists_presets_and_fields(voidpad, folders, tmp_path):
    listed = voidpad("plans")
    assert listed.status == 0
    assert all(name in listed.out for name in PRESETS)
    for family, tau in (("llada", "0.09"), ("dream", "0.15")):
        fields = voidpad("plans", "void-expansion", "--family", family).out
        [line] = [line for line in fields.splitlines() if line.split()[:1] == ["tau_nonvoid"]]
        assert line.split()[1] == tau
    shutil.copytree(folders["dream"], tmp_path / "dream")
    card = read_card(tmp_path / "dream")
    replace(card, calibration={"void-expansion": {"tau_nonvoid": 0.33, "canvas": 8}}).write(
        tmp_path / "dream"
    )
    fields = voidpad("plans", "void-expansion", "--model", tmp_path / "dream").out
    [line] = [line for line in fields.splitlines() if line.split()[:1] == ["tau_nonvoid"]]
    assert line.split()[1] == "0.33"


def test_the_command_line_wins_over_the_calibration_and_it_over_the_family(voidpad, folders, tmp_path):
    shutil.copytree(folders["llada"], tmp_path / "model")
    card = read_card(tmp_path / "model")
    taught = {"canvas": 12, "limit": 20, "block": 4, "window": 4, "tau_nonvoid": 0.0, "tau_gap": 0.0}
    replace(card, calibration={"void-expansion": taught}).write(tmp_path / "model")
    run = ("generate", "hi", "--model", tmp_path / "model", "--plan", "void-expansion", "--json")
    assert voidpad(*run).rows[0]["canvas"] == 20
    assert voidpad(*run, "--limit", 16).rows[0]["canvas"] == 16
    assert voidpad(*run, "--tau-nonvoid", 1, "--tau-gap", -1).rows[0]["canvas"] == 12
    assert voidpad("generate", "hi", "--model", tmp_path / "model", *SMALL, "--json").rows[0]["canvas"] == 8


# -------------------------------------------------------------------------------------------------- output
def test_text_goes_to_stdout_and_numbers_to_stderr(voidpad, folders, models):
    [wanted] = models["llada"].generate("hi", canvas=8, block=4)
    ran = voidpad("generate", "hi", "--model", folders["llada"], *SMALL)
    assert ran.out == wanted.text + "\n"
    size = sum(token not in models["llada"].roles.all() for token in wanted.tokens)
    chosen, numbers = ran.err.splitlines()
    assert chosen == "plan: original (this checkpoint names no padding)"
    assert numbers.startswith(f"{size} tokens, {wanted.passes_decode} passes, canvas 8, stopped: ")
    many = voidpad("generate", "hi", "ho", "--model", folders["llada"], *SMALL)
    assert many.out.startswith(f"--- 0\n{wanted.text}\n--- 1\n")


def test_texts_are_printed_as_they_are(capsys):
    text = ":smile: [bold]a[/bold]\ttab  \x1b[1m" + "long " * 60
    result = Result(
        key=0,
        ids=[1],
        tokens=[1],
        passes_decode=1,
        passes_probe=0,
        passes_shared=0,
        stop_reason="eos",
        seconds=0.1,
        text=text,
    )
    show(result, Roles(mask=0, eos=1), as_json=False, many=False)
    assert capsys.readouterr().out == text + "\n"


def test_many_prompts_are_json_lines_in_their_order(voidpad, folders, models):
    prompts = ["a", "some longer prompt", "b c", "d" * 30, "e?"]
    ran = voidpad(
        "generate", *prompts, "--model", folders["dream"], *SMALL, "--rows", 2, "--tokens", 60, "--json"
    )
    assert ran.err == "plan: original (this checkpoint names no padding)\n"
    for prompt, row in zip(prompts, ran.rows, strict=True):
        assert untimed(row) == told(models["dream"].generate(prompt, canvas=8, block=4)[0])


@pytest.mark.parametrize(
    ("padding", "plan"), [("void", "void"), ("rainbow", "original"), ("eos", "original"), (None, "original")]
)
def test_the_plan_follows_the_padding_of_the_checkpoint(voidpad, folders, tmp_path, padding, plan):
    shutil.copytree(folders["llada"], tmp_path / "model")
    replace(read_card(tmp_path / "model"), padding=padding).write(tmp_path / "model")
    model = load(tmp_path / "model")
    run = ("generate", "hi", "--model", tmp_path / "model", *SMALL, "--json")
    chosen, named = voidpad(*run), voidpad(*run, "--plan", plan)
    assert [untimed(row) for row in chosen.rows] == [untimed(row) for row in named.rows]
    [wanted] = model.generate("hi", canvas=8, block=4)
    assert untimed(chosen.rows[0]) == told(wanted)
    *_, last = model.stream("hi", canvas=8, block=4)
    assert last.finished[0].ids == wanted.ids
    trained = f"was trained with {padding} padding" if padding else "names no padding"
    assert chosen.err.splitlines()[0] == f"plan: {plan} (this checkpoint {trained})"
    assert "plan:" not in named.err


def test_an_empty_answer_names_the_command_that_explains_it(voidpad, folders):
    model = load(folders["llada"])
    others = ",".join(str(token) for token in range(64) if token not in (model.roles.eos, model.roles.mask))
    said = voidpad("generate", "it's", "--model", folders["llada"], *SMALL, "--ban", others, "--no-trim").err
    hint, _, command = said.splitlines()[-1].partition("; to see why: ")
    assert "--plan eos-last" in hint
    words = shlex.split(command)
    assert words[:4] == ["voidpad", "analyze", "overflow", "it's"]
    assert words[words.index("trim=false") - 1] == "--set"
    assert words[words.index("--canvas") + 1] == "8"
    assert words[words.index("--plan") + 1] == "original"
    shown = voidpad(*words[1:])
    assert shown.status == 0, shown.err


# ------------------------------------------------------------------------------------------------- prompts
TURNS = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "so"},
]


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        (b"one\ntwo three\n", ["one", "two three"]),
        (b"no final newline\r\nsecond\r\n", ["no final newline", "second"]),
        (b"\xef\xbb\xbfwith a byte order mark\n", ["with a byte order mark"]),
        ("f\u2028g\x0ch\n".encode(), ["f\u2028g\x0ch"]),
        (b'{"prompt": "one"}\n{"prompt": "two", "id": 7}\n', ["one", "two"]),
        ('{"prompt": "a\u2028b\u0085c"}\n'.encode(), ["a\u2028b\u0085c"]),
        (json.dumps({"messages": TURNS}).encode() + b'\n{"prompt": "x"}', [TURNS, "x"]),
    ],
)
def test_prompts_from_a_file_and_from_standard_input(voidpad, folders, models, tmp_path, content, prompts):
    (tmp_path / "prompts").write_bytes(content)
    wanted = [told(result) for result in models["llada"].generate(prompts, canvas=4, block=4)]
    run = ("generate", "--model", folders["llada"], "--canvas", 4, "--block", 4, "--json", "--file")
    assert [untimed(row) for row in voidpad(*run, tmp_path / "prompts").rows] == wanted
    assert [untimed(row) for row in voidpad(*run, "-", given=content).rows] == wanted


def test_standard_input_without_a_file_is_one_prompt(voidpad, folders, models):
    ran = voidpad("generate", "--model", folders["llada"], *SMALL, "--json", given=b"several\nlines\n")
    assert untimed(ran.rows[0]) == told(models["llada"].generate("several\nlines", canvas=8, block=4)[0])


def test_arguments_files_and_messages_add_up(voidpad, folders, models, tmp_path):
    (tmp_path / "prompts").write_text("two\n")
    (tmp_path / "turns.json").write_text(json.dumps(TURNS))
    sources = ("one", "--file", tmp_path / "prompts", "--messages", tmp_path / "turns.json")
    ran = voidpad("generate", *sources, "--model", folders["llada"], *SMALL, "--json")
    wanted = models["llada"].generate(["one", "two", TURNS], canvas=8, block=4)
    assert [untimed(row) for row in ran.rows] == [told(result) for result in wanted]


def test_system_prompt_and_raw_text(voidpad, folders, models):
    model, run = models["llada"], ("generate", "hi", "--model", folders["llada"], *SMALL, "--json")
    for options, fields in ((("--system", "be brief"), {"system": "be brief"}), (("--raw",), {"raw": True})):
        [wanted] = model.generate("hi", canvas=8, block=4, **fields)
        [plain] = model.generate("hi", canvas=8, block=4)
        assert untimed(voidpad(*run, *options).rows[0]) == told(wanted)
        assert wanted.tokens != plain.tokens


# -------------------------------------------------------------------------------------------- traces, live
@BOTH
@pytest.mark.parametrize("name", ["void", "void-expansion", "daedal", "rho-eos"])
def test_a_trace_tells_what_was_printed(voidpad, folders, tmp_path, family, name):
    run = ["generate", "two words", "hi", "x", "--model", folders[family], "--plan", name, *SMALL, "--json"]
    if name != "void":
        run += ["--limit", 16]
    else:
        run += ["--temperature", 0.8, "--seed", 3]
    plain = voidpad(*run)
    for rows in (2, 32):
        traced = voidpad(*run, "--trace", tmp_path / "trace.jsonl", "--rows", rows)
        assert [untimed(row) for row in traced.rows] == [untimed(row) for row in plain.rows]
        found = trace.read(tmp_path / "trace.jsonl")
        assert [one.row for one in found] == [0, 1, 2]
        for one, row in zip(found, traced.rows, strict=True):
            assert list(one.result.tokens) == row["tokens"]
            assert one.result.text == row["text"]
            assert len(one.passes) == row["passes_probe"] + row["passes_decode"] - row["passes_shared"]
            assert one.header.plan_name == name
    assert os.listdir(tmp_path) == ["trace.jsonl"]


def test_watched_rows_keep_their_own_canvas_bound(voidpad, folders, tmp_path):
    """Context 128: beside the long prompt a canvas may reach 28 slots, beside the short one 64."""
    prompts = ("a" * 80, "hi")
    fields = ("--plan", "void-expansion", *SMALL, "--limit", 64, "--tau-nonvoid", 0, "--tau-gap", 0.5)
    run = ("generate", *prompts, "--model", folders["llada"], *fields, "--json")
    plain, watched = voidpad(*run), voidpad(*run, "--live")
    assert [untimed(row) for row in watched.rows] == [untimed(row) for row in plain.rows]
    assert [row["canvas"] for row in plain.rows] == [28, 64]
    trimmed = voidpad(*run, "--trim", "--ban", "void,eos")  # nothing to trim: the same bounds hold
    assert [row["canvas"] for row in trimmed.rows] == [28, 64]


@pytest.mark.parametrize("detail", ["commits", "probs", "top5"])
def test_trace_details(voidpad, folders, tmp_path, detail):
    path = tmp_path / "trace.jsonl"
    ran = voidpad(
        "generate", "hi", "--model", folders["dream"], *SMALL, "--trace", path, "--trace-detail", detail
    )
    assert ran.status == 0
    [found] = trace.read(path)
    assert found.header.detail == detail
    assert (found.passes[0].p_eos is None) == (detail == "commits")
    assert (found.passes[0].top5_ids is not None) == (detail == "top5")


@BOTH
@pytest.mark.parametrize("name", ["void", "void-expansion", "daedal", "rho-eos", "smart-crop"])
def test_live_off_a_terminal(voidpad, folders, family, name):
    run = ("generate", "hi", "ho", "--model", folders[family], "--plan", name, *SMALL, "--json")
    run += ("--limit", 16) if name not in ("void", "smart-crop") else ()
    assert [untimed(row) for row in voidpad(*run, "--live").rows] == [
        untimed(row) for row in voidpad(*run).rows
    ]


@BOTH
@pytest.mark.parametrize("cache", ["prefix", "dual:3", "prompt:2"])
def test_caches_live_views_traces_and_deltas_combine(voidpad, folders, tmp_path, family, cache):
    run = ("generate", "hi", "two words", "--model", folders[family], *SMALL, "--json", "--cache", cache)
    plain = voidpad(*run)
    watched = voidpad(*run, "--live", "--trace", tmp_path / "trace.jsonl", "--report-delta")
    assert watched.status == 0, watched.err
    assert [untimed(row) for row in watched.rows] == [untimed(row) for row in plain.rows]
    assert f"against exact decoding, with {cache} cache" in watched.err
    for one, row in zip(trace.read(tmp_path / "trace.jsonl"), plain.rows, strict=True):
        assert one.header.recorded == "block"
        assert list(one.result.approximations) == row["approximations"] == [f"{cache} cache"]
        assert one.result.tokens == row["tokens"]


# ------------------------------------------------------------------------------------------------- warnings
def test_a_gap_that_cannot_bind_is_told_once(voidpad, folders):
    run = (
        "generate",
        "a",
        "b",
        "c",
        "--model",
        folders["llada"],
        "--plan",
        "void-expansion",
        *SMALL,
        "--json",
    )
    for more in ((), ("--live",), ("--trim",)):
        ran = voidpad(*run, *more)
        assert ran.status == 0
        assert ran.err.count("warning: tau_gap=-0.45 cannot bind with tau_nonvoid=0.09") == 1
    assert "warning" not in voidpad(*run, "--tau-gap", "0.2").err
    assert "warning" not in voidpad(*run[:-1], "--plan", "void").err


# ---------------------------------------------------------------------------------------------- approximations
def test_approximations_are_named_and_compared(voidpad, folders):
    run = ("generate", "a", "b", "--model", folders["llada"], *SMALL, "--json")
    ran = voidpad(*run, "--cache", "dual", "--threshold", 0.2, "--report-delta")
    assert ran.status == 0
    assert [row["approximations"] for row in ran.rows] == [["dual cache", "threshold"]] * 2
    assert ran.err.startswith("against exact decoding, with dual cache, threshold: tokens equal ")
    exact = voidpad(*run)
    assert [row["approximations"] for row in exact.rows] == [[], []]
    saved = sum(row["passes_decode"] for row in exact.rows)
    assert f"passes {sum(row['passes_decode'] for row in ran.rows)} against {saved}" in ran.err


# --------------------------------------------------------------------------------------------------- mistakes
def complains(ran: Ran, status: int, message: str) -> None:
    """One line on standard error, the right status, nothing on standard output."""
    assert ran.status == status, ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.err.startswith("voidpad: ")
    assert message in ran.err
    assert ran.out == ""


USAGE = [  # wrong options, and the name that the one line must have
    (("--plan", "vod"), "vod"),
    (("--plan", "void@them"), "void@them"),
    (("--canvs", 8), "--canvs"),
    (("--canvas", "x"), "--canvas"),
    (("--trace-detail", "all", "--trace", "x"), "trace_detail"),
    (("--seed", -1), "--seed"),
    (("--window", 8), "window"),
    (("--top-p", 0.5), "top_p"),
    (("--canvas", 10, "--block", 4), "block=4"),
    (("--canvas", 0, "--block", 4), "canvas=0"),
    (("--canvas", 8, "--block", 4, "--steps", 3), "steps=3"),
    (("--plan", "void-expansion", "--canvas", 64, "--limit", 32), "limit=32"),
    (("--plan", "daedal", "--canvas", 64, "--limit", 32), "limit=32"),
    (("--plan", "rho-eos", "--rho-low", 0.7), "rho_low=0.7"),
    ((*SMALL, "--score", "luck"), "score='luck'"),
    ((*SMALL, "--temperature", -1), "temperature=-1.0"),
    ((*SMALL, "--threshold", 0.5, "--factor", 1), "threshold"),
    ((*SMALL, "--stop", "vanilla", "--trim"), "stop=eos"),
    ((*SMALL, "--ban", "99"), "99"),
    ((*SMALL, "--rows", 0), "rows"),
    ((*SMALL, "--set", "block"), "block"),
    ((*SMALL, "--set", "block=4"), "block"),
    ((*SMALL, "--cache", "all"), "cache='all'"),
    ((*SMALL, "--dtype", "float8"), "float8"),
    ((*SMALL, "--device", "warp"), "warp"),
    ((*SMALL, "--quantize", "3bit"), "3bit"),
    ((*SMALL, "--raw", "--system", "be brief"), "raw=True"),
    (("--canvas", 512, "--block", 32), "canvas 512"),
]


@pytest.mark.parametrize(("options", "named"), USAGE, ids=[" ".join(map(str, o)) for o, _ in USAGE])
def test_wrong_usage(voidpad, folders, tmp_path, monkeypatch, options, named):
    monkeypatch.chdir(tmp_path)
    complains(voidpad("generate", "hi", "--model", folders["llada"], *options), 2, named)
    assert os.listdir(tmp_path) == []


def test_wrong_usage_on_dream(voidpad, folders):
    run = ("generate", "hi", "--model", folders["dream"], *SMALL)
    complains(voidpad(*run, "--top-p", 2), 2, "top_p=2")
    complains(voidpad(*run, "--top-k", -1), 2, "top_k=-1: ")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "prompt is empty; give at least one character."),
        ("x" * 200, "fills the model's context of 128; shorten it."),
        ("x" * 102, "prompt of 120 tokens and canvas 8 make 128"),
    ],
)
def test_prompts_that_cannot_be_answered(voidpad, folders, prompt, message):
    if message.startswith("prompt of"):  # exactly the context: that one can
        assert voidpad("generate", prompt, "--model", folders["llada"], *SMALL).status == 0
        prompt, message = prompt + "x", "prompt of 121 tokens and canvas 8 make 129"
    for more in ((), ("--live",)):
        complains(voidpad("generate", "fine", prompt, "--model", folders["llada"], *SMALL, *more), 2, message)


def test_a_mask_is_text_in_a_message_and_refused_in_raw_text(voidpad, folders):
    run = ("generate", "see <|mask|> here", "--model", folders["llada"], *SMALL)
    assert voidpad(*run).status == 0
    complains(voidpad(*run, "--raw"), 2, "is the mask (0); remove it from the prompt.")


def test_no_prompt_at_all(voidpad, folders):
    complains(
        voidpad("generate", "--model", folders["llada"]), 2, "no prompt: give one as an argument, with --file"
    )
    complains(voidpad("generate", "--model", folders["llada"], given=b" \n"), 2, "no prompt")


FILES = [
    (b"", "the file is empty. Put one prompt on each line."),
    (b"one\n\nthree\n", "line 2: the line is empty. Remove it."),
    (b"fine\nna\xefve\n", "line 2: not UTF-8 (byte 7). Convert the file."),
    (b'{"prompt": "a"}\n{"prompt": \n', "line 2: not JSON"),
    (b'{"prompt": "a"}\nplain text\n', "line 2: not JSON"),
    (b'{"text": "a"}\n', 'line 1: needs "prompt": text or "messages": [...].'),
    (b'{"prompt": 7}\n', 'line 1: needs "prompt"'),
    (b'{"prompt": ""}\n', 'line 1: needs "prompt"'),
    (b'{"messages": "hi"}\n', "line 1: messages must be a list of"),
    (b'{"prompt": "a\\ud800"}\n', "line 1: not UTF-8, it holds half a character. Convert the text."),
    (b'{"messages": [{"role": "user", "content": "\\udfff"}]}\n', "line 1: not UTF-8"),
]


@pytest.mark.parametrize(("content", "message"), FILES)
def test_damaged_prompt_files(voidpad, folders, tmp_path, content, message):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    run = ("generate", "--model", folders["llada"], *SMALL, "--file")
    ran = voidpad(*run, path)
    complains(ran, 1, message)
    assert str(path) in ran.err
    complains(voidpad(*run, "-", given=content), 1, message)


def test_missing_prompt_files_and_wrong_conversations(voidpad, folders, tmp_path):
    run = ("generate", "--model", folders["llada"], *SMALL)
    complains(
        voidpad(*run, "--file", tmp_path / "none"), 1, "none: No such file or directory. Check the path."
    )
    complains(voidpad(*run, "--file", tmp_path), 1, "Is a directory. Check the path.")
    complains(voidpad(*run, "fine", "caf\udce9"), 1, "prompt 2: not UTF-8")
    complains(voidpad(*run, given=b"caf\xe9"), 1, "standard input, line 1: not UTF-8 (byte 3)")
    turns = tmp_path / "turns.json"
    for content, status, message in [
        ("[", 1, "not JSON"),
        ("[]", 1, "messages must be a list of"),
        ('[{"role": "user"}]', 1, "messages must be a list of"),
        (
            '[{"role": "assistant", "content": "a"}]',
            1,
            "turns.json: messages[0] is an assistant turn; end with the turn to answer.",
        ),
    ]:
        turns.write_text(content)
        complains(voidpad(*run, "--messages", turns), status, message)
    turns.write_text(json.dumps(TURNS))
    complains(voidpad(*run, "--messages", turns, "--raw"), 2, "raw=True takes plain text")


def test_a_checkpoint_without_void_cannot_follow_a_void_plan(voidpad, folders, models, tmp_path):
    bare = Roles(mask=0, eos=1)
    save(replace(models["llada"], roles=bare), tmp_path / "bare")
    run = ("generate", "hi", "--model", tmp_path / "bare")
    for name in ("void", "void-expansion"):
        message = (
            "role 'void': this checkpoint has none. Use one trained with it, a plan that does not name it "
            '(original), or load(..., roles={"void": <id>}).'
        )
        threshold = ("--tau-gap", 0.0) if "-" in name else ()
        complains(voidpad(*run, *SMALL, "--plan", name, *threshold), 1, message)
    assert voidpad(*run, *SMALL).status == 0  # its default is `original`
    complains(voidpad(*run, *SMALL, "--plan", "original", "--ban", "colour"), 1, "role 'colour' is unknown")
    assert voidpad(*run, *SMALL, "--plan", "original").status == 0
    (tmp_path / "prompts").write_text("a\nb\n")
    ran = voidpad("calibrate", "--model", tmp_path / "bare", "--file", tmp_path / "prompts")
    complains(ran, 1, "no VOID token, so nothing to calibrate. Use a VOID-trained checkpoint.")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: shutil.rmtree(folder), "no such folder"),
        (
            lambda folder: (folder / "config.json").unlink(),
            "config.json: no such file",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "damaged JSON"),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), "damaged tokenizer files"),
        (lambda folder: (folder / "voidpad.json").write_text('{"version": 9}'), "card version is not 1"),
        (lambda folder: truncate(folder / "model.safetensors"), "damaged safetensors file"),
        (lambda folder: pickled(folder), "pickle weights can run code; convert the file to safetensors."),
        (lambda folder: (folder / "model.safetensors").unlink(), "voidpad reads safetensors weights only."),
    ],
    ids=["folder", "no config", "config", "tokenizer", "card", "weights", "pickle", "no weights"],
)
def test_missing_and_damaged_checkpoints(voidpad, folders, tmp_path, damage, message):
    folder = tmp_path / "model"
    shutil.copytree(folders["llada"], folder)
    damage(folder)
    run = ("generate", "hi", "--model", folder, *SMALL, "--trace", tmp_path / "trace.jsonl")
    complains(voidpad(*run), 1, message)
    assert not (tmp_path / "trace.jsonl").exists()


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": torch.zeros(1)}, folder / "pytorch_model.bin")


def test_models_and_adapters_that_are_not_there(voidpad, folders, tmp_path):
    complains(
        voidpad("generate", "hi", "--model", "tiny-nothing"),
        1,
        "tiny-nothing: no such folder; use tiny-instruct",
    )
    (tmp_path / "file").write_text("x")
    complains(voidpad("generate", "hi", "--model", tmp_path / "file"), 1, "is a file; give the folder")
    run = ("generate", "hi", "--model", folders["llada"], *SMALL, "--adapter")
    complains(voidpad(*run, tmp_path / "none"), 1, "no such folder")


def test_a_failure_leaves_an_existing_output_alone(voidpad, folders, tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("what was here before")
    run = ("generate", "hi", "--model", folders["llada"], *SMALL, "--trace", path)
    complains(voidpad(*run, "--ban", 99), 2, "99")
    assert path.read_text() == "what was here before"
    assert os.listdir(tmp_path) == ["trace.jsonl"]
    ran = voidpad("generate", "hi", "--model", folders["llada"], *SMALL, "--trace", tmp_path)
    complains(ran, 2, "is a folder; name a file in it.")


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze", "overflow", "--plot", "x.txt"),
        ("analyze", "overflow", "--csv", "here/x"),
        ("eval", "--tasks", "tiny", "--out", "here"),
        ("merge", "tiny-void", "--out", "here/below"),
        ("data", "prepare", "here/x", "--from", "x", "--model", "x"),
        ("demo", "--report", "here/x.html"),
    ],
)
def test_what_cannot_be_written_is_refused_before_the_work(voidpad, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("")
    option = next(
        word for word in arguments if word in ("--plot", "--csv", "--out", "--report") or "here/x" in word
    )
    complains(voidpad(*arguments), 2, option)
    assert os.listdir(tmp_path) == ["here"]


def test_a_folder_that_the_system_refuses_is_named(voidpad):
    ran = voidpad("merge", "tiny-void", "--out", "/proc/voidpad/merged")
    refused = "/proc may not be written" if os.getuid() else "/proc/voidpad: No such file or directory."
    complains(ran, 2 if os.getuid() else 1, refused)


def test_the_difference_to_exact_decoding_needs_an_approximation(voidpad, folders):
    run = ("generate", "hi", "--model", folders["llada"], *SMALL, "--report-delta")
    complains(
        voidpad(*run),
        2,
        "give --speed fast, --cache, --threshold or another one (`voidpad plans` lists them).",
    )


def test_a_void_probability_that_nobody_trained_is_warned_of(voidpad, models, tmp_path):
    for padding, warned in (("eos", True), ("void", False)):
        model = replace(models["llada"], card=replace(models["llada"].card, padding=padding))
        save(model, tmp_path / padding)
        run = ("generate", "hi", "--model", tmp_path / padding, "--plan", "void-expansion")
        ran = voidpad(*run, "--canvas", 8, "--block", 4, "--limit", 16, "--tau-gap", 0.5)
        assert ran.status == 0
        assert ("was trained with eos padding" in ran.err) == warned


def test_commands_that_do_not_exist(voidpad):
    complains(voidpad("generat"), 2, "No such command 'generat'")
    complains(voidpad("plans", "nope"), 2, "plan 'nope' is unknown")
    complains(
        voidpad("plans", "--family", "gpt"), 2, f"family='gpt' is unknown; use one of {', '.join(FAMILIES)}."
    )
    complains(voidpad("merge"), 2, "voidpad merge --help")
    shown = voidpad()
    assert shown.status == 0
    assert "generate" in shown.out


def test_debug_shows_where(voidpad, folders):
    run = ("generate", "hi", "--model", folders["llada"], "--plan", "vod")
    ran = voidpad("--debug", *run)
    assert ran.status == 2
    assert "Traceback" in ran.err
    assert ran.err.splitlines()[-1].startswith("voidpad: plan 'vod' is unknown")


def test_an_unforeseen_error_is_one_line_too(voidpad, folders, monkeypatch):
    monkeypatch.setattr("voidpad.models.open_checkpoint", lambda *_, **__: 1 / 0)
    complains(voidpad("generate", "hi"), 1, "ZeroDivisionError: division by zero (--debug shows where)")


def test_an_interrupt_ends_quietly(voidpad, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("voidpad.models.open_checkpoint", stop)
    ran = voidpad("generate", "hi")
    assert ran.status == 130
    assert ran.err in ("", "voidpad: interrupted\n")


# -------------------------------------------------------------------------------------------------- calibrate
def test_calibrate_writes_the_card_and_the_picture(voidpad, folders, tmp_path):
    shutil.copytree(folders["llada"], tmp_path / "model")
    (tmp_path / "prompts").write_text("one\ntwo words\nand three words\n")
    run = (
        "calibrate",
        "--model",
        tmp_path / "model",
        "--file",
        tmp_path / "prompts",
        "--canvas",
        4,
        "--block",
        4,
    )
    pages = ("--plot", tmp_path / "plot.png", "--page", tmp_path / "page.html")
    ran = voidpad(*run, "--limit", 16, *pages, "--save", tmp_path / "model")
    assert ran.status == 0, ran.err
    assert "tau_nonvoid" in ran.out
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "page.html").read_text()
    assert "3 prompts" in page
    assert page.count("data:image/svg+xml") == 3
    fields = read_card(tmp_path / "model").calibration["void-expansion"]
    assert {"canvas": 4, "limit": 16, "block": 4}.items() <= fields.items()
    assert f"tau_nonvoid {fields['tau_nonvoid']:.4g}, tau_gap {fields['tau_gap']:.4g}" in page
    assert sorted(os.listdir(tmp_path)) == ["model", "page.html", "plot.png", "prompts"]
    row = voidpad("generate", "hi", "--model", tmp_path / "model", "--plan", "void-expansion", "--json").rows[
        0
    ]
    assert 4 <= row["canvas"] <= 16


def test_calibrate_refuses_what_has_no_thresholds_and_another_checkpoints_card(voidpad, folders, tmp_path):
    search = ("--canvas", 4, "--block", 4, "--limit", 16)
    ran = voidpad("calibrate", "--model", "tiny-instruct", *search)
    assert ran.status == 2
    assert "tiny-instruct: was trained with eos padding" in ran.err
    (tmp_path / "prompts").write_text("hi\n")
    shutil.copytree(folders["llada"], tmp_path / "other")
    ran = voidpad(
        *("calibrate", "--model", folders["dream"], "--file", tmp_path / "prompts", *search),
        *("--save", tmp_path / "other"),
    )
    assert ran.status == 2
    assert "is another checkpoint than the one that is calibrated" in ran.err


def test_calibrate_reads_the_prompts_of_training_chats(voidpad, folders, tmp_path):
    chats = [
        {"conversations": [{"from": "human", "value": "one"}, {"from": "gpt", "value": "1"}]},
        {"instruction": "two", "input": "words", "output": "2"},
        {"messages": [{"role": "user", "content": text} for text in "ab"]},
    ]
    (tmp_path / "chats.json").write_text(json.dumps(chats))
    run = (
        "calibrate",
        "--model",
        folders["llada"],
        "--chats",
        tmp_path / "chats.json",
        "--canvas",
        4,
        "--block",
        4,
    )
    ran = voidpad(*run, "--limit", 16, "--page", tmp_path / "page.html")
    assert ran.status == 0, ran.err
    assert "conversations read: 3; dropped: 1 (no assistant message to learn)" in ran.err
    assert f"2 prompts ({tmp_path / 'chats.json'})" in (tmp_path / "page.html").read_text()
    (tmp_path / "chats.json").write_text(json.dumps(chats[2:]))
    ran = voidpad(*run)
    assert ran.status == 1
    assert ran.err.endswith(
        "nothing to learn; conversations read: 1; dropped: 1 (no assistant message to learn).\n"
    )


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--block", 0), 2, "must be multiples of block=0."),
        (("--canvas", 6, "--block", 4), 2, "canvas=6 and limit=16 must be multiples of block=4."),
        (("--canvas", 32, "--block", 4), 2, "limit=16 is below canvas=32"),
        (("--canvas", 4, "--block", 4, "--fit", 2), 2, "fit=2.0 must lie in (0, 1]."),
        (("--canvas", 4, "--block", 4, "--rows", 0), 2, "rows=0 leaves no room"),
        (
            ("--canvas", 4, "--block", 4, "--save", "none"),
            2,
            "--save none",
        ),
        (
            ("--canvas", 4, "--block", 4, "--file", "none"),
            1,
            "none: No such file or directory. Check the path.",
        ),
    ],
)
def test_calibrations_that_cannot_work(voidpad, folders, tmp_path, monkeypatch, options, status, message):
    monkeypatch.chdir(tmp_path)
    Path("prompts").write_text("one\ntwo\n")
    run = ("calibrate", "--model", folders["llada"], "--file", "prompts", "--limit", 16)
    complains(voidpad(*run, *options), status, message)
    assert os.listdir(tmp_path) == ["prompts"]


def test_calibration_prompts_must_leave_room(voidpad, folders, tmp_path):
    (tmp_path / "prompts").write_text("x" * 60 + "\n")
    run = (
        "calibrate",
        "--model",
        folders["llada"],
        "--file",
        tmp_path / "prompts",
        "--canvas",
        32,
        "--limit",
        96,
    )
    complains(voidpad(*run), 2, "over the model's context of 128")


# ------------------------------------------------------------------------------------------------------- merge
@pytest.fixture
def adapter(folders, tmp_path) -> Path:
    model = load(folders["llada"])
    torch.manual_seed(0)
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model.net = get_peft_model(model.net, config).eval()
    save(model, tmp_path / "adapter")
    return tmp_path / "adapter"


def test_a_merged_checkpoint_answers_like_its_parts(voidpad, folders, adapter, tmp_path):
    ran = voidpad("merge", folders["llada"], "--adapter", adapter, "--out", tmp_path / "merged")
    assert ran.status == 0, ran.err
    apart = voidpad("generate", "hi", "--model", folders["llada"], "--adapter", adapter, *SMALL, "--json")
    whole = voidpad("generate", "hi", "--model", tmp_path / "merged", *SMALL, "--json")
    plain = voidpad("generate", "hi", "--model", folders["llada"], *SMALL, "--json")
    assert untimed(whole.rows[0]) == untimed(apart.rows[0]) != untimed(plain.rows[0])


def test_merges_that_cannot_work_write_nothing(voidpad, folders, adapter, tmp_path):
    run = ("merge", folders["llada"], "--adapter", adapter, "--out")
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "mine").write_text("x")
    complains(voidpad(*run, taken), 2, "already exists; choose another folder or remove it.")
    assert os.listdir(taken) == ["mine"]
    complains(
        voidpad("merge", folders["dream"], "--adapter", adapter, "--out", tmp_path / "m"), 1, "family 'llada'"
    )
    truncate(adapter / "adapter_model.safetensors")
    complains(voidpad(*run, tmp_path / "m"), 1, "damaged safetensors file")
    (adapter / "adapter_model.safetensors").unlink()
    torch.save({}, adapter / "adapter_model.bin")
    complains(voidpad(*run, tmp_path / "m"), 1, "pickle weights can run code")
    assert sorted(os.listdir(tmp_path)) == ["adapter", "taken"]


# ------------------------------------------------------------------------------------------ in its own process
def process(*arguments: object, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "voidpad.commands.cli", *map(str, arguments)],
        capture_output=True,
        timeout=600,
        **options,
    )


def test_a_real_process_reads_a_pipe_and_answers(folders, models):
    ran = process("generate", "--model", folders["llada"], *SMALL, "--json", input="café?".encode())
    assert ran.returncode == 0, ran.stderr
    [wanted] = models["llada"].generate("café?", canvas=8, block=4)
    assert untimed(json.loads(ran.stdout)) == told(wanted)
    assert ran.stderr == b"plan: original (this checkpoint names no padding)\n"


def test_a_real_process_ends_with_the_right_status(folders):
    ran = process(
        "generate", "hi", "--model", folders["llada"], "--canvas", 9, "--block", 4, stdin=subprocess.DEVNULL
    )
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr == b"voidpad: canvas=9 is not a multiple of block=4; use 12.\n"


def test_a_reader_that_goes_away_is_no_error():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        ran = subprocess.run(
            [sys.executable, "-m", "voidpad.commands.cli", "plans", "void"],
            stdout=gone,
            stderr=subprocess.PIPE,
            timeout=600,
        )
    assert b"Traceback" not in ran.stderr
    assert b"Exception" not in ran.stderr
