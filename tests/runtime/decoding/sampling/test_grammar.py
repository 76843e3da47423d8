"""Grammars: every answer is held to its own, the same drafted and plain, on vocabularies with added tokens too."""

import pytest

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
import json
import re
from dataclasses import replace
from typing import Any

import pytest

from reader_edge_runtime import Engine, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.decoding.sampling.grammar_worker.lark_ends import can_end
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError
from tests.family_tokenizers import FAMILIES, family_engine
from tests.runtime.decoding.sampling.followed import follow, takes

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
def test_an_answer_is_held_to_its_grammar_drafted_and_plain_alike(
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


def test_every_choice_can_be_the_answer_and_grammars_share_a_batch(engine: Engine) -> None:
    for text in CHOICES:
        grammar = Grammar("choice", json.dumps([text]))
        assert engine.generate("# tar", GenerationConfig(max_tokens=60, grammar=grammar)).text == text
    configs = [GenerationConfig(max_tokens=30, grammar=grammar) for grammar in (None, *GRAMMARS.values(), None)]
    together = engine.generate_batch(["# tar"] * len(configs), configs)
    assert [each.token_ids for each in together] == [engine.generate("# tar", each).token_ids for each in configs]


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


def test_what_is_forced_is_drafted_for_nothing_also_while_all_else_rests(engine: Engine) -> None:
    config = GenerationConfig(max_tokens=200, sampling=SamplingConfig(temperature=1.0), grammar=GRAMMARS["schema"])
    stats = engine.generate("# tar", config).stats
    assert stats.accepted_by_source["constraint"] > 5
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


def answer_to(engine: Engine, grammar: Grammar, temperature: float = 0.0, max_tokens: int = 120) -> str:
    """What is answer_to, drafted and plainly alike."""
    sampling = SamplingConfig(temperature=temperature, seed=3)
    config = GenerationConfig(max_tokens=max_tokens, sampling=sampling, grammar=grammar, wants_logprobs=True)
    drafted = engine.generate("# tar", config)
    plain = engine.generate("# tar", replace(config, is_drafted=False))
    assert (drafted.token_ids, drafted.finish_reason, drafted.logprobs) == (
        plain.token_ids,
        plain.finish_reason,
        plain.logprobs,
    )
    assert drafted.finish_reason == "stop"
    return drafted.text


def texts_with_tokens(name: str) -> list[str]:
    family = FAMILIES[name]
    return [f"{token} yes {token}." for token in (*family.plain, *family.special)] + ["<0x41> and </s>\n\n naïve 日本"]


@pytest.mark.long
@pytest.mark.parametrize("name", FAMILIES)
def test_every_text_can_be_forced_whatever_tokens_it_holds(engine: Engine, name: str) -> None:
    model = family_engine(engine, name)
    for number, text in enumerate(texts_with_tokens(name)):
        assert answer_to(model, Grammar("choice", json.dumps([text])), number % 2) == text
    assert answer_to(model, Grammar("choice", json.dumps(texts_with_tokens(name))), 1.0) in texts_with_tokens(name)


@pytest.mark.parametrize("name", FAMILIES)
def test_schemas_patterns_and_rules_hold_texts_with_tokens(engine: Engine, name: str) -> None:
    model = family_engine(engine, name)
    for text in texts_with_tokens(name)[:2]:
        schema = {"type": "object", "properties": {text: {"const": [text, 1]}}, "required": [text]}
        closed = Grammar("json_schema", json.dumps(schema | {"additionalProperties": False}))
        assert json.loads(answer_to(model, closed, 1.0)) == {text: [text, 1]}
        escaped = "".join(f"\\x{{{ord(character):x}}}" for character in text)
        assert answer_to(model, Grammar("regex", f"(a|b) {escaped}"))[2:] == text
        assert answer_to(model, Grammar("lark", f"start: /[ab]/ {json.dumps(text)}"))[1:] == text


def test_a_forced_text_is_spelled_with_the_vocabulary_s_own_tokens(engine: Engine) -> None:
    for name, text in (("qwen", "<tool_call>\nx"), ("gemma", "a<b>x</b>")):
        model = family_engine(engine, name)
        answer = model.generate("# tar", GenerationConfig(grammar=Grammar("choice", json.dumps([text]))))
        added = {model.tokenizer.encode(token, adds_special_tokens=False)[-1] for token in FAMILIES[name].plain}
        assert set(answer.token_ids) & added


def test_control_tokens_are_no_text_but_are_named_by_their_ids_drafted_and_plain(engine: Engine) -> None:
    model = family_engine(engine, "tekken")
    (tag,) = (token_id for token_id, text in model.tokenizer.special_tokens.items() if text == "[TOOL_CALLS]")
    spelled = model.generate("# tar", GenerationConfig(grammar=Grammar("choice", '["[TOOL_CALLS]x"]')))
    assert spelled.text == "[TOOL_CALLS]x"
    assert tag not in spelled.token_ids
    named = model.generate("# tar", GenerationConfig(grammar=Grammar("lark", f'start: <[{tag}]> "x"')))
    assert named.token_ids[0] == tag
    assert named.text == "x"
    model = family_engine(engine, "tekken")
    ids = model.tokenizer.encode("[TOOL_CALLS]f[ARGS]{} and so on", adds_special_tokens=False)
    grammar = Grammar("lark", "start: " + " ".join(f"<[{token_id}]>" for token_id in ids))
    for is_drafted in (True, False, True, True):  # from the second on history drafts what was answer_to
        config = GenerationConfig(grammar=grammar, max_tokens=20, is_drafted=is_drafted)
        assert list(model.generate("# tar", config).token_ids) == ids


LENIENT = {"x-guidance": {"lenient": True}}
LOOP = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
        },
        LOOP,
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 2},
        {"type": "object", "properties": {"text": {"type": "string"}, "more": LOOP}, "required": ["text", "more"]},
        {"anyOf": []},
        {"enum": []},
        {"type": "integer", "minimum": 5, "maximum": 3},
        {"type": "string", "minLength": 5, "maxLength": 3},
        {
            "type": "object",
            "properties": {"ab": {"type": "integer"}},
            "required": ["ab"],
            "patternProperties": {"^a": {"type": "string"}},
        },
        {
            "type": "object",
            "properties": {"ab": {"type": "string", "pattern": "^x"}},
            "required": ["ab"],
            "patternProperties": {"^a": {"pattern": "^y"}},
        },
    ],
)
def test_a_schema_that_allows_nothing_is_refused_as_such_at_once(engine: Engine, schema: dict[str, Any]) -> None:
    for each in (schema, schema | LENIENT):
        with pytest.raises(
            ConfigError, match=r"cannot be followed \(it allows nothing[^\n]*\): change or simplify it\."
        ):
            engine.answer("# tar", GenerationConfig(grammar=Grammar("json_schema", json.dumps(each))))


def test_a_part_that_never_ends_is_never_begun() -> None:
    schema = {"type": "object", "properties": {"more": LOOP | {"properties": {"next": {"$ref": "#/properties/more"}}}}}
    assert takes(schema, "{}")
    assert not takes(schema, '{"more":')
    tree = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}, "required": ["kids"]}
    assert takes(tree, '{"kids":[{"kids":[]}]}')


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ('start: "a" start', False),
        ('start: "a" b\nb: "c" b | "d" b', False),
        ("start: (a | b)\na: a\nb: (b b)+ // ends never", False),
        ('start: a{2}\na: /x/ a\n | "y" a', False),
        ('start: "a" | start "b"', True),
        ('start: a?\na: "x" a', True),
        ('start: ("x" a)*\na: "x" a', True),
        ('start: [a] "z"\na: a', True),
        ('start: a{0,2} "z"\na: a', True),
        ('start: a b\na[suffix="x"]: /x/\nb: a\n | b "c"', True),
        ("%llguidance {}\nstart: start", True),  # directives are not read
    ],
)
def test_rules_that_never_end_are_found(text: str, ends: bool) -> None:
    assert can_end(text) is ends
    if not ends:
        with pytest.raises(ValueError, match="no text that follows it ever ends"):
            follow(text, "lark")


def test_a_grammar_with_no_way_on_says_so(engine: Engine) -> None:
    for text, words in (("start: X", "it allows nothing"), ('start: "x" X', "it allows nothing that could come next")):
        grammar = Grammar("lark", f"{text}\nX: /a/ & /b/")
        with pytest.raises(ConfigError, match=rf"cannot be followed \({words}\)"):
            engine.generate("# tar", GenerationConfig(grammar=grammar))
