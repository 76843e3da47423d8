"""Answers as text: tokens that tell of calls and thinking are kept where they are read, and thinking is split off."""

import json
from dataclasses import replace

import pytest

from reader_edge_runtime import Conversation, Engine, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.text.text_stream import TextStream
from tests.family_tokenizers import FAMILIES, family_engine, family_tokenizer

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def said_ids(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer.encode(text, adds_special_tokens=False)


def answered(engine: Engine, prompt: str | Conversation, text: str, **options: object) -> GenerationConfig:
    """A config whose answer is the text, special tokens as tokens."""
    parts = [f"<[{token_id}]>" for token_id in said_ids(engine, text)]
    return replace(GenerationConfig(grammar=Grammar("lark", "start: " + " ".join(parts))), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.marks])
def test_kept_tokens_are_a_part_of_the_text_and_of_stop_strings(name: str) -> None:
    tokenizer = family_tokenizer(name)
    tokens = {text: token_id for token_id, text in tokenizer.special_tokens.items()}
    kept = tokenizer.special_in(tokenizer.call_form.texts)
    assert set(kept.values()) == {text for text in tokens if any(text in each for each in tokenizer.call_form.texts)}
    text = "".join(f"naïve {token}x" for token in kept.values()) + "é"
    stream = TextStream(tokenizer, [], (), kept)
    for token_id in tokenizer.encode(text, adds_special_tokens=False):
        stream.push(token_id)
    stream.finish()
    assert stream.take().replace(" ", "") == text.replace(" ", "")
    if kept:
        stopped = TextStream(tokenizer, [], [next(iter(kept.values()))[2:]], kept)
        assert any(stopped.push(token_id) for token_id in tokenizer.encode(text, adds_special_tokens=False))
        assert stopped.take().strip() == "naïve " + next(iter(kept.values()))[:2]


def test_a_chat_with_tools_keeps_the_tokens_of_calls(engine: Engine) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    model = family_engine(engine, "tekken")
    text = "[TOOL_CALLS]f[ARGS]{}"
    for prompt, expected in (
        (Conversation([USER], [TOOL]), text),
        (Conversation([USER]), "f{}"),
        ("hi", "f{}"),
    ):
        assert model.generate(prompt, answered(model, prompt, text)).text == expected


def test_thinking_is_split_off_where_it_is_asked_for(engine: Engine) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    for name, text in (
        ("tekken", "[THINK]Hm.[/THINK]Yes."),
        ("gpt-oss", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."),
    ):
        model = family_engine(engine, name)
        config = answered(model, "", text, splits_thinking=True)
        result = model.generate([USER], config)
        assert (result.reasoning, result.text) == ("Hm.", "Yes.")
        chunks = list(model.stream([USER], config))
        assert "".join(chunk.reasoning for chunk in chunks) == "Hm."
        plain = model.generate([USER], replace(config, splits_thinking=False))
        assert plain.token_ids == result.token_ids
        assert plain.reasoning == ""
        assert plain.text.endswith("Yes.")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_holds_what_comes_after_an_open_thinking_part(engine: Engine, temperature: float) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    model = family_engine(engine, "qwen")
    (end,) = said_ids(model, "</think>")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    config = GenerationConfig(grammar=Grammar("json_schema", json.dumps(schema)), splits_thinking=True, max_tokens=60)
    biased = SamplingConfig(logit_bias={end: 9.0}, temperature=temperature)
    config = replace(config, sampling=biased)
    drafted = model.generate("Is it?<think>\n", config)
    assert drafted.token_ids == model.generate("Is it?<think>\n", replace(config, is_drafted=False)).token_ids
    assert json.loads(drafted.text) in ({"a": 1}, {"a": 2})
    assert end in drafted.token_ids
    assert json.loads(model.generate("Is it?", config).text) in ({"a": 1}, {"a": 2})
