"""What a chat template takes, found out once by rendering short conversations with it."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from reader_edge_runtime.text.conversation import Conversation, Message

Render = Callable[[Conversation], str | None]  # None: refused

_TEXT = "A probe."
_PARTS = [{"type": "text", "text": _TEXT}]
_KEY = "probe_key"
_ARGUMENTS = '{"probe_key": 7}'
_SHORT_ID, _LONG_ID = "probe1234", "call_probe567890abcdef12"
_PARAMETERS = {"type": "object", "properties": {"probe": {"type": "string", "description": _TEXT}}, "required": []}
_TOOL = {"type": "function", "function": {"name": "probe", "description": _TEXT, "parameters": _PARAMETERS}}


class TemplateTraits:
    """Each is found out when it is first asked for. render: as the template itself does it, without remedies."""

    def __init__(self, render: Render) -> None:
        self._render = render

    @cached_property
    def takes_texts(self) -> bool:
        """Whether a content may be a text."""
        return _TEXT in self._asked(_TEXT)

    @cached_property
    def takes_parts(self) -> bool:
        """Whether a content may be a list of parts, which templates of texts alone show as Python's or not at all."""
        said = self._asked(_PARTS)
        return _TEXT in said and not any(mark in said for mark in ("'type'", '"type"'))

    @cached_property
    def takes_argument_objects(self) -> bool:
        """Whether a call's arguments may be an object, which templates that want a text show as Python's."""
        said = self._called({_KEY: 7}, _SHORT_ID)
        return _KEY in said and f"'{_KEY}'" not in said

    @cached_property
    def takes_argument_texts(self) -> bool:
        """Whether a call's arguments may be a text, which templates that want an object quote once more."""
        said = self._called(_ARGUMENTS, _SHORT_ID)
        return _ARGUMENTS in said and not any(quote + _ARGUMENTS in said for quote in "\"'")

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
        return _texts("system")[0] in (self._told("system", "user") or "")

    @cached_property
    def takes_systems(self) -> bool:
        """Whether messages of the system are taken at all; Gemma 2's template refuses them."""
        return not self._loses(0, "system", "user")

    @cached_property
    def takes_systems_in_a_row(self) -> bool:
        """Whether a second one is taken; many templates look at the first alone."""
        return not self._loses(1, "system", "system", "user")

    @cached_property
    def takes_systems_amid_turns(self) -> bool:
        """Whether one behind other messages is taken."""
        return not self._loses(3, "system", "user", "assistant", "system", "user")

    @cached_property
    def takes_users_in_a_row(self) -> bool:
        """Whether the user may say two things in a row; templates whose roles alternate refuse that."""
        return self._told("user", "user") is not None or self._told("user") is None

    @cached_property
    def takes_answers_in_a_row(self) -> bool:
        """Whether the assistant may."""
        roles = "user", "assistant", "assistant", "user"
        return self._told(*roles) is not None or self._told("user", "assistant", "user") is None

    def _loses(self, place: int, *roles: str) -> bool:
        """Whether messages of the system are refused or left out where there is also this one, and none is without."""
        others = roles[:place] + roles[place + 1 :]
        before, told = self._told(*others), self._told(*roles)
        if before is None or any(text not in before for text in _texts(*others)):
            return False
        missing = [role for role, text in zip(roles, _texts(*roles), strict=True) if text not in (told or "")]
        return told is None or set(missing) == {"system"}

    def _told(self, *roles: str) -> str | None:
        """What is made of messages of these roles; None where they are refused."""
        texts = _texts(*roles)
        contents: list[Any] = texts if self.takes_texts else [[{"type": "text", "text": text}] for text in texts]
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        return self._render(Conversation(messages))

    def _asked(self, content: Any) -> str:
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
