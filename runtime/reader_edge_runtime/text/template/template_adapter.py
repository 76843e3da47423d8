"""What a chat template takes, found out once by rendering short conversations, and messages adapted to that."""

import hashlib
import json
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any

from reader_edge_runtime.text.conversation import REASONING, Conversation, Message, text_of

Render = Callable[[Conversation], str | None]  # None: refused

_TEXT = "A probe."
_PARTS = [{"type": "text", "text": _TEXT}]
_KEY = "probe_key"
_ARGUMENTS = '{"probe_key": 7}'
_SHORT_ID, _LONG_ID = "probe1234", "call_probe567890abcdef12"
_PARAMETERS = {"type": "object", "properties": {"probe": {"type": "string", "description": _TEXT}}, "required": []}
_TOOL = {"type": "function", "function": {"name": "probe", "description": _TEXT, "parameters": _PARAMETERS}}


class TemplateTraits:
    """Each is found out when it is first needed. render: as the template itself does it, without remedies."""

    def __init__(self, render: Render) -> None:
        self._render = render

    @cached_property
    def takes_texts(self) -> bool:
        """Whether a content may be a text."""
        return _TEXT in self._with_content(_TEXT)

    @cached_property
    def takes_parts(self) -> bool:
        """Whether a content may be a list of parts, which templates of texts alone show as Python's or not at all."""
        rendered = self._with_content(_PARTS)
        return _TEXT in rendered and not any(mark in rendered for mark in ("'type'", '"type"'))

    @cached_property
    def takes_argument_objects(self) -> bool:
        """Whether a call's arguments may be an object, which templates that want a text show as Python's."""
        rendered = self._called({_KEY: 7}, _SHORT_ID)
        return _KEY in rendered and f"'{_KEY}'" not in rendered

    @cached_property
    def takes_argument_texts(self) -> bool:
        """Whether a call's arguments may be a text, which templates that want an object quote once more."""
        rendered = self._called(_ARGUMENTS, _SHORT_ID)
        return _ARGUMENTS in rendered and not any(quote + _ARGUMENTS in rendered for quote in "\"'")

    @cached_property
    def takes_any_call_id(self) -> bool:
        """Whether calls may have ids of any form; Mistral's templates refuse all but nine letters and digits."""
        return bool(self._called({}, _LONG_ID)) or not self._called({}, _SHORT_ID)

    @cached_property
    def takes_calls_without_ids(self) -> bool:
        """Whether calls may lack ids."""
        return bool(self._called({}, None)) or not self._called({}, _SHORT_ID)

    @cached_property
    def takes_thoughts_beside_content(self) -> bool:
        """Whether a message with calls may have both; gpt-oss's template refuses that."""
        thoughts = {"reasoning_content": _TEXT, "thinking": _TEXT}
        return bool(self._called({}, _SHORT_ID, content=_TEXT, **thoughts)) or not self._called({}, _SHORT_ID)

    @cached_property
    def knows_system(self) -> bool:
        """Whether a message of the system reaches the model."""
        return _texts("system")[0] in (self._rendered("system", "user") or "")

    @cached_property
    def takes_systems(self) -> bool:
        """Whether messages of the system are taken at all; Gemma 2's template refuses them."""
        return not self._loses(0, "system", "user")

    @cached_property
    def takes_systems_in_a_row(self) -> bool:
        """Whether a second one is taken; many templates look at the first alone."""
        return not self._loses(1, "system", "system", "user")

    @cached_property
    def takes_systems_between_turns(self) -> bool:
        """Whether one behind other messages is taken."""
        return not self._loses(3, "system", "user", "assistant", "system", "user")

    @cached_property
    def takes_users_in_a_row(self) -> bool:
        """Whether the user may say two things in a row; templates whose roles alternate refuse that."""
        return self._rendered("user", "user") is not None or self._rendered("user") is None

    @cached_property
    def takes_answers_in_a_row(self) -> bool:
        """Whether the assistant may."""
        roles = "user", "assistant", "assistant", "user"
        return self._rendered(*roles) is not None or self._rendered("user", "assistant", "user") is None

    def _loses(self, place: int, *roles: str) -> bool:
        """Whether messages of the system are refused or left out where there is also this one, and none is without."""
        others = roles[:place] + roles[place + 1 :]
        before, rendered = self._rendered(*others), self._rendered(*roles)
        if before is None or any(text not in before for text in _texts(*others)):
            return False
        missing = [role for role, text in zip(roles, _texts(*roles), strict=True) if text not in (rendered or "")]
        return rendered is None or set(missing) == {"system"}

    def _rendered(self, *roles: str) -> str | None:
        """What is made of messages of these roles; None where they are refused."""
        texts = _texts(*roles)
        contents: list[Any] = texts if self.takes_texts else [[{"type": "text", "text": text}] for text in texts]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        return self._render(Conversation(messages))

    def _with_content(self, content: Any) -> str:
        return self._render(Conversation([{"role": "user", "content": content}])) or ""

    def _called(self, arguments: Any, call_id: str | None, **members: str) -> str:
        """members: of the message that calls. A call without an id is answered all the same."""
        head = {} if call_id is None else {"id": call_id}
        call = {**head, "type": "function", "function": {"name": "probe", "arguments": arguments}}
        messages: list[Message] = [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": None, "tool_calls": [call], **members},
            {"role": "tool", "tool_call_id": call_id or _SHORT_ID, "name": "probe", "content": "7"},
        ]
        return self._render(Conversation(messages, [_TOOL])) or ""


def _texts(*roles: str) -> list[str]:
    """What messages of these roles say in probes."""
    return [f"{_TEXT} {number}" for number in range(len(roles))]


_SYSTEM = ("system", "developer")
_GAP = "\n\n"  # between texts that are joined
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9


def adapted_messages(messages: Sequence[Message], traits: TemplateTraits) -> list[Message]:
    """The same messages in forms that the template takes; those that it takes already are left alone."""
    messages = _with_adapted_systems(messages, traits)
    if not traits.takes_users_in_a_row:
        messages = _joined(messages, ("user",))
    if not traits.takes_answers_in_a_row:
        messages = _joined(messages, ("assistant",))
    if any(call.get("id") is None for each in messages for call in each.get("tool_calls") or ()):
        messages = messages if traits.takes_calls_without_ids else _with_ids(messages)
    return [
        _with_adapted_ids(
            _with_adapted_calls(_with_adapted_content(with_reasoning_names(each), traits), traits), traits
        )
        for each in messages
    ]


def _with_adapted_systems(messages: Sequence[Message], traits: TemplateTraits) -> Sequence[Message]:
    """Those of the system that the template refuses or leaves out are joined to its first, or to the user's first."""
    systems = [each for each in messages if each["role"] in _SYSTEM]
    if any(each["role"] not in _SYSTEM for each in messages[: len(systems)]) and not traits.takes_systems_between_turns:
        messages = [*systems, *(each for each in messages if each["role"] not in _SYSTEM)]
    if len(systems) > 1 and not traits.takes_systems_in_a_row:
        messages = _joined(messages, _SYSTEM)
    if systems and any(each["role"] == "user" for each in messages) and not traits.takes_systems:
        messages = _moved_to_user(messages)
    return messages


def _joined(messages: Sequence[Message], roles: Sequence[str]) -> list[Message]:
    """Those of these roles in a row are one message, but for calls and what they are beside."""
    joined: list[Message] = []
    for message in messages:
        pair = [*joined[-1:], message]
        if len(pair) == 2 and all(each["role"] in roles and not each.get("tool_calls") for each in pair):
            text = _GAP.join(filter(None, [text_of(joined[-1]), text_of(message)]))
            joined[-1] = {**joined[-1], "content": text}
        else:
            joined.append(message)
    return joined


def _moved_to_user(messages: Sequence[Message]) -> list[Message]:
    """What the system says stands before what the user says first."""
    systems = [text_of(each) for each in messages if each["role"] in _SYSTEM]
    rest = [each for each in messages if each["role"] not in _SYSTEM]
    first = next(number for number, each in enumerate(rest) if each["role"] == "user")
    text = _GAP.join(filter(None, [*systems, text_of(rest[first])]))
    return [*rest[:first], {**rest[first], "content": text}, *rest[first + 1 :]]


def with_reasoning_names(message: Message) -> Message:
    """A message whose reasoning has all the names that templates read it by, as transformers 5 hands it on."""
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _with_adapted_content(message: Message, traits: TemplateTraits) -> Message:
    content = message.get("content")
    if isinstance(content, list | tuple) and not traits.takes_parts:
        return {**message, "content": text_of(message)}
    if isinstance(content, str) and not traits.takes_texts and traits.takes_parts:
        return {**message, "content": [{"type": "text", "text": content}]}
    return message


def _with_adapted_calls(message: Message, traits: TemplateTraits) -> Message:
    if not message.get("tool_calls"):
        return message
    if message.get("content") and message.get("reasoning_content") and not traits.takes_thoughts_beside_content:
        thought = f"{message['reasoning_content']}\n\n{text_of(message)}"
        message = {**message, "content": None, "reasoning_content": thought, "thinking": thought}
    calls = [
        {
            **call,
            "function": {**call["function"], "arguments": _adapted_arguments(call["function"]["arguments"], traits)},
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _adapted_arguments(arguments: Any, traits: TemplateTraits) -> Any:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = "{}"  # so clients write a call without any
    if isinstance(arguments, str):
        if traits.takes_argument_texts or not traits.takes_argument_objects:
            return arguments
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return value if isinstance(value, dict) else arguments
    if traits.takes_argument_objects or not traits.takes_argument_texts:
        return arguments
    return json.dumps(arguments, ensure_ascii=False)


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """Calls without ids get those that the tools' answers behind them name, in their order."""
    adapted: list[Message] = []
    for number, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        answers = takewhile(lambda each: each["role"] == "tool", messages[number + 1 :])
        given = {call.get("id") for call in calls}
        free = (each["tool_call_id"] for each in answers if each.get("tool_call_id") not in (*given, None))
        named = [
            call if call.get("id") is not None else {**call, "id": next(free, _short_id(f"{number} {place}"))}
            for place, call in enumerate(calls)
        ]
        adapted.append({**message, "tool_calls": named} if calls else message)
    return adapted


def _with_adapted_ids(message: Message, traits: TemplateTraits) -> Message:
    """Ids of other forms than the template takes are replaced, each always by the same."""
    ids = [call.get("id") for call in message.get("tool_calls") or ()] + [message.get("tool_call_id")]
    if all(each is None or _is_short(each) for each in ids) or traits.takes_any_call_id:
        return message
    adapted = dict(message)
    if message.get("tool_calls"):
        adapted["tool_calls"] = [
            {**call, "id": _short_id(call["id"])} if call.get("id") is not None else call
            for call in message["tool_calls"]
        ]
    if message.get("tool_call_id") is not None:
        adapted["tool_call_id"] = _short_id(message["tool_call_id"])
    return adapted


def _is_short(call_id: object) -> bool:
    return isinstance(call_id, str) and len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum()


def _short_id(call_id: object) -> str:
    """Nine letters and digits."""
    if _is_short(call_id):
        return str(call_id)
    number = int.from_bytes(hashlib.sha256(str(call_id).encode(errors="replace")).digest())
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(_ID_LENGTH))
