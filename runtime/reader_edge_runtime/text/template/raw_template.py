"""A chat template as it is, rendered in a bounded process with what transformers 5 would give it.

Templates differ in what they take for a member that is null, above all the content beside calls: Qwen 3's wants a text
there, GLM's writes "None" for null, Kimi's and DeepSeek's ask whether it is null. transformers 5 leaves such members
out; its earlier versions hand them on.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from reader_edge_runtime.machine.bounded_process import BoundedProcess, BoundedProgram
from reader_edge_runtime.text.conversation import Conversation, Message

TOO_MUCH = "it takes more time or memory than a template may"


class TemplateProcess:
    """Started with the first request, and again after one that it did not survive. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._program = BoundedProgram("reader_edge_runtime.text.template.template_worker")
        self._process: BoundedProcess | None = None

    def ask(self, request: str) -> dict[str, str]:
        """A "text", or a "refusal" or an "error" in words. request: JSON, as the worker reads it."""
        with self._lock:
            try:
                process = self._process = self._process or self._program.start()
            except (OSError, EOFError) as error:  # no memory for one, or no Python in a program that it is a part of
                reason = getattr(error, "strerror", None) or "it ends at once"
                return {"error": f"no process to render it can be started ({reason})"}
            try:
                process.channel.send(request.encode())
                reply: dict[str, str] = json.loads(process.channel.receive())
            except BaseException as error:
                self._process = None  # whatever cut the exchange short, Ctrl-C too: the next must not read its reply
                process.close()
                if not isinstance(error, OSError | EOFError | ValueError):
                    raise
                return {"error": TOO_MUCH}
            return reply


_ASKS_FOR_NULL = re.compile(r"""content['"\]]*\s*(?:is\s+(?:not\s+)?none\b|[!=]=\s*none\b)""", re.IGNORECASE)


def null_readings(messages: Sequence[Message], source: str) -> Iterator[Sequence[Message]]:
    """Ways to give these messages to a template, of which the first that it renders is right."""
    left_out = [{key: value for key, value in each.items() if value is not None} for each in messages]
    if all("content" in each for each in left_out):  # nothing that templates stumble over but thoughts alone
        yield left_out
        with_thoughts = [_with_thought(each) for each in left_out]
        yield from [with_thoughts] if with_thoughts != left_out else []
        return
    as_they_are = [dict(each) for each in messages]
    empty = [{**each, "content": each.get("content", "")} for each in left_out]
    is_null_wanted = _ASKS_FOR_NULL.search(source) is not None
    yield from (as_they_are, left_out, empty) if is_null_wanted else (left_out, empty, as_they_are)
    yield [_with_thought(each) for each in empty]


def _with_thought(message: Message) -> Message:
    """A message that says nothing but what it thinks, as Mistral's templates take it: in a part."""
    thought = message.get("reasoning_content")
    if message["content"] or message.get("tool_calls") or not thought:
        return message
    return {**message, "content": [{"type": "thinking", "thinking": thought}]}


class RawTemplate:
    """special_tokens: texts that the template may name, such as "bos_token"."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], process: TemplateProcess) -> None:
        self.source = source
        self._special_tokens = special_tokens
        self._process = process

    def render(self, conversation: Conversation) -> str | None:
        """The text of a conversation; None where the template refuses it."""
        return self.reply(conversation).get("text")

    def reply(self, conversation: Conversation) -> dict[str, str]:
        """The "text" of a conversation, or the "refusal" or "error" of the first way to read what is null in it.

        Raises TypeError, ValueError or RecursionError for values that JSON has no word for.
        """
        replies = []
        for messages in null_readings(conversation.messages, self.source):
            variables: dict[str, Any] = {
                "messages": messages,
                "tools": conversation.tools or None,  # which some ask for
                "documents": None,
                "add_generation_prompt": not conversation.continues_final_message,
                **self._special_tokens,
                **conversation.template_args,
            }
            request = json.dumps({"template": self.source, "variables": variables}, default=_as_dict)
            replies.append(self._process.ask(request))
            if "text" in replies[-1] or replies[-1].get("error") == TOO_MUCH:
                return replies[-1]
        return replies[0]


def _as_dict(value: object) -> object:
    """A mapping of another kind, as JSON's encoder wants it."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")
