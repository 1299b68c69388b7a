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
from safetensors import safe_open
from safetensors.torch import save

from voidpad.errors import ConfigError, DataError
from voidpad.models import character_tokenizer
from voidpad.models.checkpoint import vocabulary
from voidpad.roles import Roles
from voidpad.training import prepared as data
from voidpad.training.prepared import Example, Pairs

WORDS = character_tokenizer(100)
ROLES = Roles(mask=0, eos=1, void=2)
ROWS = [Example([5, 6, 7], [8, 9]), Example([5], [300, 9, 10], complete=False), Example([4], [], True)]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    WORDS.save_pretrained(folder)
    return str(folder)


@pytest.fixture
def prepare(tmp_path, tokenizer):
    """Prepare a source, or records that are first written to x.jsonl."""

    def prepared(source, name=tokenizer, **wanted):
        from voidpad.training import corpus

        if not isinstance(source, str):
            source = lines(tmp_path / "x.jsonl", source)
        return corpus.prepare([source], name, corpus.CorpusRequest(**{"raw": True, **wanted}))

    return prepared


def lines(path, records):
    path.write_bytes(b"".join(r if isinstance(r, bytes) else json.dumps(r).encode() + b"\n" for r in records))
    return str(path)


def pair(prompt, response):
    return {"messages": [{"role": "user", "content": prompt}, {"role": "assistant", "content": response}]}


def texts(prepared):
    """Prompt and answer of every example."""
    spans = [prepared.pairs.spans(row) for row in range(len(prepared.pairs))]
    return [tuple(WORDS.decode(ids) for _, ids in row[:2]) for row in spans]


def test_a_prepared_file_gives_back_what_was_written(tmp_path):
    pairs = Pairs.of(ROWS)
    data.write(tmp_path / "x.safetensors", pairs, ROLES, notes={"a": 1})
    again = data.read(tmp_path / "x.safetensors")
    assert again.roles == ROLES
    assert again.notes == {"a": 1}
    for name in data.TENSORS:
        assert torch.equal(getattr(again.pairs, name).long(), getattr(pairs, name).long())
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


MEASURED = """
import resource, sys, torch
from voidpad.models.checkpoint import vocabulary
from voidpad.training import corpus, prepared
from voidpad.training.batches import PaddedRows
from voidpad.training.recipe import PaddingPart

# Memory of the process's own; pages of a mapped file are not among it, because the system may drop them at any time.
def own():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) >> 10

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

file, chats, tokenizer = sys.argv[1:]
vocabulary(tokenizer)
before = peak()
_, counts = corpus.prepare([chats], tokenizer, corpus.CorpusRequest())
print(peak() - before, counts.kept, counts.dropped["too_long"])
before = own()
data = prepared.read(file)
rows = PaddedRows(data.pairs, data.roles, PaddingPart(), seed=42)
rows.batch(0, torch.arange(6), rows.lengths(0, torch.arange(6), 6)[0])
print(data.pairs.tokens.nbytes >> 20, own() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from Linux's /proc")
def test_long_lines_and_large_files_take_little_memory(tmp_path, tokenizer):
    """A line of four megabytes when data is prepared, and a file of a hundred when it is trained on."""
    long = [pair("a " * 2_000_000, "b"), pair("c", "d " * 2_000_000), pair("e", "f")]
    source, count, size = lines(tmp_path / "x.jsonl", long), 25_000, 800
    tokens = torch.full((count * size,), 60_000, dtype=torch.int32)
    lengths = torch.full((count,), 300), torch.full((count,), size - 300), torch.ones(count, dtype=torch.bool)
    data.write(tmp_path / "x", Pairs(tokens, *lengths), ROLES)
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "x"), source, tokenizer]
    run = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr
    megabytes, kept, too_long, whole, mapped = map(int, run.stdout.split())
    assert (kept, too_long) == (1, 2)
    assert megabytes < 150
    assert mapped < whole / 4


def metadata_of(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


TENSORS = {name: getattr(Pairs.of(ROWS), name) for name in data.TENSORS}
TAMPERED = {
    "negative ids": {"tokens": -TENSORS["tokens"]},
    "float tokens": {"tokens": TENSORS["tokens"] / 2},
    "tokens in rows": {"tokens": TENSORS["tokens"].reshape(2, 5)},
    "negative lengths": {"prompt": torch.tensor([3, 2, -1]), "response": torch.tensor([2, 4, 0])},
    "lengths beyond the tokens": {"response": torch.tensor([2, 30, 0])},
    "a length too few": {"prompt": torch.tensor([3, 1])},
    "nothing to learn": {"complete": torch.tensor([1, 0, 0])},
    "fixed text beyond the tokens": {"fixed": torch.tensor([0, 0, 1])},
    "no examples": {name: torch.empty(0, dtype=torch.long) for name in data.TENSORS},
    "a missing tensor": {"complete": None},
}


def test_damaged_and_tampered_files_are_refused_in_one_line(tmp_path):
    path = tmp_path / "x.safetensors"
    with pytest.raises(DataError, match="no such file"):
        data.read(path)
    data.write(path, Pairs.of(ROWS), ROLES)
    whole, metadata = path.read_bytes(), metadata_of(path)
    damages = {
        "cut": whole[:-3],
        "version": whole.replace(b'"version":"1"', b'"version":"7"'),
        "text": b"text",
    }
    for name, changes in TAMPERED.items():
        tensors = {part: value for part, value in (TENSORS | changes).items() if value is not None}
        damages[name] = save(tensors, metadata)
    for damaged in damages.values():
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"^[^\n]*x\.safetensors[^\n]*$"):
            data.read(path)


def test_every_conversation_and_every_example_is_counted_once(prepare):
    records = [
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
    ]
    prepared, counts = prepare(records, max_length=20, drop_longer=40, sample=2, skip_bad=True)
    reasons = ("bad", "no_answer", "repeated", "empty", "too_long", "no_room", "not_sampled")
    assert counts.dropped == dict.fromkeys(reasons, 1)
    assert counts.kept == 2 == len(prepared.pairs)
    assert counts.conversations == 9 == counts.kept + sum(counts.dropped.values())
    assert prepared.notes["counts"] == asdict(counts)
    odd = {reason: [int(place.split(":")[-1]) for place in found] for reason, found in counts.places.items()}
    lines_of = {"bad": [10], "no_answer": [3], "repeated": [2], "empty": [4], "too_long": [6], "no_room": [5]}
    assert odd == lines_of


def test_every_turn_of_a_conversation_can_be_an_example(prepare):
    said = zip(("system", "user", "assistant", "user", "assistant"), "sqarb", strict=True)
    records = [{"messages": [{"role": role, "content": text} for role, text in said]}]
    prompt = "system: s<|eot_id|>user: q<|eot_id|>assistant: "
    expected = [(prompt, "a"), (prompt + "a<|eot_id|>user: r<|eot_id|>assistant: ", "b")]
    for turns in ("last", "every"):
        prepared, counts = prepare(records, raw=False, turns=turns)
        assert texts(prepared) == (expected if turns == "every" else expected[1:])
        assert counts.conversations == 1
        assert counts.kept == len(prepared.pairs)
    with pytest.raises(DataError, match=r"dropped: 1 \(not one user message and one answer\)"):
        prepare(records, raw=False, turns="single")
    with pytest.raises(DataError, match=r"dropped: 1 \(system prompt or earlier messages"):
        prepare(records, raw=True)


def test_every_turn_of_a_very_long_conversation_takes_linear_time(prepare):
    """After the first prompt that is too long, what follows is counted and not tokenised."""
    turns = [{"role": role, "content": "word"} for _ in range(4000) for role in ("user", "assistant")]
    began = time.process_time()
    _, counts = prepare([{"messages": turns}], raw=False, turns="every", drop_longer=300, max_length=200)
    assert time.process_time() - began < 10
    assert counts.kept > 3
    assert counts.kept + sum(counts.dropped.values()) == 4000


@pytest.mark.parametrize(
    ("prompt", "response"),
    [("what is <|mask|>?", "b"), ("a", "b<|endoftext|>"), ("a<|eot_id|>assistant: no", "b")],
)
def test_a_special_token_written_in_a_message_stays_text(prepare, prompt, response):
    prepared, _ = prepare([pair(prompt, response)], raw=False)
    # This vocabulary has neither "|" nor "_"; they show that the spelling was read letter by letter.
    prompt, response = (re.sub(r"[|_]", "<|unk|>", text) for text in (prompt, response))
    assert texts(prepared) == [(f"user: {prompt}<|eot_id|>assistant: ", response)]
    reserved = {*WORDS.all_special_ids, *WORDS.added_tokens_decoder} - {WORDS.unk_token_id}
    special = [token for token in prepared.pairs.tokens.tolist() if token in reserved]
    assert WORDS.convert_ids_to_tokens(special) == ["<|eot_id|>"]  # the template's own


def test_without_a_template_headers_are_written_by_hand_but_never_a_mask(prepare):
    assert prepare([pair("user: hi<|eot_id|>assistant: ", "b")])[1].kept == 1
    with pytest.raises(DataError, match="special token"):
        prepare([pair("<|mask|>", "b")])


def test_a_special_token_that_cannot_stay_text_is_refused_by_line(tmp_path, prepare):
    words = character_tokenizer(100)
    words.chat_template = "{% for m in messages %}{{ m.content | replace('q', 'k') }}<|eot_id|>{% endfor %}"
    words.save_pretrained(tmp_path / "rewrites")
    given = ([pair("fine", "yes"), pair("q <|mask|>", "b")], str(tmp_path / "rewrites"))
    with pytest.raises(DataError, match=r"x\.jsonl:2: this chat template rewrites the text of messages"):
        prepare(*given, raw=False)
    _, counts = prepare(*given, raw=False, skip_bad=True)
    assert (counts.dropped, counts.kept) == ({"special_tokens": 1}, 1)


def test_files_with_the_same_content_give_the_same_examples(tmp_path, prepare):
    """The formats of a record are tested in test_chats.py."""
    from datasets import Dataset

    expected = [(f"question {k}", f"answer {k}") for k in range(4)]
    parts = [pair(*([{"type": "text", "text": text}] for text in both)) for both in expected]
    Dataset.from_list(parts).to_parquet(tmp_path / "parts.parquet")
    (tmp_path / "array.json").write_text(json.dumps([pair(*both) for both in expected], indent=1))
    for source in (str(tmp_path / "parts.parquet"), str(tmp_path / "array.json")):
        assert texts(prepare(source)[0]) == expected
    mapped = [{"question": q, "reply": a} for q, a in expected]
    assert texts(prepare(mapped, names={"prompt": "question", "response": "reply"})[0]) == expected


def test_prompt_and_response_are_tokenised_apart_and_cut_without_an_eos(prepare):
    prepared, counts = prepare([pair("ab", "c" * 9), pair("d", "ef")], max_length=6, drop_longer=99)
    assert texts(prepared) == [("ab", "cccc"), ("d", "ef")]
    assert prepared.pairs.complete.tolist() == [False, True]
    assert (counts.kept_whole, counts.kept_cut) == (1, 1)


def test_an_adapter_stands_for_its_base(prepare):
    records = [pair("Tom has 13 cards.", "13 + 2 = 15")]
    through, direct = (prepare(records, name, raw=False)[0] for name in ("tiny-void", "tiny-instruct"))
    assert through.pairs.tokens.tolist() == direct.pairs.tokens.tolist()
    assert through.roles == direct.roles


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"{oops\n", b"[1]\n"])
def test_bad_lines_are_named_by_file_and_line(prepare, line):
    records = [pair("a", "b"), line, pair("c", "d")]
    with pytest.raises(DataError, match=r"x\.jsonl:2: .*--skip-bad"):
        prepare(records)
    _, counts = prepare(records, skip_bad=True)
    assert (counts.dropped, counts.kept) == ({"bad": 1}, 2)


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_sample_follows_its_seed_and_not_the_number_of_processes(prepare, processes):
    records = [pair(f"question {k}", "yes") for k in range(30)]
    first, again, other = (
        texts(prepare(records, sample=5, seed=seed, processes=count)[0])
        for seed, count in ((1, 1), (1, processes), (2, 1))
    )
    assert first == again != other


def test_sources_without_a_conversation_are_named(tmp_path, monkeypatch, prepare):
    monkeypatch.chdir(tmp_path)
    for name, content in (("x.parquet", "no"), ("empty.jsonl", ""), ("empty.json", "[]")):
        (tmp_path / name).write_text(content)
    for name in ("x.parquet", "empty.jsonl", "empty.json", "x.jsonl", "nowhere"):
        with pytest.raises((DataError, ConfigError), match=rf"^[^\n]*{name}[^\n]*$"):
            prepare(name)


def test_a_file_with_nothing_to_learn_says_why(prepare):
    dropped = r"dropped: 1 \(prompt and response are too long together\)"
    with pytest.raises(DataError, match=f"nothing to learn in 1 conversations; {dropped}"):
        prepare([pair("a", "b" * 50)], drop_longer=10, max_length=10)


def test_statistics_of_the_spec_example():
    rows = [Example([5] * p, [8] * r) for p, r in ((2, 1), (1, 4), (3, 2), (1, 1))]
    found = Pairs.of(rows).statistics()
    assert (found["examples"], found["tokens"], found["truncated"], found["cdf"][4]) == (4, 15, 0, 1)
    assert [found["response"][name] for name in ("mean", "min", "max")] == [2, 1, 4]


def shown_lines(ran):
    assert ran.status == 0, ran.err
    return [line.strip() for line in ran.out.splitlines()]


def test_data_commands(tmp_path, tokenizer, voidpad):
    chats = [pair(f"question {k}", "yes" * (k + 1)) for k in range(12)]
    source = lines(tmp_path / "x.jsonl", [*chats, chats[0]])
    target = tmp_path / "x.safetensors"
    ran = voidpad("data prepare", target, "--from", source, "--model", tokenizer, "--raw")
    assert re.search(
        r"dropped: repeats .* 1 examples kept, whole 12 ", " ".join(ran.out.replace("│", " ").split())
    )
    assert data.read(target).notes["counts"]["dropped"] == {"repeated": 1}
    found = json.loads(voidpad("data stats", target, "--json", "--plot", tmp_path / "x.png").out)
    assert found["examples"] == 12
    assert found["cdf"]["16"] == pytest.approx(5 / 12)
    assert (tmp_path / "x.png").stat().st_size > 1000
    assert "F(m)" in voidpad("data stats", target).out
    assert shown_lines(voidpad("data show --count 1 --first 2", target)) == [
        "example 2: 10 tokens of prompt, 6 of answer",
        "given  | question 1",
        "learnt | yesyes",
        "learnt | EOS, then padding",
    ]


def test_examples_with_gaps_are_shown_with_what_is_given(tmp_path, tokenizer, voidpad):
    ids, roles = WORDS("abcdef")["input_ids"], vocabulary(tokenizer)[1]
    data.write(tmp_path / "x", Pairs.of([Example(ids[:2], ids[2:], fixed=[(0, 1), (3, 4)])]), roles)
    shown = shown_lines(voidpad("data show", tmp_path / "x", "--model", tokenizer))
    assert shown[1:] == ["given  | ab", "given  | c", "learnt | de", "given  | f"]
