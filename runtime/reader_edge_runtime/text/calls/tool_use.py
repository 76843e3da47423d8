"""Calls of tools in a whole answer, and which calls an answer may have."""

from dataclasses import dataclass
from typing import Any


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
