"""Anthropic's turns as messages that chat templates know, and the tools that may be called behind them."""

import json
import re
from collections.abc import Sequence
from typing import Any

from reader_edge.server.anthropic.blocks import (
    Block,
    ImageBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolAdditionBlock,
    ToolDefinition,
    ToolReferenceBlock,
    ToolRemovalBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from reader_edge.server.api_error import ApiError
from reader_edge.server.openai.messages import call_message, image_part
from reader_edge.server.tools import ClientTool
from reader_edge_runtime.text.image_parts import bytes_of_base64

# Claude Code's note to Anthropic's accounts, another one each time: no prefix of the prompt would ever come again.
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*\n?")
_ROLES = {
    ImageBlock: "user",
    ThinkingBlock: "assistant",
    RedactedThinkingBlock: "assistant",
    ToolUseBlock: "assistant",
    ToolResultBlock: "user",
    ToolAdditionBlock: "system",
    ToolRemovalBlock: "system",
}


class TurnReader:
    """messages: what was read so far. Turns of one role that follow each other are one, as Anthropic has it.

    A tool that was deferred is described where the conversation names it: what stands before stays the same prefix.
    """

    def __init__(self, tools: Sequence[ClientTool]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}  # of tools, by the ids of their calls
        self._known = {tool.name: tool for tool in tools}
        self._in_front = [tool for tool in tools if not tool.defer_loading]
        self._added: dict[str, ClientTool] = {}
        self._removed: set[str] = set()

    @property
    def tools(self) -> list[ClientTool]:
        """Those that may be called behind what was read."""
        names = {tool.name for tool in self._in_front}
        every = [*self._in_front, *(tool for name, tool in self._added.items() if name not in names)]
        return [tool for tool in every if tool.name not in self._removed]

    def read_system(self, system: str | Sequence[TextBlock]) -> None:
        """What stands before all turns."""
        for text in [system] if isinstance(system, str) else [block.text for block in system]:
            self._say("system", _BILLING.sub("", text, count=1))

    def read(self, turn: Turn, place: str) -> None:
        """place: of the turn, for a refusal. Raises ApiError for a block that has no place in its turn."""
        for number, block in enumerate(turn.blocks):
            role = _ROLES.get(type(block), turn.role)
            if turn.role != role:
                kind = str(type(block).__struct_config__.tag)
                at = f"{place}.content[{number}]"
                sentence = f"'{at}' is of type '{kind}', which is for the role '{role}', not for '{turn.role}'"
                raise ApiError(400, f"{sentence}: put it where it belongs.", at)
            self._take(block, role, f"{place}.content[{number}]")

    def _take(self, block: Block, role: str, place: str) -> None:
        match block:
            case TextBlock():
                self._say(role, block.text)
            case ImageBlock():
                message = self._turn(role)
                image = image_part(bytes_of_base64(block.source.data, f"{place}.source.data"))
                message["content"] = [*_parts(message["content"]), image]
            case ThinkingBlock():
                message = self._turn(role)
                message["reasoning_content"] = message.get("reasoning_content", "") + block.text
            case ToolUseBlock():
                self._names[block.id] = block.name
                call = call_message(block.name, block.input, block.id)
                self._turn(role).setdefault("tool_calls", []).append(call)
            case ToolResultBlock():
                self.messages.append(self._result(block, place))
            case ToolAdditionBlock():
                if isinstance(block.tool, ToolDefinition):
                    self._known[block.tool.name] = block.tool.definition
                self._say(role, self._described(block.tool.name))
            case ToolRemovalBlock():
                self._removed.add(block.tool.name)
                self._say(role, f"The tool '{block.tool.name}' cannot be called any more.")

    def _say(self, role: str, text: str) -> None:
        """A text in a turn. Many templates know the system in front alone: later it speaks in the user's turn."""
        if not text:
            return
        if role == "system" and self.messages and self.messages[-1]["role"] != "system":
            role, text = "user", f"<system-reminder>\n{text}\n</system-reminder>"  # the tag of Claude Code
        message = self._turn(role)
        if isinstance(message["content"], list):
            message["content"].append({"type": "text", "text": text})
        else:
            message["content"] = f"{message['content']}\n{text}" if message["content"] else text

    def _result(self, block: ToolResultBlock, place: str) -> dict[str, Any]:
        parts = [TextBlock(text=block.content)] if isinstance(block.content, str) else block.content
        texts = [
            self._described(part.tool_name) if isinstance(part, ToolReferenceBlock) else part.text
            for part in parts
            if not isinstance(part, ImageBlock)
        ]
        text = "\n".join(texts)
        text = f"Error: {text}" if block.is_error else text
        images = [
            image_part(bytes_of_base64(part.source.data, f"{place}.content[{number}].source.data"))
            for number, part in enumerate(parts)
            if isinstance(part, ImageBlock)
        ]
        message = {"role": "tool", "content": [*_parts(text), *images] if images else text}
        name = self._names.get(block.tool_use_id)
        return message | {"tool_call_id": block.tool_use_id} | ({"name": name} if name else {})

    def _described(self, name: str) -> str:
        """What the model reads of a tool that may be called from here on."""
        tool = self._known.get(name)
        if tool is None:
            return f"There is no tool '{name}'."
        self._added[name] = tool
        self._removed.discard(name)
        return json.dumps(tool.declared, ensure_ascii=False)

    def _turn(self, role: str) -> dict[str, Any]:
        """The message of a role that goes on, or begins."""
        if not self.messages or self.messages[-1]["role"] != role:
            self.messages.append({"role": role, "content": ""})
        return self.messages[-1]


def _parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A content in parts, to which an image may be added."""
    return content if isinstance(content, list) else [{"type": "text", "text": content}] * bool(content)
