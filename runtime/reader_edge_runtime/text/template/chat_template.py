"""The chat template of a model: messages in, the text of a prompt out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from reader_edge_runtime.errors import ChatTemplateError, PromptError, TokenizerError
from reader_edge_runtime.text.conversation import Conversation, Message, as_texts
from reader_edge_runtime.text.conversation_check import sound_conversation
from reader_edge_runtime.text.template.raw_template import RawTemplate, TemplateProcess
from reader_edge_runtime.text.template.template_adapter import TemplateTraits, adapted_messages, with_reasoning_names
from reader_edge_runtime.text.thinking import ThinkingTags
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax, knows_tools
from reader_edge_runtime.untrusted.user_input import as_text

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
        return sound_conversation(conversation, "\n".join(self.sources))

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
