"""A piece of what an answer says: of a text, or of a call."""

import secrets
import string
from typing import Any, NamedTuple

_ID_CHARACTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # which Mistral's templates insist on


class Said(NamedTuple):
    """call: its number, -1 for a text. name: at a call's beginning. text: of a text, or of a call's arguments."""

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
