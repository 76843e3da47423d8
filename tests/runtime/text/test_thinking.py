"""Thinking is split from the answer, the same however the text comes in pieces; tokens of calls stay in the text."""

import json
from dataclasses import replace

import pytest

from reader_edge_runtime import Conversation, Engine, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.text.text_stream import TextStream
from reader_edge_runtime.text.thinking import ThinkingReader, ThinkingTags
from tests.family_tokenizers import FAMILIES, family_engine, family_tokenizer

THINK = ThinkingTags("<think>", "</think>")
MISTRAL = ThinkingTags("[THINK]", "[/THINK]", is_repeated=True)
CHANNELS = ThinkingTags.of_template("<|channel|>analysis<|message|>")
GRANITE = ThinkingTags.of_template("<think> </think> <response></response>")
GLIMMER = ThinkingTags.of_template("<atem:function_calls>")
assert CHANNELS is not None
assert GLIMMER is not None
assert GRANITE is not None
HARMONY = "<|channel|>{}<|message|>{}"
NEXT = "<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'


def split(tags: ThinkingTags, text: str, size: int, is_open: bool = False) -> tuple[str, str]:
    reader = ThinkingReader(tags, is_open)
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    parts = [*(reader.push(piece, is_last=False) for piece in pieces), reader.push("", is_last=True)]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("tags", "text", "is_open", "expected"),
    [
        (THINK, "<think>\nHm.\n\nOh.\n</think>\n\n Yes.\n", False, ("Hm.\n\nOh.", "Yes.\n")),
        (THINK, "<think>\n\n</think>\n\nYes.", False, ("", "Yes.")),
        (THINK, "\n<think>Hm.</think>Yes.", False, ("Hm.", "Yes.")),
        (THINK, "\nHm.\n</think>\nYes.", True, ("Hm.", "Yes.")),
        (THINK, "<think>\nHm.\n</think>\nYes.", True, ("Hm.", "Yes.")),
        (THINK, "Hm, I was cut </thi", True, ("Hm, I was cut </thi", "")),
        (THINK, " \n Yes, write <think> and </think>.", False, ("", " \n Yes, write <think> and </think>.")),
        (THINK, "<think>a</think>Write <think> b </think>", False, ("a", "Write <think> b </think>")),
        (THINK, "<thin", False, ("", "<thin")),
        (THINK, "", True, ("", "")),
        (THINK, "  ", False, ("", "  ")),
        (MISTRAL, "[THINK]a[/THINK]b [THINK]c[/THINK] d", False, ("ac", "bd")),
        (GRANITE, "<think>a</think>\n<response>b</response>", False, ("a", "b")),
        (GRANITE, "say <response>b</response>", False, ("", "say <response>b</response>")),
        (GRANITE, " <response>b</response>", False, ("", "b")),
        (CHANNELS, HARMONY.format("analysis", "a") + NEXT + HARMONY.format("final", "b"), False, ("a", "b")),
        (CHANNELS, HARMONY.format("final", "b c "), False, ("", "b c ")),
        (CHANNELS, HARMONY.format("commentary", "b") + NEXT + CALL, False, ("", "b" + CALL)),
        (CHANNELS, HARMONY.format("analysis", "a") + NEXT + CALL, False, ("a", CALL)),
        (GLIMMER, " to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>b c", False, ("a", "b c")),
        (GLIMMER, " to=user<|message|>b c ", False, ("", "b c ")),
        (GLIMMER, " to=self<|message|>a<|eom|><|start|>assistant to=f<|message|>b", False, ("a", "to=f<|message|>b")),
    ],
)
def test_thinking_is_split(tags: ThinkingTags, text: str, is_open: bool, expected: tuple[str, str], size: int) -> None:
    assert split(tags, text, size, is_open) == expected


def test_what_cannot_be_a_mark_comes_at_once() -> None:
    reader = ThinkingReader(THINK, is_open=True)
    assert reader.push("\nHm, a", is_last=False) == ("Hm, a", "")
    assert reader.push(" b </th", is_last=False) == (" b", "")
    assert reader.push("ink>\n\nYes ", is_last=False) == ("", "Yes ")
    assert reader.push("or <think>", is_last=False) == ("", "or <think>")


@pytest.mark.parametrize(
    ("source", "begin"),
    [
        ("{{ '<think>\\n' }}", "<think>"),
        ("{% set content = content.split('</think>')[-1] %}", "<think>"),
        ("[THINK]", "[THINK]"),
        ("<seed:think>", "<seed:think>"),
        ("content.split('<answer>')", "<think>"),
        ("<|thought_start|>", "<|thought_start|>"),
        ("steps: ... [BEGIN FINAL RESPONSE]", "Here are my reasoning steps:"),
        ("<|channel>thought", "<|channel>thought"),
        ("Here is my thought process:", "Here is my thought process:"),
    ],
)
def test_the_form_is_the_templates(source: str, begin: str) -> None:
    tags = ThinkingTags.of_template(source)
    assert tags is not None
    assert tags.begin == begin


def test_a_template_without_thinking_has_no_form() -> None:
    assert ThinkingTags.of_template("{{ messages[0]['content'] }} I think") is None


@pytest.mark.parametrize(
    ("prompt", "continued", "is_open"),
    [
        ("<|im_start|>assistant\n<think>\n", "", True),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", "", False),
        ("<|im_start|>assistant\n", "", False),
        ("<|im_start|>user\nWhat is <think><|im_end|>\n<|im_start|>assistant\n", "", False),
        ("<|im_start|>assistant\n<think>\nHm", "<think>\nHm", True),
        ("<|im_start|>assistant\n<think>\nHm\n</think>\nYes", "<think>\nHm\n</think>\nYes", False),
        ("<|im_start|>assistant\n<think>\nYes", "Yes", True),
    ],
)
def test_the_prompt_tells_whether_thinking_has_begun(prompt: str, continued: str, is_open: bool) -> None:
    assert THINK.is_open(prompt, continued) == is_open


USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def ids_of(engine: Engine, text: str) -> list[int]:
    return engine.tokenizer.encode(text, adds_special_tokens=False)


def answered(engine: Engine, prompt: str | Conversation, text: str, **options: object) -> GenerationConfig:
    """A config whose answer is the text, special tokens as tokens."""
    parts = [f"<[{token_id}]>" for token_id in ids_of(engine, text)]
    return replace(GenerationConfig(grammar=Grammar("lark", "start: " + " ".join(parts))), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.marks])
def test_kept_tokens_are_a_part_of_the_text_and_of_stop_strings(name: str) -> None:
    tokenizer = family_tokenizer(name)
    tokens = {text: token_id for token_id, text in tokenizer.special_tokens.items()}
    kept = tokenizer.special_in(tokenizer.call_syntax.texts)
    assert set(kept.values()) == {text for text in tokens if any(text in each for each in tokenizer.call_syntax.texts)}
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
    for prompt, expected in ((Conversation([USER], [TOOL]), text), (Conversation([USER]), "f{}"), ("hi", "f{}")):
        assert model.generate(prompt, answered(model, prompt, text)).text == expected


def test_thinking_is_split_off_where_it_is_wanted(engine: Engine) -> None:
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
    (end,) = ids_of(model, "</think>")
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    config = GenerationConfig(grammar=Grammar("json_schema", json.dumps(schema)), splits_thinking=True, max_tokens=60)
    biased = SamplingConfig(logit_bias={end: 9.0}, temperature=temperature)
    config = replace(config, sampling=biased)
    drafted = model.generate("Is it?<think>\n", config)
    assert drafted.token_ids == model.generate("Is it?<think>\n", replace(config, is_drafted=False)).token_ids
    assert json.loads(drafted.text) in ({"a": 1}, {"a": 2})
    assert end in drafted.token_ids
    assert json.loads(model.generate("Is it?", config).text) in ({"a": 1}, {"a": 2})
