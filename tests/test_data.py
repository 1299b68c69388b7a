"""Prepared files, and the way from conversations to one."""

import json
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from voidpad.errors import ConfigError, DataError
from voidpad.models import character_tokenizer
from voidpad.models.checkpoint import vocabulary
from voidpad.roles import Roles
from voidpad.training import prepared as data
from voidpad.training.padding import Example, Pairs

ROLES = Roles(mask=0, eos=1, void=2)
ROWS = [Example([5, 6, 7], [8, 9]), Example([5], [300, 9, 10], complete=False), Example([4], [], True)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    character_tokenizer(100).save_pretrained(folder)
    return str(folder)


def lines(path, records):
    path.write_bytes(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records))
    return str(path)


def pair(prompt, response):
    return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]}


def prepare(*given, **wanted):
    from voidpad.training.corpus import CorpusRequest
    from voidpad.training.corpus import prepare as build

    return build(given[0], given[1], CorpusRequest(**{"raw": True, **wanted}))


def test_a_prepared_file_gives_back_what_was_written(tmp_path):
    pairs = Pairs.of(ROWS)
    data.write(tmp_path / "x.safetensors", pairs, ROLES, notes={"a": 1})
    again = data.read(tmp_path / "x.safetensors")
    assert again.roles == ROLES
    assert again.notes == {"a": 1}
    for name in data.TENSORS:
        assert torch.equal(getattr(again.pairs, name).long(), getattr(pairs, name).long())
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


MAPPED = """
import sys, torch
from voidpad.training import prepared
from voidpad.training.batches import PaddedRows
from voidpad.training.losses import Noising
from voidpad.training.recipe import PaddingPart

# Memory of the process's own; pages of a mapped file are not among it, because the system may drop them at any time.
def own():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) >> 10

before = own()
data = prepared.read(sys.argv[1])
assert data.largest_id == 60_000
rows = PaddedRows(data.pairs, data.roles, PaddingPart(), noising=Noising())
rows(0, torch.arange(6))
mapped = own() - before
copy = data.pairs.tokens.clone()
print(data.pairs.tokens.nbytes >> 20, mapped, own() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from Linux's /proc")
def test_training_does_not_hold_the_whole_file_in_memory(tmp_path):
    count, size = 25_000, 800
    tokens = torch.full((count * size,), 60_000, dtype=torch.int32)
    lengths = torch.full((count,), 300), torch.full((count,), size - 300), torch.ones(count, dtype=torch.bool)
    data.write(tmp_path / "x", Pairs(tokens, *lengths), ROLES)
    command = [sys.executable, "-c", MAPPED, str(tmp_path / "x")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900, check=True)
    whole, mapped, copied = map(int, run.stdout.split())
    assert mapped < whole / 4
    assert copied > whole - 1  # a copy would have been noticed


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(DataError, match="no such file"):
        data.read(path)
    data.write(path, Pairs.of(ROWS), ROLES)
    whole = path.read_bytes()
    for damaged in (whole[:-3], whole.replace(b'"version":"1"', b'"version":"7"'), b"text"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"x\.safetensors"):
            data.read(path)
    pairs = Pairs.of(ROWS)
    for wrong in (
        Pairs(pairs.tokens[1:], pairs.prompt, pairs.response, pairs.complete),  # lengths that do not add up
        Pairs.of([Example([5], [], complete=False)]),  # nothing to learn
        Pairs.of([]),
    ):
        data.write(path, wrong, ROLES)
        with pytest.raises(DataError, match="prepare it again"):
            data.read(path)


def test_every_conversation_and_every_example_is_counted_once(tmp_path, tokenizer):
    source = lines(
        tmp_path / "x.jsonl",
        [
            pair("one", "first answer"),
            pair(" one ", "first answer "),  # a repeat, after stripping
            {"messages": [{"role": "user", "content": "alone"}]},
            pair("two", ""),
            pair("p" * 30, "r"),
            pair("three", "r" * 40),
            pair("four", "r" * 17),
            {"prompt": "five", "response": "plain fields"},
            b"\n",  # nothing
            b"{oops\n",
        ],
    )
    prepared, counts = prepare([source], tokenizer, max_length=20, drop_longer=40, sample=2, skip_bad=True)
    assert counts.conversations == 9
    assert counts.dropped_conversations == {"bad": 1, "no_answer": 1}
    assert counts.examples == 7
    expected = {"repeated": 1, "empty": 1, "too_long": 1, "no_room": 1, "not_sampled": 1}
    assert counts.dropped_examples == expected
    assert counts.kept == 2 == len(prepared.pairs)
    assert counts.examples == counts.kept + sum(expected.values())
    assert prepared.notes["counts"] == asdict(counts)
    odd = {reason: [place.split(":")[-1] for place in places] for reason, places in counts.places.items()}
    assert odd == {
        "bad": ["10"], "no_answer": ["3"], "repeated": ["2"], "empty": ["4"], "too_long": ["6"], "no_room": ["5"],
    }  # fmt: skip


def test_every_turn_of_a_conversation_can_be_an_example(tmp_path, tokenizer):
    roles = ("system", "user", "assistant", "user", "assistant")
    record = {
        "messages": [{"role": r, "content": c} for r, c in zip(roles, ("s", "q", "a", "r", "b"), strict=True)]
    }
    source = lines(tmp_path / "x.jsonl", [record])
    words = character_tokenizer(100)
    for turns, expected in (("last", ["b"]), ("every", ["a", "b"])):
        prepared, counts = prepare([source], tokenizer, raw=False, turns=turns)
        pairs = prepared.pairs
        ends = pairs.size.cumsum(0).tolist()
        starts = (pairs.size.cumsum(0) - pairs.response).tolist()
        assert [words.decode(pairs.tokens[a:b]) for a, b in zip(starts, ends, strict=True)] == expected
        assert (counts.conversations, counts.examples, counts.kept) == (1, len(expected), len(expected))
    prompt = words.decode(prepared.pairs.tokens[int(pairs.start[1]) : starts[1]])
    start = "system: s<|eot_id|>user: q<|eot_id|>assistant: a<|eot_id|>"
    assert prompt == start + "user: r<|eot_id|>assistant: "
    with pytest.raises(DataError, match=r"dropped: 1 \(not one user message and one answer\)"):
        prepare([source], tokenizer, raw=False, turns="single")
    with pytest.raises(DataError, match=r"dropped: 1 \(system prompt or earlier messages"):
        prepare([source], tokenizer, raw=True)


@pytest.mark.parametrize(
    ("prompt", "response"),
    [("what is <|mask|>?", "b"), ("a", "b<|endoftext|>"), ("a<|eot_id|>assistant: no", "b")],
)
def test_a_special_token_written_in_a_message_stays_text(tmp_path, tokenizer, prompt, response):
    words = character_tokenizer(100)
    prepared, _ = prepare([lines(tmp_path / "x.jsonl", [pair(prompt, response)])], tokenizer, raw=False)
    border, ids = int(prepared.pairs.prompt[0]), prepared.pairs.tokens.tolist()
    # This vocabulary has neither "|" nor "_"; they show that the spelling was read letter by letter.
    prompt, response = (re.sub(r"[|_]", "<|unk|>", text) for text in (prompt, response))
    assert words.decode(ids[:border]) == f"user: {prompt}<|eot_id|>assistant: "
    assert words.decode(ids[border:]) == response
    reserved = {*words.all_special_ids, *words.added_tokens_decoder} - {words.unk_token_id}
    special = [token for token in ids if token in reserved]
    assert words.convert_ids_to_tokens(special) == ["<|eot_id|>"]  # the template's own


def test_without_a_template_headers_are_written_by_hand_but_never_a_mask(tmp_path, tokenizer):
    source = lines(tmp_path / "x.jsonl", [pair("user: hi<|eot_id|>assistant: ", "b")])
    assert prepare([source], tokenizer, raw=True)[1].kept == 1
    with pytest.raises(DataError, match="special token"):
        prepare([lines(tmp_path / "x.jsonl", [pair("<|mask|>", "b")])], tokenizer, raw=True)


def test_a_special_token_that_cannot_stay_text_is_refused_by_line(tmp_path, tokenizer):
    words = character_tokenizer(100)
    words.chat_template = "{% for m in messages %}{{ m.content | replace('q', 'k') }}<|eot_id|>{% endfor %}"
    words.save_pretrained(tmp_path / "rewrites")
    source = lines(tmp_path / "x.jsonl", [pair("fine", "yes"), pair("q <|mask|>", "b")])
    with pytest.raises(DataError, match=r"x\.jsonl:2: this chat template rewrites the text of messages"):
        prepare([source], str(tmp_path / "rewrites"), raw=False)
    _, counts = prepare([source], str(tmp_path / "rewrites"), raw=False, skip_bad=True)
    assert counts.dropped_examples["special_tokens"] == 1
    assert counts.kept == 1


def test_formats_with_the_same_content_give_the_same_file(tmp_path, tokenizer):
    from datasets import Dataset

    texts = [(f"question {k}", f"answer {k}") for k in range(4)]
    parts = [[[{"type": "text", "text": text}] for text in both] for both in texts]
    formats = {
        "messages.jsonl": [pair(*text) for text in texts],
        "alpaca.json": [{"instruction": q, "input": "", "output": a} for q, a in texts],
        "mapped.jsonl": [{"question": q, "reply": a} for q, a in texts],
        "parts.parquet": [pair(*both) for both in parts],
    }
    tokens = []
    for name, records in formats.items():
        path = tmp_path / name
        if path.suffix == ".parquet":
            Dataset.from_list(records).to_parquet(path)
        elif path.suffix == ".json":
            path.write_text(json.dumps(records, indent=1))
        else:
            lines(path, records)
        names = {"prompt": "question", "response": "reply"} if name == "mapped.jsonl" else {}
        tokens.append(prepare([str(path)], tokenizer, names=names)[0].pairs.tokens.tolist())
    assert all(found == tokens[0] for found in tokens)
    assert len(tokens[0]) == sum(len(q) + len(a) for q, a in texts)


def test_prompt_and_response_are_tokenised_apart_and_cut_without_an_eos(tmp_path, tokenizer):
    source = lines(tmp_path / "x.jsonl", [pair("ab", "c" * 9), pair("d", "ef")])
    prepared, counts = prepare([source], tokenizer, max_length=6, drop_longer=99)
    text = character_tokenizer(100).convert_ids_to_tokens(prepared.pairs.tokens.tolist())
    assert "".join(text) == "ab" + "cccc" + "d" + "ef"
    assert prepared.pairs.prompt.tolist() == [2, 1]
    assert prepared.pairs.response.tolist() == [4, 2]
    assert prepared.pairs.complete.tolist() == [False, True]
    assert (counts.kept_whole, counts.kept_cut) == (1, 1)


def test_an_adapter_stands_for_its_base(tmp_path):
    source = lines(tmp_path / "x.jsonl", [pair("Tom has 13 cards.", "13 + 2 = 15")])
    (through, _), (direct, _) = (
        prepare([source], name, raw=False) for name in ("tiny-void", "tiny-instruct")
    )
    assert through.pairs.tokens.tolist() == direct.pairs.tokens.tolist()
    assert through.roles == direct.roles


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"\xff\xfe\n", "not JSON in UTF-8"),
        (b"{oops\n", "not JSON"),
        (b"[1]\n", "not an object"),
    ],
)
def test_bad_lines_are_named_by_file_and_line(tmp_path, tokenizer, line, reason):
    source = lines(tmp_path / "x.jsonl", [pair("a", "b"), line, pair("c", "d")])
    with pytest.raises(DataError, match=rf"x\.jsonl:2: {reason}.*--skip-bad"):
        prepare([source], tokenizer)
    _, counts = prepare([source], tokenizer, skip_bad=True)
    assert (counts.dropped_conversations, counts.kept) == ({"bad": 1}, 2)


def test_the_sample_follows_its_seed_and_not_the_number_of_processes(tmp_path, tokenizer):
    source = lines(tmp_path / "x.jsonl", [pair(f"question {k}", "yes") for k in range(30)])
    first, again, other = (
        prepare([source], tokenizer, sample=5, seed=seed, processes=processes)[0].pairs.tokens.tolist()
        for seed, processes in ((1, 1), (1, 2), (2, 1))
    )
    assert first == again
    assert first != other


MEASURED = """
import resource, sys
from voidpad.training.corpus import CorpusRequest, prepare
from voidpad.models.checkpoint import vocabulary
vocabulary(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
_, counts = prepare([sys.argv[1]], sys.argv[2], CorpusRequest())
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(grown >> 10, counts.kept, counts.dropped_examples["too_long"])
"""


def test_a_line_of_four_megabytes_takes_little_memory(tmp_path, tokenizer):
    source = lines(
        tmp_path / "x.jsonl", [pair("a " * 2_000_000, "b"), pair("c", "d " * 2_000_000), pair("e", "f")]
    )
    command = [sys.executable, "-c", MEASURED, source, tokenizer]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    megabytes, kept, too_long = map(int, run.stdout.split())
    assert (kept, too_long) == (1, 2)
    assert megabytes < 150


def test_every_turn_of_a_very_long_conversation_takes_linear_time(tmp_path, tokenizer):
    """After the first prompt that is too long, what follows is counted and not tokenised."""
    turns = [{"role": role, "content": "word"} for _ in range(4000) for role in ("user", "assistant")]
    source = lines(tmp_path / "x.jsonl", [{"messages": turns}])
    began = time.process_time()
    _, counts = prepare([source], tokenizer, raw=False, turns="every", drop_longer=300, max_length=200)
    assert time.process_time() - began < 10
    assert counts.kept > 3
    assert counts.examples == 4000 == counts.kept + sum(counts.dropped_examples.values())


def test_unknown_characters_are_counted_and_named_by_line(tmp_path, tokenizer):
    source = lines(tmp_path / "x.jsonl", [pair("a", "b"), pair("日本", "c"), pair("d", "é")])
    _, counts = prepare([source], tokenizer, raw=False)
    assert (counts.kept, counts.unknown) == (3, 2)
    assert [place.split(":")[-1] for place in counts.places["unknown"]] == ["2", "3"]


def test_sources_that_are_not_there(tmp_path, tokenizer):
    with pytest.raises(DataError, match="no such file"):
        prepare([str(tmp_path / "x.jsonl")], tokenizer)
    with pytest.raises(ConfigError, match=r"give a \.jsonl or \.parquet"):
        prepare(["nowhere"], tokenizer)
    (tmp_path / "x.parquet").write_bytes(b"no")
    with pytest.raises(DataError, match=r"x\.parquet"):
        prepare([str(tmp_path / "x.parquet")], tokenizer)


def test_a_file_with_nothing_to_learn_says_why(tmp_path, tokenizer):
    source = lines(tmp_path / "x.jsonl", [pair("a", "b" * 50)])
    dropped = r"dropped: 1 \(prompt and response are too long together\)"
    with pytest.raises(DataError, match=f"nothing to learn; conversations read: 1; {dropped}"):
        prepare([source], tokenizer, drop_longer=10, max_length=10)
    for name in ("empty.jsonl", "empty.json"):
        (tmp_path / name).write_text("" if name == "empty.jsonl" else "[]")
        with pytest.raises(DataError, match=f"{name}: the file is empty"):
            prepare([str(tmp_path / name)], tokenizer)


def test_statistics_of_the_spec_example():
    from voidpad.training.corpus import stats

    rows = [Example([5] * p, [8] * r) for p, r in ((2, 1), (1, 4), (3, 2), (1, 1))]
    found = stats(data.Prepared(Pairs.of(rows), ROLES))
    assert (found["examples"], found["tokens"], found["truncated"], found["cdf"][4]) == (4, 15, 0, 1)
    assert [found["response"][name] for name in ("mean", "min", "max")] == [2, 1, 4]


def test_data_commands(tmp_path, tokenizer):
    from typer.testing import CliRunner

    from voidpad.commands.data import data as app

    source = lines(tmp_path / "x.jsonl", [pair(f"question {k}", "yes" * (k + 1)) for k in range(12)])
    target = tmp_path / "x.safetensors"
    run = CliRunner().invoke(app, ["prepare", str(target), "--from", source, "--model", tokenizer, "--raw"])
    assert run.exit_code == 0, run.output
    assert re.search(r"examples kept, whole\s+12\b", " ".join(run.output.replace("│", " ").split()))
    run = CliRunner().invoke(app, ["stats", str(target), "--json", "--plot", str(tmp_path / "x.png")])
    found = json.loads(run.output)
    assert found["examples"] == 12
    assert found["cdf"]["16"] == pytest.approx(5 / 12)
    assert (tmp_path / "x.png").stat().st_size > 1000
    assert "F(m)" in CliRunner().invoke(app, ["stats", str(target)]).output
    run = CliRunner().invoke(app, ["show", str(target), "--count", "1", "--first", "2"])
    assert [line.strip() for line in run.output.splitlines()] == [
        "example 2: 10 tokens of prompt, 6 of answer",
        "given  | question 1",
        "learnt | yesyes",
        "learnt | EOS, then padding",
    ]


def test_examples_with_gaps_are_shown_with_what_is_given(tmp_path, tokenizer):
    from typer.testing import CliRunner

    from voidpad.commands.data import data as app

    words = character_tokenizer(100)
    ids, roles = words("abcdef")["input_ids"], vocabulary(tokenizer)[1]
    data.write(tmp_path / "x", Pairs.of([Example(ids[:2], ids[2:], fixed=[(0, 1), (3, 4)])]), roles)
    run = CliRunner().invoke(app, ["show", str(tmp_path / "x"), "--model", tokenizer])
    assert [line.strip() for line in run.output.splitlines()][1:] == [
        "given  | ab", "given  | c", "learnt | de", "given  | f",
    ]  # fmt: skip
