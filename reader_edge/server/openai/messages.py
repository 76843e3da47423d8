"""The messages of a chat, those of tools and calls included."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, cast

from msgspec import Meta

from reader_edge.server.api_error import ApiError, agreed, wrong_value
from reader_edge.server.schema import JsonObject
from reader_edge_runtime import Message
from reader_edge_runtime.text.conversation_check import IGNORED, MEDIA
from reader_edge_runtime.text.image_parts import bytes_of_url


class TextPart(JsonObject, tag_field="type", tag="text", ignored="cache_control"):
    """A part of a content."""

    text: str


class ImageUrl(JsonObject, ignored="detail"):
    """Where a picture is: in the URL itself."""

    url: str


class ImagePart(JsonObject, tag_field="type", tag="image_url", ignored="cache_control"):
    """A picture in a content, as a data URL."""

    image_url: Annotated[ImageUrl | str, Meta(description="an object with 'url', or a text")]

    def part(self, place: str) -> dict[str, Any]:
        """As conversations have it. Raises ConversationError."""
        if isinstance(self.image_url, str):
            return image_part(bytes_of_url(self.image_url, f"{place}.image_url"))
        return image_part(bytes_of_url(self.image_url.url, f"{place}.image_url.url"))


MAX_ITEMS = 10_000  # of a conversation, and parts of a message: in whose reading others wait
MAX_CALLS = Meta(max_length=MAX_ITEMS, description=f"a list of calls, at most {MAX_ITEMS}")
_MaxParts = Meta(max_length=MAX_ITEMS)
Content = Annotated[
    str | Annotated[list[TextPart], _MaxParts],
    Meta(description=f"a text, or a list of parts of type 'text', at most {MAX_ITEMS}"),
]

ChatContent = Annotated[
    str | Annotated[list[TextPart | ImagePart], _MaxParts],
    Meta(description=f"a text, or a list of parts of type 'text' or 'image_url', at most {MAX_ITEMS}"),
]


class CalledFunction(JsonObject, ignored="parsed_arguments"):  # which OpenAI's client leaves in what it parsed
    """A function that was called. arguments: JSON as a text, as OpenAI has it, or as an object."""

    name: str
    arguments: Annotated[str | dict[str, Any], Meta(description="a text of JSON, or an object")]


class Call(JsonObject, tag_field="type", tag="function", ignored="index extra_content provider_specific_fields"):
    """A call that the model made."""

    function: CalledFunction
    id: str | None = None

    @property
    def message(self) -> dict[str, Any]:
        """As templates want it."""
        return call_message(self.function.name, self.function.arguments, self.id)


class ChatMessage(JsonObject, ignored=IGNORED, refused=f"function_call {' '.join(MEDIA)}"):
    """reasoning_content, reasoning: what the model thought before it answered. prefix: whether the answer goes on.

    refusal: what a model answered in place of a content.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: ChatContent | None = None
    name: str | None = None
    tool_calls: Annotated[tuple[Call, ...], MAX_CALLS] = ()
    tool_call_id: Annotated[str, Meta(description="the id of the call it answers")] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    prefix: bool = False


Messages = Annotated[
    list[ChatMessage],
    Meta(min_length=1, max_length=MAX_ITEMS, description=f"a list of messages, at least one and at most {MAX_ITEMS}"),
]


TemplateArgs = Annotated[dict[str, Any], Meta(description="an object of the chat template's variables")]


def template_args(given: Mapping[str, Any] | None, effort: str | None, is_thinking: bool | None) -> dict[str, Any]:
    """What the chat template gets besides the messages; one that does not ask for it is the same without.

    effort: OpenAI's word for how much to think, of which "none" asks not to think at all. Raises ApiError.
    """
    taken = next((name for name in ("messages", "tools") if name in (given or {})), None)
    if taken is not None:
        sentence = f"'chat_template_kwargs' holds '{taken}', which a request has itself: leave it out."
        raise ApiError(400, sentence, "chat_template_kwargs")
    args: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if effort == "none" and is_thinking:
        sentence = "'reasoning_effort' is 'none', but 'enable_thinking' is true: leave one out."
        raise ApiError(400, sentence, "enable_thinking")
    if is_thinking is not None or effort == "none":
        args["enable_thinking"] = bool(is_thinking)
    for name, value in (given or {}).items():
        args[name] = agreed(name, args.get(name), f"chat_template_kwargs.{name}", value)
    return args


def to_messages(given: Sequence[ChatMessage]) -> list[Message]:
    """Messages as `Conversation` has them, by which what does not go together is refused. Raises ApiError."""
    return [_message(each, f"messages[{number}]") for number, each in enumerate(given)]


def _message(given: ChatMessage, place: str) -> Message:
    message: dict[str, Any] = {"role": "system" if given.role == "developer" else given.role}
    message["content"] = None if given.content is None else _content(given.content, f"{place}.content")
    if given.refusal is not None:
        message["refusal"] = given.refusal
    if given.name is not None:
        message["name"] = given.name  # some templates tell it
    names = f"{place}.reasoning_content", f"{place}.reasoning"
    thought = agreed(names[0], given.reasoning_content or None, names[1], given.reasoning or None)
    if thought:
        message["reasoning_content"] = thought
    if given.tool_calls:
        message["tool_calls"] = [
            call_message(each.function.name, each.function.arguments, each.id) for each in given.tool_calls
        ]
    if given.role == "tool":
        if given.tool_call_id is None:
            place = f"{place}.tool_call_id"
            raise wrong_value(place, None, "the id of the call it answers", place)
        message["tool_call_id"] = given.tool_call_id
    return message


def image_part(data: bytes) -> dict[str, Any]:
    """An image among a content's parts, as conversations have it."""
    return {"type": "image", "image": data}


def _content(content: str | Sequence[TextPart | ImagePart], place: str) -> str | list[dict[str, Any]]:
    """A text where it is nothing else: it may come in parts."""
    if isinstance(content, str) or not any(isinstance(part, ImagePart) for part in content):
        return text_of(cast(str | Sequence[TextPart], content))
    return [
        part.part(f"{place}[{number}]") if isinstance(part, ImagePart) else {"type": "text", "text": part.text}
        for number, part in enumerate(content)
    ]


def call_message(name: str, arguments: str | dict[str, Any], call_id: str | None) -> dict[str, Any]:
    """A call as templates want it: its arguments as an object, where they are one."""
    parsed: object = arguments
    if isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            parsed = None
    head = {} if call_id is None else {"id": call_id}
    function = {"name": name, "arguments": parsed if isinstance(parsed, dict) else arguments}
    return head | {"type": "function", "function": function}


def text_of(content: str | Sequence[TextPart]) -> str:
    """A content's text: it may come in parts."""
    return content if isinstance(content, str) else "".join(part.text for part in content)
