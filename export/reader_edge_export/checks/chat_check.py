"""Compares how the package and transformers render the bundled conversations; an export reports differences."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from transformers import PreTrainedTokenizerFast

from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.machine.bounded_process import run_bounded
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template.template_adapter import with_reasoning_names
from reader_edge_runtime.text.tokenizer import Tokenizer

_CONVERSATIONS = resources.files("reader_edge_export.texts").joinpath("conversations.jsonl")

Rendered = list[Any] | None  # text and token ids; None: refused


@dataclass(frozen=True, slots=True)
class ChatCheck:
    """What came of comparing.

    num_compared: conversations, 0 where there is no template or nothing to compare with. The others are names of some:
    adapted: changed on purpose, since the template leaves a part of them out, or shows it as Python would.
    different: that transformers renders, and this package differently or not at all, without such a reason.
    repaired: that only this package renders.
    """

    num_compared: int = 0
    adapted: tuple[str, ...] = ()
    different: tuple[str, ...] = ()
    repaired: tuple[str, ...] = ()

    def figures(self) -> dict[str, float]:
        """For the manifest."""
        if not self.num_compared:
            return {}
        counts = {"compared": self.num_compared, "suited": len(self.adapted), "different": len(self.different)}
        return {f"chats_{name}": float(count) for name, count in counts.items()}


def check_chats(tokenizer: PreTrainedTokenizerFast, text: Tokenizer) -> ChatCheck:
    """Compare texts and token ids of the bundled conversations."""
    if not text.has_chat_template:
        return ChatCheck()
    chats = dict(conversations())
    reply = run_bounded(lambda: json.dumps([_rendered(tokenizer, chat) for chat in chats.values()]).encode())
    if reply is None:  # a template that takes too much there, whatever it does here
        return ChatCheck()
    expected = dict(zip(chats, json.loads(reply), strict=True))
    found = {name: _by_package(text, chat) for name, chat in chats.items()}
    unlike = [name for name in chats if expected[name] is not None and found[name] != expected[name]]
    adapted = tuple(name for name in unlike if found[name] is not None and not text.takes_chat(chats[name]))
    different = tuple(name for name in unlike if name not in adapted)
    repaired = tuple(name for name in chats if expected[name] is None and found[name] is not None)
    return ChatCheck(len(chats), adapted, different, repaired)


def conversations() -> Iterator[tuple[str, Conversation]]:
    """The bundled conversations, by what is particular about each."""
    for line in _CONVERSATIONS.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        yield fields.pop("name"), Conversation(**fields)


def _by_package(text: Tokenizer, chat: Conversation) -> Rendered:
    try:
        rendered = text.render_chat(chat)
        return [rendered, text.encode(rendered, adds_special_tokens=False)]
    except PromptError:
        return None


def _rendered(tokenizer: PreTrainedTokenizerFast, chat: Conversation) -> Rendered:
    args: dict[str, Any] = {"add_generation_prompt": not chat.continues_final_message, **chat.template_args}
    try:
        rendered = tokenizer.apply_chat_template(
            _as_of_5(chat.messages),
            tools=[dict(tool) for tool in chat.tools] or None,
            continue_final_message=chat.continues_final_message,
            tokenize=False,
            **args,
        )
    except Exception:  # a template can raise whatever Python can
        return None
    return [str(rendered), list(tokenizer(rendered, add_special_tokens=False)["input_ids"])]


def _as_of_5(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What transformers 5 does before, and earlier versions do not."""
    named = map(with_reasoning_names, messages)
    return [{key: value for key, value in message.items() if value is not None} for message in named]
