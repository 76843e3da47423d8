"""Types of tool calling: which tools an answer may call, one whole call, and the pieces of an answer as it streams."""

import secrets
import string
from dataclasses import dataclass
from typing import Any, NamedTuple

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # which Mistral's templates insist on


@dataclass(frozen=True, slots=True)
class ToolUse:
    """tools: as chats declare them; none where none may be called. names: of those that may be called.

    is_required: whether the answer must be calls, is_parallel: of which there may be several. is_strict: whether calls
    follow their schemas also where the answer may be a text. choice: which of all that the request asks for.
    """

    tools: tuple[dict[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    is_required: bool = False
    is_parallel: bool = True
    is_strict: bool = False
    choice: object = "none"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool that an answer calls. arguments: by their names. id: by which a message of the role "tool" answers it."""

    name: str
    arguments: dict[str, Any]
    id: str

    @property
    def message(self) -> dict[str, Any]:
        """As messages of the assistant have it."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


class AnswerDelta(NamedTuple):
    """A piece of an answer.

    call: its number, -1 for a text. name: at a call's beginning. text: of a text, or of a call's arguments.
    """

    text: str
    call: int = -1
    name: str | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """A call's part in OpenAI's words."""
        function = {"arguments": self.text} if self.name is None else {"name": self.name, "arguments": self.text}
        head = {} if self.name is None else {"id": new_call_id(), "type": "function"}
        return {"index": self.call, **head, "function": function}


def new_call_id() -> str:
    """An id that the template of every model takes."""
    return "".join(secrets.choice(_ID_CHARACTERS) for _ in range(_ID_LENGTH))
