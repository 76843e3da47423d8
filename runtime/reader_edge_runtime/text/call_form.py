"""How a model writes calls of tools, as its chat template asks for them."""

import re
from dataclasses import dataclass

CALL_BEGIN, CALL_END = "<tool_call>\n", "\n</tool_call>"


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a model writes a call: {"name": ..., ARGUMENTS: ...} between two texts."""

    begin: str = CALL_BEGIN
    end: str = CALL_END
    arguments: str = "arguments"

    @classmethod
    def of_template(cls, source: str) -> "CallForm":
        """The form that a chat template asks for: between tags, unless it knows tools and no such tag."""
        if not knows_tools(source) or CALL_BEGIN.strip() in source:
            return cls()
        return cls("", "", "parameters" if re.search(r"""["']parameters["']\s*:""", source) else "arguments")


def knows_tools(source: str) -> bool:
    """Whether a chat template asks which tools there are."""
    return re.search(r"\btools\b", source) is not None
