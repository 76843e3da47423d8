"""Grammars: every answer is held to its own, and is the same drafted and plain."""

import json
import re
from dataclasses import replace

import pytest

from reader_edge_runtime import Engine, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "long tag"]}, "minItems": 2, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
CHOICES = ["yes", "no", 'with "quotes"', "a back\\slash", "two\nlines", "naïve 日本 🎉"]
GRAMMARS = {
    "schema": Grammar("json_schema", json.dumps(PERSON)),
    "regex": Grammar("regex", r"\d{3}-[a-f]{2,4}(;x)?"),
    "choice": Grammar("choice", json.dumps(CHOICES)),
    "lark": Grammar("lark", 'start: "<" /[a-z]{1,20}/ ">"'),
}


def is_held(kind: str, text: str) -> bool:
    match kind:
        case "schema":
            person = json.loads(text)
            is_right = list(person) == ["name", "age", "tags"] and isinstance(person["age"], int)
            return is_right and len(person["name"]) <= 12 and 2 <= len(person["tags"]) <= 3
        case "choice":
            return text in CHOICES
        case "regex":
            return re.fullmatch(GRAMMARS[kind].text, text) is not None
        case _:
            return re.fullmatch("<[a-z]{1,20}>", text) is not None


@pytest.mark.parametrize("kind", GRAMMARS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_is_held_to_its_grammar_and_the_same_drafted_and_plain(
    engine: Engine, kind: str, temperature: float
) -> None:
    for seed in range(6):
        sampling = SamplingConfig(temperature=temperature, seed=seed)
        config = GenerationConfig(max_tokens=200, sampling=sampling, grammar=GRAMMARS[kind], wants_logprobs=True)
        drafted = engine.generate("# tar", config)
        plain = engine.generate("# tar", replace(config, is_drafted=False))
        assert (drafted.token_ids, drafted.finish_reason) == (plain.token_ids, plain.finish_reason)
        assert drafted.logprobs == plain.logprobs
        assert drafted.finish_reason == "stop"
        assert is_held(kind, drafted.text)


def test_every_choice_can_be_said(engine: Engine) -> None:
    for text in CHOICES:
        grammar = Grammar("choice", json.dumps([text]))
        assert engine.generate("# tar", GenerationConfig(max_tokens=60, grammar=grammar)).text == text


def test_a_draft_with_an_end_behind_the_grammar_s_last_token_leaves_the_answer_where_it_is(engine: Engine) -> None:
    constraint = engine._grammars.constraint(Grammar("choice", '["an archive, no tape"]'))
    first, second, third, *rest = constraint.forced
    chain = [first, second, third, *rest, engine.package.manifest.eos_token_ids[0]]
    constraint.advance(first)
    tree = DraftTree(chain, list(range(-1, len(chain) - 1)), ["history"] * len(chain))
    assert constraint.cut(tree, 64).token_ids == chain
    constraint.advance(second)
    assert not constraint.is_over
    assert constraint.mask()[third]
    constraint.close()


def test_what_a_schema_forces_is_drafted_for_nothing(engine: Engine) -> None:
    config = GenerationConfig(max_tokens=200, sampling=SamplingConfig(temperature=1.0), grammar=GRAMMARS["schema"])
    stats = engine.generate("# tar", config).stats
    assert stats.accepted_by_source["constraint"] > 5


def test_what_is_forced_is_drafted_while_all_else_rests(engine: Engine) -> None:
    config = GenerationConfig(max_tokens=200, sampling=SamplingConfig(temperature=1.0), grammar=GRAMMARS["schema"])
    request = engine.answer("# tar", config).request
    with engine.working() as decoder:
        decoder.enqueue(request)
        request.estimate.backoff_left = 1000
        decoder.finish(request)
    assert set(request.stats.accepted_by_source) == {"constraint"}
    assert request.stats.num_steps < request.stats.num_tokens
    assert request.estimate.backoff_left < 1000
    assert request.output_token_ids == list(engine.generate("# tar", config).token_ids)


def test_requests_with_and_without_grammars_share_a_batch(engine: Engine) -> None:
    configs = [GenerationConfig(max_tokens=30, grammar=grammar) for grammar in (None, *GRAMMARS.values(), None)]
    together = engine.generate_batch(["# tar"] * len(configs), configs)
    assert [each.token_ids for each in together] == [engine.generate("# tar", each).token_ids for each in configs]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", "{"),
        ("json_schema", '{"type": "objekt"}'),
        ("json_schema", '{"$ref": "http://example.com/x"}'),
        ("json_schema", '{"$ref": "file:///etc/passwd"}'),
        ("json_schema", '{"a":' * 5000 + "1" + "}" * 5000),
        ("regex", "(a"),
        ("lark", "start: nowhere"),
    ],
)
def test_what_is_no_grammar_is_refused_in_one_sentence(engine: Engine, kind: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]+change or simplify it\.$"):
        engine.generate("# tar", GenerationConfig(max_tokens=5, grammar=Grammar(kind, text)))


@pytest.mark.parametrize(
    ("kind", "text"),
    [("ebnf", "a"), ("choice", "[]"), ("choice", '["a", ""]'), ("choice", "a"), ("regex", "a" * 70_000)],
)
def test_what_no_grammar_can_be_is_refused_when_it_is_made(kind: str, text: str) -> None:
    with pytest.raises(ConfigError, match=r"^[^\n]+\.$"):
        Grammar(kind, text)
