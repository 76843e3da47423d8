"""Messages as a certain chat template wants them, where it could not render them as they are."""

import hashlib
import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from reader_edge_runtime.text.conversation import REASONING, Message, text_of
from reader_edge_runtime.text.template.template_traits import TemplateTraits

_SYSTEM = ("system", "developer")
_GAP = "\n\n"  # between texts that are joined
_LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 9


def suited_messages(messages: Sequence[Message], traits: TemplateTraits) -> list[Message]:
    """The same messages in forms that the template takes; those that it takes already are left alone."""
    messages = _with_suited_systems(messages, traits)
    if not traits.takes_users_in_a_row:
        messages = _joined(messages, ("user",))
    if not traits.takes_answers_in_a_row:
        messages = _joined(messages, ("assistant",))
    if any(call.get("id") is None for each in messages for call in each.get("tool_calls") or ()):
        messages = messages if traits.takes_calls_without_ids else _with_ids(messages)
    return [
        _with_suited_ids(_with_suited_calls(_with_suited_content(with_reasoning_names(each), traits), traits), traits)
        for each in messages
    ]


def _with_suited_systems(messages: Sequence[Message], traits: TemplateTraits) -> Sequence[Message]:
    """Those of the system that the template refuses or leaves out are joined to its first, or to the user's first."""
    systems = [each for each in messages if each["role"] in _SYSTEM]
    if any(each["role"] not in _SYSTEM for each in messages[: len(systems)]) and not traits.takes_systems_amid_turns:
        messages = [*systems, *(each for each in messages if each["role"] not in _SYSTEM)]
    if len(systems) > 1 and not traits.takes_systems_in_a_row:
        messages = _joined(messages, _SYSTEM)
    if systems and any(each["role"] == "user" for each in messages) and not traits.takes_systems:
        messages = _told_by_user(messages)
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


def _told_by_user(messages: Sequence[Message]) -> list[Message]:
    """What the system says stands before what the user says first."""
    said = [text_of(each) for each in messages if each["role"] in _SYSTEM]
    rest = [each for each in messages if each["role"] not in _SYSTEM]
    first = next(number for number, each in enumerate(rest) if each["role"] == "user")
    text = _GAP.join(filter(None, [*said, text_of(rest[first])]))
    return [*rest[:first], {**rest[first], "content": text}, *rest[first + 1 :]]


def with_reasoning_names(message: Message) -> Message:
    """A message whose reasoning has all the names that templates read it by, as transformers 5 hands it on."""
    reasoning = next((message[name] for name in REASONING if message.get(name) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _with_suited_content(message: Message, traits: TemplateTraits) -> Message:
    content = message.get("content")
    if isinstance(content, list | tuple) and not traits.takes_parts:
        return {**message, "content": text_of(message)}
    if isinstance(content, str) and not traits.takes_texts and traits.takes_parts:
        return {**message, "content": [{"type": "text", "text": content}]}
    return message


def _with_suited_calls(message: Message, traits: TemplateTraits) -> Message:
    if not message.get("tool_calls"):
        return message
    if message.get("content") and message.get("reasoning_content") and not traits.takes_thoughts_beside_content:
        thought = f"{message['reasoning_content']}\n\n{text_of(message)}"
        message = {**message, "content": None, "reasoning_content": thought, "thinking": thought}
    calls = [
        {
            **call,
            "function": {**call["function"], "arguments": _suited_arguments(call["function"]["arguments"], traits)},
        }
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _suited_arguments(arguments: Any, traits: TemplateTraits) -> Any:
    if arguments is None or (isinstance(arguments, str) and not arguments.strip()):
        arguments = "{}"  # so clients write a call without any
    if isinstance(arguments, str):
        if traits.takes_argument_texts or not traits.takes_argument_objects:
            return arguments
        try:
            said = json.loads(arguments)
        except (ValueError, RecursionError):
            return arguments
        return said if isinstance(said, dict) else arguments
    if traits.takes_argument_objects or not traits.takes_argument_texts:
        return arguments
    return json.dumps(arguments, ensure_ascii=False)


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """Calls without ids get those that the tools' answers behind them name, in their order."""
    suited: list[Message] = []
    for number, message in enumerate(messages):
        calls = message.get("tool_calls") or ()
        answers = takewhile(lambda each: each["role"] == "tool", messages[number + 1 :])
        given = {call.get("id") for call in calls}
        free = (each["tool_call_id"] for each in answers if each.get("tool_call_id") not in (*given, None))
        named = [
            call if call.get("id") is not None else {**call, "id": next(free, _short_id(f"{number} {place}"))}
            for place, call in enumerate(calls)
        ]
        suited.append({**message, "tool_calls": named} if calls else message)
    return suited


def _with_suited_ids(message: Message, traits: TemplateTraits) -> Message:
    """Ids of other forms than the template takes are replaced, each always by the same."""
    ids = [call.get("id") for call in message.get("tool_calls") or ()] + [message.get("tool_call_id")]
    if all(each is None or _is_short(each) for each in ids) or traits.takes_any_call_id:
        return message
    suited = dict(message)
    if message.get("tool_calls"):
        suited["tool_calls"] = [
            {**call, "id": _short_id(call["id"])} if call.get("id") is not None else call
            for call in message["tool_calls"]
        ]
    if message.get("tool_call_id") is not None:
        suited["tool_call_id"] = _short_id(message["tool_call_id"])
    return suited


def _is_short(call_id: object) -> bool:
    return isinstance(call_id, str) and len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum()


def _short_id(call_id: object) -> str:
    """Nine letters and digits."""
    if _is_short(call_id):
        return str(call_id)
    number = int.from_bytes(hashlib.sha256(str(call_id).encode(errors="replace")).digest())
    return "".join(_LETTERS[number // len(_LETTERS) ** place % len(_LETTERS)] for place in range(_ID_LENGTH))
