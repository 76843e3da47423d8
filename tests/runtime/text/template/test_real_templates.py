"""Chat templates of published models: conversations are rendered as transformers 5 does, character by character."""

import gzip
import json
from functools import cache
from pathlib import Path

import pytest

from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template import template_worker
from tests.runtime.text.one_day import OneDay
from tests.runtime.text.templates import template

ROOT = Path(__file__).parents[4]
TEMPLATES = ROOT / "tests/data/templates"
SPECIAL_TOKENS = {name: f"<{name}>" for name in ("bos_token", "eos_token", "pad_token", "unk_token")}
NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))

# These know no tools, so that transformers leaves them out; here they are told to the model in words.
WITHOUT_TOOLS = {"deepseek-r1-distill", "deepseek-v3.1", "phi-3.5", "smollm2", "smollm3"}
# These write arguments as JSON: a text, which transformers hands on, would be quoted once more.
OF_OBJECTS = {
    "apertus",
    "deepseek-v3.1",
    "gpt-oss",
    "mimo-vl",
    "minimax-m1",
    "mistral-nemo",
    "mistral-small-3.2",
    "qwen2.5",
}
OF_OBJECTS |= {"apriel-1.5"}
# These look for a message of the system at the beginning alone, and leave others out.
WITHOUT_LATER_SYSTEM = {"bielik-3", "gpt-oss", "minimax-m1", "smollm3"}
# These show a list of parts as Python writes it.
WITHOUT_PARTS = {"gigachat-3.1"}


@cache
def chats() -> dict[str, Conversation]:
    lines = (ROOT / "export/reader_edge_export/texts/conversations.jsonl").read_text(encoding="utf-8").splitlines()
    fields = [json.loads(line) for line in lines]
    return {each.pop("name"): Conversation(**each) for each in fields}


@cache
def rendered_by_transformers() -> dict[str, dict[str, str | None]]:
    said: dict[str, dict[str, dict[str, str | None]]] = json.loads(
        gzip.decompress((TEMPLATES / "rendered.json.gz").read_bytes())
    )
    return said["rendered"]


def put_differently(name: str) -> set[str]:
    """Names of the conversations that are rendered differently on purpose."""
    different: set[str] = set()
    if name in WITHOUT_TOOLS:
        different |= {title for title, chat in chats().items() if chat.tools}
        different |= {title for title, chat in chats().items() if any("tool_calls" in each for each in chat.messages)}
    if name in OF_OBJECTS:
        different.add("a call whose arguments are a text")
    if "developer" not in (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"):  # the system's word, to most
        different |= {title for title, chat in chats().items() if chat.messages[0]["role"] == "developer"}
    if name in WITHOUT_LATER_SYSTEM:
        different.add("a system message amid turns")
    if name in WITHOUT_PARTS:
        different.add("texts in parts")
    return different


@pytest.mark.parametrize("name", NAMES)
def test_conversations_are_rendered_as_transformers_5_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_worker, "datetime", OneDay)
    made = template((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), SPECIAL_TOKENS)
    expected = rendered_by_transformers()[name]
    assert list(expected) == list(chats())
    for title, chat in chats().items():
        if expected[title] is not None and made.render(chat) != expected[title]:
            assert title in put_differently(name)
            assert not made.takes(chat), title  # so an export tells that it is on purpose


@pytest.mark.parametrize("name", NAMES)
def test_calls_are_rendered_with_every_template(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those too that transformers refuses, for null contents, arguments as texts or ids of another form."""
    monkeypatch.setattr(template_worker, "datetime", OneDay)
    made = template((TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8"), SPECIAL_TOKENS)
    for title, chat in chats().items():
        if any("tool_calls" in each for each in chat.messages):
            assert '"{\\"city' not in made.render(chat), title  # no arguments as a text within JSON


def test_there_are_twenty_templates_and_thirty_conversations() -> None:
    assert len(NAMES) >= 20
    assert len(chats()) >= 30
    assert set(rendered_by_transformers()) == set(NAMES)
