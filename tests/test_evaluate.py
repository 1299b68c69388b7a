"""Evaluation: texts from canvases, the run folder, interrupted and divided runs, lm-eval's own door."""

import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from voidpad.errors import ConfigError, DataError, RoleError, VoidpadError
from voidpad.evaluate import AnswerRequest, EvalConfig, Resources, RunFolder, evaluate, join, read_run
from voidpad.evaluate.answer import Answerer, scored_text
from voidpad.evaluate.folder import AnswerRecord, Journal
from voidpad.evaluate.intervals import mcnemar, mean_of_tasks, paired_bootstrap, wilson
from voidpad.evaluate.lm_eval import VoidpadLM, with_our_tasks
from voidpad.evaluate.prepare import stop_strings
from voidpad.evaluate.run import prepare
from voidpad.evaluate.tasks import FOLDER
from voidpad.models import random_model, save
from voidpad.roles import Roles

TIMINGS = {"seconds", "wall_seconds", "started", "finished"}
CHECKOUT = {"commit", "dirty"}  # a commit may come between two runs of a test
SETTINGS = EvalConfig(
    model="random",
    tasks=("tiny_steps", "tiny_write"),
    fields={"canvas": 16, "block": 8, "temperature": 2.0},
    limit=6,
)
CODE = Resources(allow_code_execution=True)


@pytest.fixture(scope="module")
def model():
    return random_model("llada", vocab=110, context=1024, dtype=torch.float64)


def untimed(value):
    if isinstance(value, dict):
        return {name: untimed(inner) for name, inner in value.items() if name not in TIMINGS | CHECKOUT}
    return [untimed(inner) for inner in value] if isinstance(value, list) else value


def content(folder: Path):
    run = read_run(folder)
    return untimed([run.head, [asdict(one) for one in run.requests], run.examples, run.results])


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("whole")
    evaluate(SETTINGS, folder, model=model, resources=CODE)
    return folder


# Texts from canvases


def canvas(model, *parts) -> list[int]:
    roles = {
        "EOS": model.roles.eos,
        "VOID": model.roles.void,
        "MASK": model.roles.mask,
        "R3": model.roles.rainbow[3],
    }
    roles["TURN"] = model.tokenizer.convert_tokens_to_ids("<|eot_id|>")
    return [i for part in parts for i in ([roles[part]] if part in roles else model.encode(part, raw=True))]


@pytest.mark.parametrize(
    ("parts", "stops", "parity", "text"),
    [
        (("one ", "VOID", "two", "EOS", "three", "MASK"), [], None, "one two"),
        (("one", "TURN", "two"), [], None, "one"),
        (("one ", "VOID", "two", "EOS", "three"), ["w", "n"], None, "o"),
        (("one ", "VOID", "two", "EOS", "three"), ["", "zzz"], None, "one two"),
        (("x = 1", *"<|eot_id|>", "EOS"), [], None, "x = 1<|eot_id|>"),
        ((*"<|start_header_id|>", "x = 1", *"<|eot_id|>", "EOS"), [], "llada", "x = 1"),
        (("#### 18 dollars.", "EOS", "extra 42."), ["Question:"], "llada", "#### 18 dollars.extra 42."),
        (("#### 18 dollars.", "EOS", "extra 42."), ["Question:"], "dream", "#### 18 dollars."),
        (("18", "R3", "TURN", "EOS", "42"), [], "dream", "18<|rainbow_3|><|eot_id|>"),
        (("18", "R3", "TURN", "EOS", "42"), ["<|eot"], "dream", "18<|rainbow_3|>"),
    ],
)
def test_texts_as_the_specification_says(model, parts, stops, parity, text):
    """Ours has no special tokens and ends at the first end; the paper's harnesses score text after an EOS (LLaDA)
    and the spelling of special tokens (Dream)."""
    assert scored_text(model, canvas(model, *parts), stops, parity=parity) == text


# The run folder


def test_results_follow_from_the_examples_and_say_where_they_come_from(whole):
    run = read_run(whole)
    assert [(one["task"], one["index"]) for one in run.examples] == [
        (task, index) for task in SETTINGS.tasks for index in range(6)
    ]
    for one in run.examples:
        assert one["at_cap"] == (not one["eos"])
        assert one["eos"] or one["stop_reason"] == "full"
        assert max(one["passes_decode"], one["answer_tokens"]) <= 16 == one["canvas"]
        assert one["score"] == one["scores"]["last"]
    assert run.examples[6]["detail"]["reason"] in {"error", "failed"}
    for name, task in run.results["tasks"].items():
        mine = [one for one in run.examples if one["task"] == name]
        assert (task["n"], task["test_size"]) == (6, 500)
        assert task["score"] == round(100 * sum(one["score"] for one in mine) / 6, 2)
        assert task["interval"] == [100 * end for end in wilson(task["correct"], 6)]
        assert task["passes_decode"] == pytest.approx(sum(one["passes_decode"] for one in mine) / 6)
        assert task["share_without_eos"] == pytest.approx(sum(not one["eos"] for one in mine) / 6)
    known = run.results["provenance"]
    assert run.results["wall_seconds"] > 0
    assert known == run.head["provenance"]
    assert all(known[name] for name in ("voidpad", "torch", "transformers", "lm_eval", "math_verify"))
    facts = {"device": "cpu", "tf32": False, "probes_counted": False, "family": "llada", "data": "built in"}
    assert facts.items() <= known.items()
    assert known["sandbox"]["allowed"] is True
    assert {"block": 8, "canvas": 16}.items() <= run.head["plan"].items()


@pytest.mark.parametrize("trim", [False, True])
def test_a_canvas_that_may_still_grow_is_not_at_its_cap(model, tmp_path, trim):
    """Thresholds that always hold keep the first canvas of 8 slots; with EOS banned no answer has an end."""
    fields = {"canvas": 8, "limit": 32, "block": 8, "tau_nonvoid": 1.0, "tau_gap": -1.0, "ban": "void,eos"}
    config = SETTINGS.updated(tasks=("tiny_steps",), plan="void-expansion", fields={**fields, "trim": trim})
    results = evaluate(config, tmp_path, model=model)["tasks"]["tiny_steps"]
    assert (results["canvas"], results["share_without_eos"], results["share_at_cap"]) == (8, 1, 0)


def test_batches_do_not_change_results(model, whole, tmp_path):
    evaluate(SETTINGS, tmp_path, model=model, resources=replace(CODE, rows=3, tokens=700))
    ours, theirs = read_run(tmp_path), read_run(whole)
    assert untimed(ours.examples) == untimed(theirs.examples)


def test_all_tasks_share_one_pool_and_a_finished_run_is_only_scored_again(model, whole, tmp_path):
    """Twelve rows of two tasks take as many forward passes as the slowest row."""
    calls = []
    hook = model.net.model.embed_tokens.register_forward_hook(lambda *_: calls.append(1))
    for passes in (max(one["passes_decode"] for one in read_run(whole).examples), 0):
        evaluate(SETTINGS, tmp_path, model=model, resources=CODE)
        assert len(calls) == passes
        assert content(tmp_path) == content(whole)
        calls.clear()
    hook.remove()


def test_one_process_reads_nothing_from_the_folder_that_it_writes(model, tmp_path):
    """The stages hand each other objects. Drafts alone are opened again, to be synced."""
    read = set()

    def watch(event, arguments):
        inside = event == "open" and str(arguments[0]).startswith(f"{tmp_path}/")
        if inside and not arguments[2] & (os.O_WRONLY | os.O_RDWR):
            read.add(Path(arguments[0]).name)

    sys.addaudithook(watch)  # it stays as long as the process; no other test has this folder
    evaluate(SETTINGS, tmp_path, model=model, resources=CODE)
    assert {name for name in read if ".part" not in name} == set()
    read_run(tmp_path).examples  # noqa: B018
    assert {"config.json", "examples.jsonl.gz"} <= read


@pytest.mark.parametrize("kept", [0, 1, 7])
def test_a_run_goes_on_from_its_journal(model, whole, tmp_path, kept):
    lines = (whole / "progress.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "config.json").write_bytes((whole / "config.json").read_bytes())
    (tmp_path / "progress.jsonl").write_bytes(b"".join(lines[:kept]) + lines[kept][:50])
    evaluate(SETTINGS, tmp_path, model=model, resources=CODE)
    assert content(tmp_path) == content(whole)
    journal = (tmp_path / "progress.jsonl").read_bytes().splitlines(keepends=True)
    assert journal[:kept] == lines[:kept]
    assert len(journal) == 12


@pytest.mark.parametrize("name", [".lock", "progress.jsonl"])
def test_a_link_in_the_folder_is_not_written_through(model, tmp_path, name):
    victim, run = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine, without a line break")
    run.mkdir()
    (run / name).symlink_to(victim)
    with pytest.raises(ConfigError, match="symbolic link"):
        evaluate(SETTINGS.updated(tasks=("tiny_steps",), limit=1), run, model=model)
    assert victim.read_text() == "mine, without a line break"


def test_a_folder_of_other_settings_or_in_use_or_damaged_is_refused(model, whole, tmp_path):
    assert read_run(whole).results["provenance"]["approximations"] == []
    for name, value, fault in (("seed", 1, "seed=0, now 1"), ("cache", "dual", "cache=None, now 'dual'")):
        with pytest.raises(ConfigError, match=f"a run with {fault}"):
            evaluate(SETTINGS.updated(**{name: value}), whole, model=model, resources=CODE)
    with RunFolder(tmp_path).writing(), pytest.raises(ConfigError, match="another process"):
        evaluate(SETTINGS, tmp_path, model=model, resources=CODE)
    (tmp_path / "progress.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match=r"progress.jsonl:1: damaged"):
        RunFolder(tmp_path).journal  # noqa: B018


def test_what_cannot_run_is_refused_before_anything_is_written(model, tmp_path):
    voidless = replace(model, card=replace(model.card, roles=Roles(model.roles.mask, model.roles.eos)))
    for config, kind, fault in (
        (SETTINGS, RoleError, "'void'"),
        (SETTINGS.updated(tasks=()), ConfigError, "tasks"),
    ):
        with pytest.raises(kind, match=fault):
            evaluate(config, tmp_path / "run", model=voidless, resources=CODE)
    assert not (tmp_path / "run").exists()


def test_shards_join_to_the_whole(model, whole, tmp_path):
    parts = [tmp_path / str(part) for part in range(3)]
    for part, folder in enumerate(parts):
        results = evaluate(SETTINGS.updated(shard=(part, 3)), folder, model=model, resources=CODE)
        assert results["tasks"]["tiny_steps"]["n"] == 2
    join(parts, tmp_path / "all", resources=CODE)
    assert content(tmp_path / "all")[1:] == content(whole)[1:]
    assert read_run(tmp_path / "all").config == read_run(whole).config


def test_parts_that_are_not_one_run_are_refused_before_anything_is_written(model, tmp_path):
    whole = SETTINGS.updated(tasks=("tiny_steps",))
    for part in range(2):
        evaluate(whole.updated(shard=(part, 2)), tmp_path / str(part), model=model)
    evaluate(whole.updated(shard=(1, 2), seed=7), tmp_path / "seed", model=model)
    prepare(whole.updated(shard=(1, 2)), RunFolder(tmp_path / "empty"))
    config = json.loads((tmp_path / "1" / "config.json").read_text())
    (tmp_path / "empty" / "config.json").write_text(json.dumps(config))
    refused = [
        (["0"], DataError, "tiny_steps:1"),
        (["0", "seed"], ConfigError, "seed=7"),
        (["0", "nothing"], DataError, "nothing/config.json: no such file"),
        (["0", "empty"], DataError, "3 items have no answer, the first is tiny_steps:1"),
    ]
    for names, kind, message in refused:
        with pytest.raises(kind, match=message):
            join([tmp_path / name for name in names], tmp_path / "all")
    assert not (tmp_path / "all").exists()
    with pytest.raises(ConfigError, match=r"shard=.* use another --out"):
        join([tmp_path / "0", tmp_path / "1"], tmp_path / "1")


def test_a_failed_pass_names_task_and_item(model, monkeypatch):
    answerer = Answerer(model, model.plan("void", canvas=16, block=8))
    with pytest.raises(ConfigError, match=r"^tiny_steps:9: "):
        list(answerer.run([AnswerRequest(name="tiny_steps:9", prompt="x" * 2000)]))
    monkeypatch.setattr(model.net.model.embed_tokens, "forward", lambda ids: 1 / 0)
    asked = [AnswerRequest(name=f"tiny_steps:{item}", prompt="one") for item in range(5)]
    with pytest.raises(VoidpadError, match=r"^tiny_steps:0: ZeroDivisionError"):
        list(answerer.run(asked))


def test_two_kills_change_nothing(model, whole, tmp_path):
    """Child processes kill themselves before they write their third answer, and before the last one of all."""
    for allowed in (2, 11):
        child = os.fork()
        if child == 0:
            append = Journal.append

            def dying(journal: Journal, records: Iterable[AnswerRecord], allowed: int = allowed) -> None:
                for record in list(records):
                    if len(journal.records) >= allowed:
                        os.kill(os.getpid(), signal.SIGKILL)
                    append(journal, [record])  # noqa: B023

            Journal.append = dying
            torch.set_num_threads(1)
            try:
                evaluate(SETTINGS, tmp_path, model=model, resources=replace(CODE, rows=2))
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert not (tmp_path / "results.json").exists()
        assert len(read_run(tmp_path).journal.records) == allowed
    evaluate(SETTINGS, tmp_path, model=model, resources=replace(CODE, rows=2))
    assert untimed(read_run(tmp_path).examples) == untimed(read_run(whole).examples)
    assert untimed(read_run(tmp_path).results["tasks"]) == untimed(read_run(whole).results["tasks"])
    assert {record.attempt for record in read_run(tmp_path).journal.records.values()} == {0, 1, 2}


# EvalConfig


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"tasks": ("arc",)}, "task 'arc'"),
        ({"tasks": ("gsm8k", "gsm8k")}, "tasks"),
        ({"limit": 0}, "limit"),
        ({"fewshot": "lots"}, "fewshot"),
        ({"parity": "gpt"}, "parity"),
        ({"cache": "all"}, "cache='all'"),
        ({"plan": 3}, "plan"),
        ({"shard": (4, 4)}, "shard=4/4"),
        ({"shard": (0, 2), "fewshot": "stream"}, "fewshot=stream"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_bad_settings_are_named(fields, named):
    values = {"model": "none", "tasks": ("gsm8k",)}
    with pytest.raises(ConfigError, match=named):
        EvalConfig(**values | fields)
    with pytest.raises(ConfigError, match=named):
        EvalConfig(**values).updated(**fields)


def test_a_config_survives_its_file():
    config = EvalConfig(
        model="m", tasks=("gsm8k",), fields={"canvas": 16}, shard=(0, 2), own_tasks={"a": "b"}
    )
    assert EvalConfig(**json.loads(json.dumps(config.plain()))) == config
    assert config.updated(seed=1).id != config.id == config.updated(seed=0).id


def test_intervals():
    assert wilson(8, 10) == pytest.approx((0.4901625, 0.9433178))  # Wilson 1927's interval, from tables
    assert (wilson(0, 20)[0], wilson(20, 20)[1], wilson(0, 0)) == (0.0, 1.0, (0.0, 1.0))
    assert mcnemar(0, 5) == mcnemar(5, 0) == pytest.approx(2 / 32)
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mean_of_tasks([(0.5, (0.4, 0.6)), (0.7, (0.5, 0.8))]) == pytest.approx(
        (0.6 - math.hypot(0.1, 0.2) / 2, 0.6 + math.hypot(0.1, 0.1) / 2)
    )
    differences = [1.0] * 6 + [-1.0] * 2 + [0.0] * 42
    rng = random.Random(0)
    means = sorted(sum(rng.choices(differences, k=50)) / 50 for _ in range(4000))
    assert paired_bootstrap(differences) == pytest.approx((means[100], means[3899]), abs=0.021)


# lm-eval's own door


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    save(model, path)
    return path


def test_model_args_are_options_or_plan_fields(folder):
    text = f"pretrained={folder},plan=original,canvas=16,block=8,parity=dream,mc_samples=3"
    given = {"batch_size": 7, "max_batch_size": None, "device": "cuda:0"}  # lm-eval's default device
    lm = get_model("voidpad").create_from_arg_string(text, given)
    assert lm.answerer.plan.block == 8
    assert lm.answerer.plan.length.canvas == 16
    assert lm.answerer.config.parity == "dream"
    assert lm.answerer.resources.rows == 7
    assert lm.bound.samples == 3
    for wrong in ("colour", "parity", "cache"):
        with pytest.raises(ConfigError, match=wrong):
            VoidpadLM(str(folder), **{wrong: "x"})
    fast = VoidpadLM(str(folder), cache="prefix", threshold=0.9)
    assert fast.answerer.config.cache == "prefix"
    assert fast.answerer.plan.approximations == ("threshold",)


def request(prompt: str, doc_id: int = 0, **options) -> Instance:
    return Instance("generate_until", {}, (prompt, {"until": [], **options}), 0, ("some_task", doc_id, 1))


def test_the_template_is_applied_once_and_repeats_of_an_example_are_requests_of_their_own(model):
    lm = VoidpadLM(model, plan="original", canvas=16, block=8, temperature=1.0)
    rendered = lm.apply_chat_template([{"role": "user", "content": "Hello"}])
    first, second = lm.generate_until([request("Hello"), request("Hello")])
    assert first != second
    assert lm.generate_until([request("Hello")]) == lm.generate_until([request(rendered)]) == [first]


def test_our_tasks_are_added_unless_the_user_names_a_folder():
    assert with_our_tasks(["--tasks", "gsm8k"]) == ["--tasks", "gsm8k", "--include_path", str(FOLDER)]
    assert with_our_tasks(["--include_path=x"]) == ["--include_path=x"]
    assert with_our_tasks([]) == []
    assert get_model("dummy").__name__ == "DummyLM"  # lm-eval's own models are still there


def test_generation_options_that_a_plan_sets_are_refused(model):
    given = {"until": "stop", "do_sample": False, "temperature": 0.0, "max_gen_toks": 9}
    assert stop_strings("task", given) == ("stop",)
    with pytest.raises(ConfigError, match=r"temperature=0.7"):
        stop_strings("task", {"temperature": 0.7})


@pytest.mark.slow
def test_lm_evals_command_line(folder, tmp_path):
    words = "-m voidpad.evaluate.lm_eval run --model voidpad --tasks tiny_steps"
    command = [
        *(sys.executable, *words.split()),
        *("--model_args", f"pretrained={folder},plan=original,canvas=16,block=8", "--limit", "3"),
        *("--log_samples", "--output_path", str(tmp_path), "--apply_chat_template"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "tiny_steps" in done.stdout
    (samples,) = tmp_path.rglob("samples_tiny_steps_*.jsonl")
    assert len(samples.read_text().splitlines()) == 6  # three items, two graders
    (results,) = tmp_path.rglob("results_*.json")
    assert json.loads(results.read_text())["results"]["tiny_steps"]["exact_match,last"] == 0.0
