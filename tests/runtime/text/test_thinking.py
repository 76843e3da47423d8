"""Thinking is split from what is said, the same however the text comes in pieces."""

import pytest

from reader_edge_runtime.text.thinking import ThinkingForm, ThinkingReader

THINK = ThinkingForm("<think>", "</think>")
MISTRAL = ThinkingForm("[THINK]", "[/THINK]", is_repeated=True)
CHANNELS = ThinkingForm.of_template("<|channel|>analysis<|message|>")
GRANITE = ThinkingForm.of_template("<think> </think> <response></response>")
assert CHANNELS is not None
assert GRANITE is not None
HARMONY = "<|channel|>{}<|message|>{}"
NEXT = "<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'


def split(form: ThinkingForm, text: str, size: int, is_open: bool = False) -> tuple[str, str]:
    reader = ThinkingReader(form, is_open)
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    parts = [*(reader.push(piece, is_last=False) for piece in pieces), reader.push("", is_last=True)]
    return "".join(part[0] for part in parts), "".join(part[1] for part in parts)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("form", "text", "is_open", "expected"),
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
        (CHANNELS, HARMONY.format("analysis", "a") + NEXT + HARMONY.format("final", "b"), False, ("a", "b")),
        (CHANNELS, HARMONY.format("final", "b c "), False, ("", "b c ")),
        (CHANNELS, HARMONY.format("commentary", "b") + NEXT + CALL, False, ("", "b" + CALL)),
        (CHANNELS, HARMONY.format("analysis", "a") + NEXT + CALL, False, ("a", CALL)),
    ],
)
def test_thinking_is_split_off(
    form: ThinkingForm, text: str, is_open: bool, expected: tuple[str, str], size: int
) -> None:
    assert split(form, text, size, is_open) == expected


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
        ("steps: ... [BEGIN FINAL RESPONSE]", "Here are my reasoning steps:"),
        ("<|channel>thought", "<|channel>thought"),
        ("Here is my thought process:", "Here is my thought process:"),
    ],
)
def test_the_form_is_the_templates(source: str, begin: str) -> None:
    form = ThinkingForm.of_template(source)
    assert form is not None
    assert form.begin == begin


def test_a_template_without_thinking_has_no_form() -> None:
    assert ThinkingForm.of_template("{{ messages[0]['content'] }} I think") is None


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
