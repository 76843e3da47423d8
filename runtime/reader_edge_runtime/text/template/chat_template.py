"""The chat template of a model: messages in, the text of a prompt out."""

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reader_edge_runtime.errors import ChatTemplateError, PromptError, TokenizerError
from reader_edge_runtime.machine.bounded_process import BoundedProcess, BoundedProgram
from reader_edge_runtime.text.conversation import Conversation, Message, as_texts
from reader_edge_runtime.text.conversation_check import checked_conversation
from reader_edge_runtime.text.template.template_adapter import TemplateTraits, adapted_messages, with_reasoning_names
from reader_edge_runtime.text.thinking import ThinkingTags
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, knows_tools
from reader_edge_runtime.untrusted.user_input import as_text

TOO_MUCH = "it takes more time or memory than a template may"
_PROGRAM = BoundedProgram("reader_edge_runtime.text.template.template_worker")  # one for all: it has read no template


class TemplateProcess:
    """Started with the first request, and again after one that it did not survive. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: BoundedProcess | None = None

    def ask(self, request: str) -> dict[str, str]:
        """A "text", or a "refusal" or an "error" in words. request: JSON, as the worker reads it."""
        with self._lock:
            try:
                process = self._process = self._process or _PROGRAM.start()
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


def null_variants(messages: Sequence[Message], source: str) -> Iterator[Sequence[Message]]:
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
    """A chat template as it is, rendered in a bounded process with what transformers 5 would give it.

    Templates differ in what they take for a member that is null, above all the content beside calls. transformers 5
    leaves such members out; its earlier versions hand them on. special_tokens: as in `ChatTemplate`.
    """

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
        for messages in null_variants(conversation.messages, self.source):
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


MAX_TEMPLATE_BYTES = 1 << 20


class ChatTemplate:
    """A jinja2 template, rendered by a process that is bounded in time and memory: it is a program from outside.

    It is given what transformers 5 would give it. What it does not take is put differently: contents that are null or
    in parts, arguments and ids of calls, tools that it does not know of. Thread-safe.

    special_tokens: texts that the template may name, such as "bos_token". process: what renders it; one of its own by
    default. for_tools: the template for conversations with tools, where a model has one of its own for them.
    path: of the template's file, where there is one.
    """

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str],
        process: TemplateProcess | None = None,
        for_tools: "ChatTemplate | None" = None,
        path: Path | None = None,
    ) -> None:
        self.source = source
        self._path = path
        self._for_tools = for_tools
        self._template = RawTemplate(source, special_tokens, process or TemplateProcess())
        self._traits = TemplateTraits(self._template.render)

    @classmethod
    def open(
        cls, path: Path, special_tokens: Mapping[str, str], for_tools: "ChatTemplate | None" = None
    ) -> "ChatTemplate":
        """Read a template. Raises TokenizerError."""
        num_bytes = path.stat().st_size
        if num_bytes > MAX_TEMPLATE_BYTES:
            raise TokenizerError(f"'{path}' has {num_bytes} bytes, more than a template may have: export again.")
        try:
            return cls(as_text(path.read_bytes()), special_tokens, for_tools=for_tools, path=path)
        except UnicodeDecodeError as error:
            raise TokenizerError(f"'{path}' is not UTF-8 text (byte {error.start}): export the model again.") from None

    @property
    def sources(self) -> tuple[str, ...]:
        """The templates that conversations are rendered with."""
        return (self.source,) if self._for_tools is None else (self.source, self._for_tools.source)

    @property
    def call_syntax(self) -> CallSyntax:
        """How the model writes calls of tools."""
        return CallSyntax.of_template((self._for_tools or self).source)

    @property
    def thinking_tags(self) -> ThinkingTags | None:
        """How the model writes what it thinks before it answers."""
        return ThinkingTags.of_template(self.source)

    def sound(self, conversation: Conversation) -> Conversation:
        """The conversation, checked, as templates know it. Raises PromptError."""
        return checked_conversation(conversation, "\n".join(self.sources))

    def render(self, conversation: Conversation) -> str:
        """A conversation's text, up to where the assistant's answer begins or goes on. Raises PromptError."""
        return self.render_sound(self.sound(conversation))

    def render_sound(self, conversation: Conversation) -> str:
        """The text of a conversation that is `sound`. Raises PromptError."""
        if conversation.tools and self._for_tools is not None:
            return self._for_tools.render_sound(conversation)
        try:
            reply = self._template.reply(self._adapted(conversation))
        except (TypeError, ValueError, RecursionError) as error:
            sentence = f"A message holds what JSON has no word for ({error}): give texts."
            raise PromptError(sentence).with_public("A message holds what JSON has no word for: give texts.") from None
        if "refusal" in reply:
            sentence = "The model's chat template refuses these messages"
            raise PromptError(f"{sentence}: {reply['refusal']}.").with_public(f"{sentence}.")
        if "error" in reply:
            raise ChatTemplateError(reply["error"], self._path)
        return cut_at_tag(reply["text"]) if conversation.continues_final_message else reply["text"]

    def takes(self, conversation: Conversation) -> bool:
        """Whether a conversation reaches the template as it is, and nothing of it is put differently."""
        if conversation.tools and self._for_tools is not None:
            return self._for_tools.takes(conversation)
        adapted = self._adapted(replace(self.sound(conversation), continues_final_message=False))
        messages = [with_reasoning_names(message) for message in conversation.messages]
        return list(adapted.messages) == messages and list(adapted.tools) == list(conversation.tools)

    def _adapted(self, conversation: Conversation) -> Conversation:
        """The same conversation in forms that the template takes."""
        messages, tools = adapted_messages(conversation.messages, self._traits), conversation.tools
        args = conversation.template_args
        if tools and not knows_tools(self.source) and "xml_tools" in self.source:  # SmolLM 3 calls them so
            args, tools = {"xml_tools": tools, **args}, ()
        if not knows_tools(self.source) and (tools or "tool_calls" not in self.source):
            has_system = not tools or self._traits.knows_system
            messages, tools = as_texts(messages, tools, has_system), ()
        if conversation.continues_final_message:
            messages = tag_final_text(messages)
        return replace(conversation, messages=messages, tools=tools, template_args=args)


_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


def tag_final_text(messages: Sequence[Message]) -> list[Message]:
    """The messages with a tag behind the last one's text. Raises PromptError where it has no text."""
    *before, last = messages
    content = last.get("content")
    if isinstance(content, str):
        return [*before, {**last, "content": content + _TAG}]
    if content:
        *parts, end = content
        return [*before, {**last, "content": [*parts, {**end, "text": end["text"] + _TAG}]}]
    raise PromptError("The last message has no text to continue: give it a 'content', or ask for a new message.")


def cut_at_tag(rendered: str) -> str:
    """What was rendered before the tag; without the space before it, where the template trims texts."""
    place = rendered.rfind(_TAG.rstrip())
    if place < 0:
        raise PromptError(
            "The model's chat template leaves the last message's text out, so no answer can go on with it: "
            "ask for a new message."
        )
    is_trimmed = not rendered.startswith(_TAG, place)
    return rendered[:place].rstrip() if is_trimmed else rendered[:place]
