"""A session of a coding agent by script: files are read, two are edited, a test fails, is mended, and passes.

The project is a copy of a part of this repository. Each client's own tools are called, by what they are named.
"""

import json
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reader_edge.server.clients.edit_script import results_of, tools_of, turns_of, written_call
from tests.scripted_target import ROOT

Json = dict[str, Any]
Tools = dict[str, Json]

TASK = "Add the agent Goose to `launch` in the project at `{path}`: its code, its page and a test."
AGENTS, SERVER, PAGE, TEST = "launch/agents.py", "launch/local_server.py", "docs/agents.md", "test_agents.py"
_FILES = {AGENTS: "reader_edge/launch/agents.py", SERVER: "reader_edge/launch/local_server.py"}
_FILES |= {PAGE: "docs/how-to/agents.md", "launch/__init__.py": "reader_edge/launch/__init__.py"}
_TASK = re.compile(r"in the project at `([^`]+)`")
_SHELLS = ("bash", "exec_command", "run_shell_command", "shell")

_SETUP = """def _goose(model: AgentModel, folder: Path) -> Setup:
    environment = {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": model.name,
        "GOOSE_CONTEXT_LIMIT": str(model.%s),
        "OPENAI_HOST": model.url,
        "OPENAI_API_KEY": model.key,
    }
    return Setup(environment)


"""
_WRITER = "def _written(path: Path, values: Mapping[str, Any]) -> Path:\n"
_LAST = '    "crush": Agent("Crush", "crush", "npm install -g @charmland/crush", _crush),\n'
_ENTRY = '    "goose": Agent("Goose", "goose", "https://block.github.io/goose", _goose),\n'
_TEST = '''"""Goose is pointed at a server by its environment."""

import unittest
from pathlib import Path

from launch.agents import AGENTS, AgentModel


class TestGoose(unittest.TestCase):
    def test_goose_is_pointed_at_the_server(self) -> None:
        model = AgentModel("http://127.0.0.1:8000", "qwen", 32_768)
        environment = AGENTS["goose"].setup(model, Path()).environment
        self.assertEqual(environment["OPENAI_HOST"], "http://127.0.0.1:8000")
        self.assertEqual(environment["GOOSE_MODEL"], "qwen")
        self.assertEqual(environment["GOOSE_CONTEXT_LIMIT"], "32768")


if __name__ == "__main__":
    unittest.main()
'''


def make_project(folder: Path) -> None:
    """Copy the files that the session is about."""
    for name, source in _FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / source, folder / name)


def session_script(text: str) -> str:
    """The answer to a conversation as ChatML: the session's next call, or its end."""
    turns, path, num_results = turns_of(text), "", 0
    for role, content in turns:
        if role != "user":
            continue
        found = _TASK.search(content)
        path = found[1] if found else path
        num_results += len(results_of(content))
    tools = dict(tools_of("".join(content for role, content in turns if role == "system")))
    if not path or not tools:
        return "Add an agent"  # for requests beside the task: titles, summaries
    steps = _steps(Path(path), tools)
    return steps[num_results]() if num_results < len(steps) else _end()


def _steps(project: Path, tools: Tools) -> list[Callable[[], str]]:
    """What is done, in turn."""
    test = f"cd {shlex.quote(str(project))} && python3 -m unittest -v {TEST}"
    added = f"{(_SETUP % 'max_tokens').rstrip()}\n\n\n{_WRITER}"
    wrong, right = ((_SETUP % limit).rstrip("\n") for limit in ("max_tokens", "context"))
    return [
        lambda: _shell(tools, "I look at what there is.", f"cd {shlex.quote(str(project))} && ls -R ."),
        lambda: _read(tools, "The page first.", project / PAGE),
        lambda: _read(tools, "Now the agents that there are.", project / AGENTS),
        lambda: _read(tools, "And what starts a server for them.", project / SERVER),
        lambda: _edit(tools, "Goose takes its settings from the environment.", project / AGENTS, _WRITER, added),
        lambda: _edit(tools, "It goes into the table.", project / AGENTS, _LAST, _LAST + _ENTRY),
        lambda: _write(tools, "Now a test of it.", project / TEST, _TEST),
        lambda: _shell(tools, "I run the test.", test),
        lambda: _edit(tools, "The limit must be the whole context.", project / AGENTS, wrong, right),
        lambda: _write(tools, "The page gets Goose too.", project / PAGE, _page(project / PAGE)),
        lambda: _shell(tools, "I run the test again.", test),
    ]


def _page(path: Path) -> str:
    """The page, with a block for Goose behind that of Crush."""
    text = path.read_text("utf-8")
    line = next((each for each in text.splitlines(keepends=True) if "rush" in each), "")
    return text.replace(line, line + line.replace("Crush", "Goose").replace("crush", "goose"), 1)


def _end() -> str:
    return (
        "`launch` now knows Goose. It is set up by its environment alone:\n\n"
        f"```python\n{(_SETUP % 'context').rstrip()}\n```\n\n"
        f"The first run of the test failed, as the limit was that of an answer; it is the context now. "
        f"`{AGENTS}`, `{PAGE}` and `{TEST}` are changed, and the test passes."
    )


def _read(tools: Tools, words: str, path: Path) -> str:
    tool = _first(tools, "read", "read_file", "view")
    if tool is None:
        return _shell(tools, words, f"cat {shlex.quote(str(path))}")
    return _call(words, tool, {"path|file": str(path)})


def _edit(tools: Tools, words: str, path: Path, old: str, new: str) -> str:
    tool = _first(tools, "edit", "replace")
    if tool is not None:
        return _call(words, tool, {"path|file": str(path), "old|search": old, "new|replace": new})
    hunk = "".join(f"-{line}\n" for line in old.splitlines()) + "".join(f"+{line}\n" for line in new.splitlines())
    patch = f"*** Begin Patch\n*** Update File: {path}\n@@\n{hunk}*** End Patch"
    return _shell(tools, words, f"apply_patch <<'EOF'\n{patch}\nEOF")


def _write(tools: Tools, words: str, path: Path, content: str) -> str:
    tool = _first(tools, "write", "write_file")
    if tool is None:
        return _shell(tools, words, f"cat > {shlex.quote(str(path))} <<'EOF'\n{content}EOF")
    return _call(words, tool, {"path|file": str(path), "content": content})


def _shell(tools: Tools, words: str, command: str) -> str:
    tool = _first(tools, *_SHELLS)
    if tool is None:
        return f"There is no shell among {json.dumps([*tools])}."
    return _call(words, tool, {"command|cmd": command})


def _first(tools: Tools, *names: str) -> Json | None:
    return next((tools[name] for name in names if name in tools), None)


def _call(words: str, tool: Json, values: Json) -> str:
    return f"{words}\n{written_call(tool, values)}"
