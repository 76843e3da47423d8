"""Grammars on vocabularies with added tokens: what is forced can be said, and drafted answers are the plain ones."""

import json
from dataclasses import replace

import pytest

from reader_edge_runtime import Engine, GenerationConfig, Grammar, SamplingConfig
from tests.family_tokenizers import FAMILIES, family_engine

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")


def said(engine: Engine, grammar: Grammar, temperature: float = 0.0, max_tokens: int = 120) -> str:
    """What is said, drafted and plainly alike."""
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
        assert said(model, Grammar("choice", json.dumps([text])), number % 2) == text
    assert said(model, Grammar("choice", json.dumps(texts_with_tokens(name))), 1.0) in texts_with_tokens(name)


@pytest.mark.parametrize("name", FAMILIES)
def test_schemas_patterns_and_rules_hold_texts_with_tokens(engine: Engine, name: str) -> None:
    model = family_engine(engine, name)
    for text in texts_with_tokens(name)[:2]:
        schema = {"type": "object", "properties": {text: {"const": [text, 1]}}, "required": [text]}
        closed = Grammar("json_schema", json.dumps(schema | {"additionalProperties": False}))
        assert json.loads(said(model, closed, 1.0)) == {text: [text, 1]}
        escaped = "".join(f"\\x{{{ord(character):x}}}" for character in text)
        assert said(model, Grammar("regex", f"(a|b) {escaped}"))[2:] == text
        assert said(model, Grammar("lark", f"start: /[ab]/ {json.dumps(text)}"))[1:] == text


def test_a_forced_text_is_spelled_with_the_vocabulary_s_own_tokens(engine: Engine) -> None:
    for name, text in (("qwen", "<tool_call>\nx"), ("gemma", "a<b>x</b>")):
        model = family_engine(engine, name)
        answer = model.generate("# tar", GenerationConfig(grammar=Grammar("choice", json.dumps([text]))))
        added = {model.tokenizer.encode(token, adds_special_tokens=False)[-1] for token in FAMILIES[name].plain}
        assert set(answer.token_ids) & added


def test_a_control_token_is_no_text_and_can_be_named_by_its_id(engine: Engine) -> None:
    model = family_engine(engine, "tekken")
    (tag,) = (token_id for token_id, text in model.tokenizer.special_tokens.items() if text == "[TOOL_CALLS]")
    spelled = model.generate("# tar", GenerationConfig(grammar=Grammar("choice", '["[TOOL_CALLS]x"]')))
    assert spelled.text == "[TOOL_CALLS]x"
    assert tag not in spelled.token_ids
    named = model.generate("# tar", GenerationConfig(grammar=Grammar("lark", f'start: <[{tag}]> "x"')))
    assert named.token_ids[0] == tag
    assert named.text == "x"


def test_tokens_that_are_named_by_their_ids_are_the_same_drafted_and_plain(engine: Engine) -> None:
    model = family_engine(engine, "tekken")
    ids = model.tokenizer.encode("[TOOL_CALLS]f[ARGS]{} and so on", adds_special_tokens=False)
    grammar = Grammar("lark", "start: " + " ".join(f"<[{token_id}]>" for token_id in ids))
    for is_drafted in (True, False, True, True):  # from the second on history drafts what was said
        config = GenerationConfig(grammar=grammar, max_tokens=20, is_drafted=is_drafted)
        assert list(model.generate("# tar", config).token_ids) == ids
