"""The turns of a conversation as Anthropic has them, in blocks, and as chat templates know them."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from reader_edge.server.api_error import ApiError
from reader_edge.server.openai.messages import MAX_ITEMS, call_message
from reader_edge.server.schema import JsonObject
from reader_edge_runtime import Message

# Claude Code's note to Anthropic's accounts, another one each time: no prefix of the prompt would ever come again.
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")


class TextBlock(JsonObject, tag_field="type", tag="text", ignored="cache_control citations"):
    """A text."""

    text: str


class ThinkingBlock(JsonObject, tag_field="type", tag="thinking", ignored="cache_control signature"):
    """What the model thought before it answered."""

    thinking: str


class RedactedThinkingBlock(JsonObject, tag_field="type", tag="redacted_thinking", ignored="cache_control data"):
    """Thoughts that Anthropic's server alone can read."""


class ToolUseBlock(JsonObject, tag_field="type", tag="tool_use", ignored="cache_control caller toolset_name"):
    """A call that the model made."""

    id: str
    name: str
    input: Annotated[dict[str, Any], Meta(description="an object")]


_MaxBlocks = Meta(max_length=MAX_ITEMS)
Texts = Annotated[
    str | Annotated[list[TextBlock], _MaxBlocks],
    Meta(description=f"a text, or a list of blocks of type 'text', at most {MAX_ITEMS}"),
]


class ToolResultBlock(JsonObject, tag_field="type", tag="tool_result", ignored="cache_control toolset_name"):
    """What a tool answered. is_error: whether it failed, which the model reads in front of it."""

    tool_use_id: str
    content: Texts = ""
    is_error: bool = False


Block = TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock
_BLOCKS = f"a text, or a list of blocks of texts, thoughts, calls and their results, at most {MAX_ITEMS}"


class Turn(JsonObject):
    """A message. role: a system's may stand between the others, as Claude Code sends it."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        str
        | Annotated[
            list[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock | ToolResultBlock], _MaxBlocks
        ],
        Meta(description=_BLOCKS),
    ]

    @property
    def blocks(self) -> Sequence[Block]:
        return [TextBlock(text=self.content)] if isinstance(self.content, str) else self.content


Turns = Annotated[
    list[Turn],
    Meta(min_length=1, max_length=MAX_ITEMS, description=f"a list of messages, at least one and at most {MAX_ITEMS}"),
]


def text_of(content: str | Sequence[TextBlock]) -> str:
    """The text of blocks, which lines end."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def to_messages(system: str | Sequence[TextBlock], turns: Sequence[Turn]) -> list[Message]:
    """Messages as templates know them: turns of one role that follow each other are one, as Anthropic has it.

    Raises ApiError for a block that has no place in its turn.
    """
    conversation = _Conversation()
    for text in [system] if isinstance(system, str) else [block.text for block in system]:
        conversation.say("system", _BILLING.sub("", text, count=1))
    for number, turn in enumerate(turns):
        for place, block in enumerate(turn.blocks):
            if isinstance(block, TextBlock):
                conversation.say(turn.role, block.text)
            else:
                _check_place(turn.role, block, f"messages[{number}].content[{place}]")
                conversation.take(block)
    return cast(list[Message], conversation.messages)


def _check_place(role: str, block: Block, place: str) -> None:
    """Raise ApiError unless blocks of this kind are for turns of this role."""
    kind = str(type(block).__struct_config__.tag)
    wanted = "user" if isinstance(block, ToolResultBlock) else "assistant"
    if role != wanted:
        sentence = f"'{place}' is of type '{kind}', which is for the role '{wanted}', not for '{role}'"
        raise ApiError(400, f"{sentence}: put it where it belongs.", place)


class _Conversation:
    """messages: what was read so far."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}  # of tools, by the ids of their calls

    def say(self, role: str, text: str) -> None:
        """A text in a turn. Many templates know the system in front alone: later it speaks in the user's turn."""
        if not text:
            return
        if role == "system" and self.messages and self.messages[-1]["role"] != "system":
            role = "user"
        message = self._turn(role)
        message["content"] = f"{message['content']}\n{text}" if message["content"] else text

    def take(self, block: Block) -> None:
        """Whatever is no text."""
        match block:
            case ThinkingBlock():
                message = self._turn("assistant")
                message["reasoning_content"] = message.get("reasoning_content", "") + block.thinking
            case ToolUseBlock():
                self._names[block.id] = block.name
                call = call_message(block.name, block.input, block.id)
                self._turn("assistant").setdefault("tool_calls", []).append(call)
            case ToolResultBlock():
                text = text_of(block.content)
                message = {"role": "tool", "content": f"Error: {text}" if block.is_error else text}
                message["tool_call_id"] = block.tool_use_id
                name = self._names.get(block.tool_use_id)
                self.messages.append(message | ({"name": name} if name else {}))

    def _turn(self, role: str) -> dict[str, Any]:
        """The message of a role that goes on, or begins."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": ""})
        return self.messages[-1]
