"""Constraints as automata: the language of a pattern or a schema, judged by `re` and `jsonschema`, over any tokens."""

import json
import pickle
import random
import re
import time
from dataclasses import asdict
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from uuid import UUID

import jsonschema
import numpy as np
import pytest

from random_patterns import byte_tokens, changed, random_expression, random_text
from voidpad.builtin.tokenizer import tokenizer as builtin_tokenizer
from voidpad.constrain import (
    ConstraintError,
    Vocabulary,
    bytes_of_tokens,
    choice,
    compile_constraint,
    json_object,
    json_schema,
    regex,
)
from voidpad.constrain.automaton import automaton_of
from voidpad.constrain.patterns import parse
from voidpad.constrain.tokens import lift

EVERYDAY = json.loads((Path(__file__).parent / "everyday_schemas.json").read_text())
FEW = list(EVERYDAY)[::10]  # in `make test`; all of them in `make test-slow`
SCHEMAS = [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in EVERYDAY]
WORDS = ("true", "false", "null", '": ', '", "', '{"', '"}', "ab", " 1", "12", "é", "a中", '": {"', "\\n")
SMALL = Vocabulary.of(byte_tokens(*WORDS))


@pytest.fixture(scope="module")
def large(data_dir) -> Vocabulary:
    """The vocabulary of Dream-7B."""
    from transformers import Qwen2Tokenizer

    tokenizer = Qwen2Tokenizer.from_pretrained(data_dir / "hub" / "dream-7b-instruct")
    return Vocabulary.of(bytes_of_tokens(tokenizer))


def random_answer(draw: random.Random, automaton, vocabulary: Vocabulary, longest: int = 200) -> bytes:
    """A text of an automaton over tokens: a random walk that heads for the end after `longest` tokens."""
    text, state, written = b"", 0, 0
    tokens = [np.flatnonzero(automaton.token_class == column) for column in range(automaton.classes)]
    while True:
        if automaton.accepting[state] and (written > longest or draw.random() < 0.1):
            return text
        moves = np.flatnonzero(automaton.table[state] >= 0)
        if not len(moves):
            return text
        if written > longest:
            moves = moves[automaton.distance[automaton.table[state, moves]] < automaton.distance[state]]
        column = draw.choice(moves.tolist())
        token = draw.choice(tokens[column].tolist())
        text += vocabulary.data[vocabulary.start[token] :][: vocabulary.length[token]].tobytes()
        state, written = int(automaton.table[state, column]), written + 1


# Regular expressions


def check_expression(seed: int) -> bool:
    """One random expression, on texts that it accepts, on changed ones, and over tokens. False if it accepts none."""
    draw = random.Random(seed)
    expression = random_expression(draw)
    try:
        automaton = automaton_of(parse(expression))
    except ConstraintError:  # too many states, which happens to a few
        return False
    compiled = re.compile(expression)
    categories = re.search(r"\\[DWSdws]", expression) is not None
    texts = [
        text for _ in range(12) if len(automaton.table) and (text := random_text(draw, automaton)) is not None
    ]
    for text in texts:
        assert compiled.fullmatch(text.decode()), (expression, text)
        other = changed(draw, text.decode())
        accepted, right = automaton.accepts(other.encode()), compiled.fullmatch(other) is not None
        # Python's \d, \w and \s hold more than ours, so with them our language is the smaller one.
        assert accepted <= right if categories else accepted == right, (expression, other)
    if not texts:
        return False
    lifted = lift(automaton, SMALL)
    for _ in range(4):
        assert compiled.fullmatch(random_answer(draw, lifted, SMALL, 20).decode()), expression
    return True


@pytest.mark.parametrize(
    ("seeds", "least"),
    [(range(60), 36), pytest.param(range(60, 1200), 700, marks=pytest.mark.slow)],
)
def test_generated_expressions_mean_what_re_means(seeds, least):
    assert sum(check_expression(seed) for seed in seeds) > least


@pytest.mark.parametrize(
    ("expression", "yes", "no"),
    [
        ("a(?:ba)*", ["a", "aba", "ababa"], ["", "ab", "abab"]),
        (".", ["x", "é", "😀"], ["\n", "", "ab"]),
        ("(?s).", ["\n"], [""]),
        ("^ab|cd$", ["ab", "cd"], ["abcd"]),
        (r"\w\d\s", ["a1 "], ["é1 ", "a١ ", "a1\u2003"]),
        (r"[^\w]", ["-", "€"], ["a", "é", "_"]),
        (r"[^\W]", ["a", "_"], ["é", "-"]),
        ("[à-ö]{2}", ["àö"], ["ab"]),
        (r"(x+x+)+y", ["xxy"], ["xy", "xxx"]),
        ("", [""], ["a"]),
    ],
)
def test_the_dialect(expression, yes, no):
    constraint = regex(expression)
    assert all(constraint.matches(text) for text in yes)
    assert not any(constraint.matches(text) for text in no)


@pytest.mark.parametrize(
    ("expression", "keyword"),
    [
        ("a(?=b)", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "a back-reference"),
        (r"a\b", "\\b"),
        ("a^b", "^ or $ inside the pattern"),
        ("(?i)a", "i"),
        ("(?m)a", "m"),
        ("(?>a)", "an atomic group"),
        ("a++", "a possessive quantifier"),
        ("(", "regex"),
        ("a{2,1}", "regex"),
        ("(" * 5000 + ")" * 5000, "regex"),
    ],
)
def test_what_the_dialect_lacks_is_refused_by_name(expression, keyword):
    with pytest.raises(ConstraintError) as refused:
        regex(expression)
    assert refused.value.keyword == keyword


def test_a_constraint_is_a_plain_value():
    assert pickle.loads(pickle.dumps(regex("a+"))) == regex("a+")
    assert hash(choice(["b", "a", "b"])) == hash(choice(["b", "a"]))


@pytest.mark.parametrize("make", [lambda: choice([]), lambda: choice([""]), lambda: choice(["a", 1]),
                                  lambda: regex(r"[^\s\S]").automaton(), lambda: json_object(9)])  # fmt: skip
def test_a_constraint_without_texts_is_refused(make):
    with pytest.raises(ConstraintError):
        make()


DOUBLED = {  # each definition is twice the one before
    f"d{n}": {
        "type": "array",
        "prefixItems": [{"$ref": f"#/$defs/d{n - 1}"}] * 2,
        "minItems": 2,
        "items": False,
    }
    for n in range(1, 25)
}


@pytest.mark.parametrize(
    "make",
    [
        *(lambda e=e: regex(e) for e in ("(?:a|b)*a(?:a|b){30}", "a{20001}")),
        lambda: json_schema({"$defs": {"d0": {"type": "null"}, **DOUBLED}, "$ref": "#/$defs/d24"}),
    ],
)
def test_a_constraint_with_too_many_states_is_refused_soon(make):
    before = time.process_time()
    with pytest.raises(ConstraintError) as refused:
        make().automaton()
    assert refused.value.keyword == "size"
    assert time.process_time() - before < 30


# Schemas


@pytest.mark.parametrize("name", SCHEMAS)
def test_everyday_schemas_write_valid_values(name):
    constraint, schema = json_schema(EVERYDAY[name]), EVERYDAY[name]
    judge = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    automaton, draw = lift(constraint.automaton(), SMALL), random.Random(0)
    for _ in range(12):
        text = random_answer(draw, automaton, SMALL).decode()
        judge.validate(json.loads(text))
        assert constraint.matches(text)


@pytest.mark.parametrize("name", SCHEMAS)
def test_everyday_schemas_compile_at_a_large_vocabulary(name, large, tmp_path):
    constraint = json_schema(EVERYDAY[name])
    before = time.process_time()
    automaton = compile_constraint(constraint, large, folder=tmp_path)
    assert time.process_time() - before < 3  # seconds
    judge, draw = jsonschema.Draft202012Validator(EVERYDAY[name]), random.Random(1)
    for _ in range(3):
        judge.validate(json.loads(random_answer(draw, automaton, large).decode()))
    before = time.process_time()
    again = compile_constraint(constraint, large, folder=tmp_path)
    assert time.process_time() - before < 0.1
    assert all(np.array_equal(getattr(automaton, name), array) for name, array in asdict(again).items())


UNION = {
    "oneOf": [
        {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]},
        {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"]},
    ]
}
VALUES = {
    "integers": ({"type": "integer", "minimum": -12, "exclusiveMaximum": 345}, range(-400, 400)),
    "integers from": ({"type": "integer", "exclusiveMinimum": 7}, range(-30, 30)),
    "integers to": ({"type": "integer", "maximum": -98}, range(-200, 10)),
    "decimals": (
        {"type": "number", "exclusiveMinimum": -1.25, "maximum": 2.05},
        [float(Decimal(n) / 100) for n in range(-300, 300)],
    ),
    "decimals within one": (
        {"type": "number", "minimum": 0.25, "exclusiveMaximum": 0.3},
        [float(Decimal(n) / 1000) for n in range(-100, 1100)],
    ),
    "decimals above zero": ({"type": "number", "exclusiveMinimum": 0}, [-1, -0.5, 0, 0.0001, 0.1, 1, 12.5]),
    "lengths": ({"type": "string", "minLength": 2, "maxLength": 3}, ["", "a", "é\n", "ab😀", '"\\"', "abcd"]),
    "types": ({"type": ["string", "null", "integer"]}, ["a", None, 3, True, 1.5, [], {}]),
    "enum": ({"enum": ["a", 1, None, [1, {"b": 2}]]}, ["a", 1, None, [1, {"b": 2}], "b", 2, []]),
    "enum of a type": ({"type": "integer", "enum": [1, "x", 2]}, [1, 2, "x"]),
    "items": (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        [[], [True], [1], [True] * 3],
    ),
    "tuple": (
        {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "null"}], "minItems": 1, "items": False},
        [[], [1], [1, None], [None], [1, None, 2]],
    ),
    "optional": (
        {"type": "object", "properties": {name: {"type": "null"} for name in "abc"}, "additionalProperties": False},
        [{}, {"a": None}, {"b": None, "c": None}, {"a": None, "c": None}, {"a": 1}, {"d": None}],
    ),
    "required": (
        {"type": "object", "properties": {name: {"type": "null"} for name in "abc"}, "required": ["b"]},
        [{}, {"b": None}, {"a": None, "b": None}, {"a": None, "c": None}, {"b": None, "c": None}],
    ),
    "map": (
        {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": 2},
        [{}, {"x": 1}, {"x": "y"}],
    ),
    "any": ({}, [None, "a", 1.5, [1, [2]], {"a": {"b": 1}}]),
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
def test_a_value_is_written_exactly_if_the_schema_allows_it(name):
    schema, values = VALUES[name]
    constraint = json_schema(schema)
    judge = jsonschema.Draft202012Validator(schema)
    for value in values:
        text = json.dumps(value, ensure_ascii=False)
        assert constraint.matches(text) == judge.is_valid(value), value


@pytest.mark.parametrize(
    ("constraint", "yes", "no"),
    [
        (json_schema({"type": "string", "pattern": '^[a"\n]+', "minLength": 2, "maxLength": 3}),
         ['"aa"', r'"a\"\n"'], ['"a"', '"aaaa"', '"aab"']),
        (json_schema(EVERYDAY["sentiment"]), ['{"label": "neutral", "score": 0.5, "explanation": ""}'],
         ['{"label":"neutral","score":0.5,"explanation":""}', '{"score": 0.5, "label": "neutral", "explanation": ""}']),
        (json_schema({"type": "string", "format": "date"}), ['"2024-02-29"', '"2000-02-29"'],
         ['"1900-02-29"', '"2023-02-29"']),
        (json_object(2), ['{"a": [1, "x", null], "b": {}}'], ['{"a": [[1]]}', "[1]"]),
        (json_schema(UNION), ['{"k": "b"}'], ['{"k": "c"}']),
    ],
)  # fmt: skip
def test_how_values_are_spelled(constraint, yes, no):
    assert all(constraint.matches(text) for text in yes)
    assert not any(constraint.matches(text) for text in no)


def test_formats_are_valid():
    read = {"date": date.fromisoformat, "date-time": datetime.fromisoformat, "uuid": UUID}
    draw = random.Random(0)
    for name, reader in read.items():
        automaton = json_schema({"type": "string", "format": name}).automaton()
        for _ in range(200):
            text = random_text(draw, automaton, 60)
            assert text is not None
            reader(json.loads(text))


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "integer", "multipleOf": 3}, "multipleOf"),
        ({"type": "array", "items": {}, "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "patternProperties": {"a": {}}}, "patternProperties"),
        ({"not": {}}, "not"),
        ({"if": {}, "then": {}}, "if"),
        ({"properties": {"a": {"dependentRequired": {}}}}, "dependentRequired"),
        ({"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"}, "$ref"),
        ({"$ref": "#"}, "$ref"),
        ({"$ref": "#/$defs/b"}, "$ref"),
        ({"$ref": "https://example.com/x"}, "$ref"),
        ({"type": "string", "format": "iri"}, "format"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"type": "strong"}, "type"),
        ({"type": "string", "minimum": 3}, "minimum"),
        ({"type": "object", "required": ["a"]}, "required"),
        ({"type": "integer", "minimum": 4, "maximum": 3}, "maximum"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength"),
        ({"enum": []}, "enum"),
        ({"const": 1, "minimum": 0, "type": "integer"}, "minimum"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"oneOf": [*UNION["oneOf"], UNION["oneOf"][0]]}, "oneOf"),
        ({"allOf": [{}, {}]}, "allOf"),
        ({"type": "array", "minItems": 3, "maxItems": 2}, "minItems"),
        ({"type": "number", "minimum": 1e30}, "minimum"),
        ({"type": "array", "items": 3}, "items"),
        ({"minLength": 3, "minItems": 2}, "minItems"),
        (reduce(lambda inner, _: {"type": "array", "items": inner}, range(400), {"type": "null"}), "items"),
    ],
)
def test_what_a_schema_cannot_ask_for_is_refused_by_name(schema, keyword):
    with pytest.raises(ConstraintError) as refused:
        json_schema(schema)
    assert refused.value.keyword == keyword


# Tokens


def test_token_bytes_are_what_the_tokenizer_decodes(data_dir):
    from transformers import Qwen2Tokenizer

    draw = random.Random(0)
    for tokenizer in (
        builtin_tokenizer(),
        Qwen2Tokenizer.from_pretrained(data_dir / "hub" / "dream-7b-instruct"),
    ):
        tokens = bytes_of_tokens(tokenizer)
        texts = [token for token, text in enumerate(tokens) if text is not None]
        assert set(tokenizer.all_special_ids).isdisjoint(texts)
        for _ in range(100):
            ids = draw.choices(texts, k=20)
            assert tokenizer.decode(ids) == b"".join(tokens[token] for token in ids).decode(
                "utf-8", "replace"
            )


def test_any_tokenisation_is_allowed_and_counted():
    vocabulary = Vocabulary.of([b"a", b"b", b"ab", b"ba", None, b"c"])
    automaton = lift(regex("a(?:ba)*").automaton(), vocabulary)
    assert automaton.state_after([0]) >= 0
    assert automaton.accepting[automaton.state_after([0, 1, 0])]
    assert automaton.accepting[automaton.state_after([2, 0])]
    assert automaton.accepting[automaton.state_after([0, 3, 3])]
    assert automaton.state_after([1]) == automaton.state_after([5]) == automaton.state_after([4]) == -1
    assert automaton.shortest == 1
    exact = [bool(automaton.completes_in(n)[0]) for n in range(4)]
    assert exact == [False, True, True, True]
    assert [bool(lift(regex("(ab){2}").automaton(), vocabulary).completes_in(n)[0]) for n in range(6)] == [
        False, False, True, True, True, False,
    ]  # fmt: skip


def test_a_text_that_the_tokens_cannot_write_is_refused():
    with pytest.raises(ConstraintError) as refused:
        lift(regex("xyz").automaton(), Vocabulary.of([b"x", b"y"]))
    assert refused.value.keyword == "vocabulary"
    automaton = lift(regex("xz|y").automaton(), Vocabulary.of([b"x", b"y"]))  # no way into a dead end
    assert automaton.state_after([0]) == -1


def test_a_damaged_cache_file_is_compiled_again(tmp_path):
    constraint = regex("[ab]+")
    compile_constraint(constraint, SMALL, folder=tmp_path)
    (stored,) = tmp_path.iterdir()
    stored.write_bytes(stored.read_bytes()[:100])
    assert compile_constraint(constraint, SMALL, folder=tmp_path).states == 2
    assert compile_constraint(constraint, SMALL, folder=tmp_path).states == 2


def test_a_worker_compiles_refuses_and_is_killed(tmp_path):
    def compiled(expression, **limits):
        return compile_constraint(regex(expression), SMALL, folder=tmp_path, worker=True, **limits)

    assert compiled("[ab]+").states == 2
    assert len(list(tmp_path.iterdir())) == 1
    for expression, limits, keywords in [
        ("(a{1,1000}){1,1000}", {}, ["size"]),
        ("(?:a|b)*a(?:a|b){14}(?:[^x]{0,40}){0,3}", {"seconds": 1}, ["time", "memory"]),
        ("c+", {"memory": 100 << 20}, ["memory"]),
    ]:
        with pytest.raises(ConstraintError) as refused:
            compiled(expression, **limits)
        assert refused.value.keyword in keywords
