"""A script for coding agents: the file is read with the client's own tool, then edited with it, then the answer ends.

TASK.format(old="hello", new="goodbye", path="/tmp/greeting.txt")     # what the user asks of the client
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.scripted_target import BEGIN, END

TASK = "In the file `{path}` replace the line `{old}` by `{new}`. Read the file first."
DONE = "The line is replaced."
TITLE = "Replace a line"  # for requests beside the task: titles, summaries

_TASK = re.compile(r"In the file `([^`]+)` replace the line `([^`]+)` by `([^`]+)`")
_TURN = re.compile(rf"{re.escape(BEGIN)}(\w+)\n?(.*?)(?:{re.escape(END)}|$)", re.DOTALL)
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)
# Most clients have a role for results; smolagents writes them as the user's text.
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>|^Observation:\n(.*)", re.DOTALL | re.MULTILINE)

# Names of tools that clients have, the best first.
_READERS = ("read", "read_file", "read_files", "view", "exec_command", "shell_command", "shell", "bash")
_EDITORS = ("edit", "edit_file", "editor", "replace", "apply_patch", "exec_command", "shell_command", "shell", "bash")
_LAST = "final_answer"  # of clients that end by a call

Json = dict[str, Any]


class Task(NamedTuple):
    """What the user asks for."""

    path: str
    old: str
    new: str


class Scene(NamedTuple):
    """A conversation as a script sees it. results: of tools, since the task was set. tools: by names in lower case."""

    system: str
    task: Task | None
    results: list[str]
    tools: dict[str, Json]

    @classmethod
    def of(cls, text: str) -> "Scene":
        """text: a conversation as ChatML."""
        task, results = None, list[str]()
        turns = turns_of(text)
        for role, content in turns:
            if role != "user":
                continue
            outputs = results_of(content)
            found = None if outputs else _TASK.search(content)
            if found:
                task, results = Task(*found.groups()), []
            results += outputs
        system = "".join(content for role, content in turns if role == "system")
        return cls(system, task, results, dict(tools_of(system)))


def edit_script(text: str) -> str:
    """The answer to a conversation: a call, or the end."""
    scene = Scene.of(text)
    if scene.task is None:
        return TITLE
    if "*file listing*" in scene.system:
        return _file_listing(text, scene.task)
    if not scene.tools:
        return TITLE
    if not scene.results:
        return _call(scene, _READERS, f"cat {scene.task.path}")
    if len(scene.results) == 1:
        if scene.task.old not in scene.results[0]:
            return f"The file was not read: {scene.results[0]:.200}"
        return _call(scene, _EDITORS, "sed -i 's/{old}/{new}/' {path}".format(**scene.task._asdict()))
    if _LAST in scene.tools:
        return written_call(scene.tools[_LAST], {"": DONE})
    return DONE


def turns_of(text: str) -> list[tuple[str, str]]:
    """Roles and contents of a conversation as ChatML."""
    return _TURN.findall(text)


def results_of(content: str) -> list[str]:
    """Of tools, in a turn of the user's."""
    return ["".join(each) for each in _RESULT.findall(content)]


def tools_of(system: str) -> Iterator[tuple[str, Json]]:
    """The tools of a system turn, by their names in lower case."""
    for block in _TOOLS.findall(system):
        for line in block.splitlines():
            tool = json.loads(line)["function"]
            yield tool["name"].lower(), tool


def _call(scene: Scene, names: tuple[str, ...], command: str) -> str:
    """A call of the first of these tools that the client has. command: for one that takes those of a shell."""
    task = scene.task
    assert task is not None
    tool = next((scene.tools[name] for name in names if name in scene.tools), None)
    if tool is None:
        return f"There is no tool for this among {', '.join(scene.tools)}."
    values = {"path|file": task.path, "old|search": task.old, "new|replace": task.new, "command|cmd": command}
    return written_call(tool, values | {"patch|input": _patch(task)})


def written_call(tool: Json, values: Json) -> str:
    """A call in Hermes' form. values: by patterns of the parameters' names."""
    arguments = _filled(tool.get("parameters") or {}, values)
    return f"<tool_call>\n{json.dumps({'name': tool['name'], 'arguments': arguments})}\n</tool_call>"


def _filled(schema: Json, values: Json, name: str = "") -> Any:
    """A value that a schema allows: for parameters with these names those values, for other required ones the least."""
    kind = schema.get("type")
    if kind == "object" or "properties" in schema:
        required = schema.get("required") or []
        parameters = schema.get("properties") or {}
        wanted = [each for each in parameters if each in required or _value(each, values) is not None]
        return {each: _filled(parameters[each], values, each) for each in wanted}
    if kind == "array":
        return [_filled(schema.get("items") or {}, values, name)]
    if kind in ("boolean", "integer", "number"):
        return {"boolean": False}.get(kind, 1)
    return schema["enum"][0] if "enum" in schema else _value(name, values) or TITLE


def _value(name: str, values: Json) -> Any:
    return next((value for pattern, value in values.items() if re.search(pattern, name.lower())), None)


def _patch(task: Task) -> str:
    """As Codex has it."""
    return f"*** Begin Patch\n*** Update File: {task.path}\n@@\n-{task.old}\n+{task.new}\n*** End Patch\n"


def _file_listing(text: str, task: Task) -> str:
    """As aider has it of models that it does not know: it sends the file, and wants all of it back."""
    name = task.path.rpartition("/")[2]
    before, _, rest = text.rpartition(f"\n{name}\n```\n")
    content = rest.partition("\n```")[0] if before else "The file is not here."
    return f"{name}\n```\n{content.replace(task.old, task.new)}\n```\n"
