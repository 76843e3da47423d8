"""The turns of a conversation as Anthropic has them, in blocks."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta

from reader_edge.server.openai.messages import MAX_ITEMS
from reader_edge.server.schema import JsonObject
from reader_edge.server.tools import ClientTool

# Clients drop thoughts without a signature, and send those that were not shown back as a signature alone.
_SIGNED = b"reader-edge:"


def signature_of(hidden: str) -> str:
    """The signature of a block of thoughts. hidden: those that the block does not show."""
    return base64.b64encode(_SIGNED + hidden.encode(errors="replace")).decode()


class TextBlock(JsonObject, tag_field="type", tag="text", ignored="cache_control citations"):
    """A text."""

    text: str


class ThinkingBlock(JsonObject, tag_field="type", tag="thinking", ignored="cache_control"):
    """What the model thought before it answered. signature: of `signature_of`; that of another server is not used."""

    thinking: str
    signature: str = ""

    @property
    def text(self) -> str:
        """The thoughts, also where the answer did not show them."""
        try:
            signed = base64.b64decode(self.signature, validate=True)
            hidden = signed.removeprefix(_SIGNED).decode() if signed.startswith(_SIGNED) else ""
        except ValueError:
            hidden = ""
        return self.thinking or hidden


class RedactedThinkingBlock(JsonObject, tag_field="type", tag="redacted_thinking", ignored="cache_control data"):
    """Thoughts that Anthropic's server alone can read."""


class ToolUseBlock(JsonObject, tag_field="type", tag="tool_use", ignored="cache_control caller toolset_name"):
    """A call that the model made."""

    id: str
    name: str
    input: Annotated[dict[str, Any], Meta(description="an object")]


class Base64Source(JsonObject, tag_field="type", tag="base64", ignored="media_type"):
    """An image's bytes, whose format they tell themselves."""

    data: str


class ImageBlock(JsonObject, tag_field="type", tag="image", ignored="cache_control"):
    """A picture."""

    source: Base64Source


_MaxBlocks = Meta(max_length=MAX_ITEMS)
Texts = Annotated[
    str | Annotated[list[TextBlock], _MaxBlocks],
    Meta(description=f"a text, or a list of blocks of type 'text', at most {MAX_ITEMS}"),
]


class ToolReferenceBlock(JsonObject, tag_field="type", tag="tool_reference", ignored="cache_control"):
    """A tool that was deferred, and may be called from here on."""

    tool_name: str


class ToolResultBlock(JsonObject, tag_field="type", tag="tool_result", ignored="cache_control toolset_name"):
    """What a tool answered. is_error: whether it failed, which the model reads in front of it."""

    tool_use_id: str
    content: Annotated[
        str | Annotated[list[TextBlock | ImageBlock | ToolReferenceBlock], _MaxBlocks],
        Meta(description=f"a text, or a list of blocks of texts, pictures and tools, at most {MAX_ITEMS}"),
    ] = ""
    is_error: bool = False


class ToolReference(JsonObject, tag_field="type", tag="tool_reference"):
    """One of the request's tools."""

    name: str


class ToolDefinition(JsonObject, tag_field="type", tag="tool_definition"):
    """A tool that the request's do not have."""

    definition: ClientTool

    @property
    def name(self) -> str:
        return self.definition.name


class ToolAdditionBlock(JsonObject, tag_field="type", tag="tool_addition", ignored="cache_control"):
    """A tool that may be called from here on."""

    tool: ToolReference | ToolDefinition


class ToolRemovalBlock(JsonObject, tag_field="type", tag="tool_removal", ignored="cache_control"):
    """A tool that may not be called any more."""

    tool: ToolReference


_OfAssistant = ThinkingBlock | RedactedThinkingBlock | ToolUseBlock
_OfSystem = ToolAdditionBlock | ToolRemovalBlock
Block = TextBlock | ImageBlock | _OfAssistant | _OfSystem | ToolResultBlock
_BLOCKS = f"a text, or a list of blocks of texts, pictures, thoughts, calls and their results, at most {MAX_ITEMS}"


class Turn(JsonObject):
    """A message. role: a system's may stand between the others, as Claude Code sends it."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[
        str | Annotated[list[Block], _MaxBlocks],
        Meta(description=_BLOCKS),
    ]

    @property
    def blocks(self) -> Sequence[Block]:
        return [TextBlock(text=self.content)] if isinstance(self.content, str) else self.content


Turns = Annotated[
    list[Turn],
    Meta(min_length=1, max_length=MAX_ITEMS, description=f"a list of messages, at least one and at most {MAX_ITEMS}"),
]
