"""Coding agents and agent libraries, unmodified, each with a task: read a file with its tool, edit it, and end.

    python -m tests.reader_edge.server.clients.try_agents FOLDER [--real URL MODEL] [--record FILE] [CLIENT ...]

Clients are installed from npm and PyPI into FOLDER, each by itself, once; NODE in the environment is the folder of a
Node.js that they can run on, PYTHON a Python for them. What they are answered is `edit_script`, so no large model is
needed. With --real they also ask a model that is served. Prints a table; the exit code is 1 if anything failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from reader_edge.launch.agents import AGENTS
from tests.conftest import ROOT
from tests.reader_edge.server.clients.edit_script import TASK
from tests.reader_edge.server.clients.serve_script import MODEL

PORT = 8471
URL = f"http://127.0.0.1:{PORT}"
OLD, NEW = "hello from the file", "goodbye from the file"
QUESTION = "Say hello in one short sentence. Do not use any tool."
LIMIT_S = 240
LOOPS = Path(__file__).with_name("agent_loops.py")
_PLACES = {"npm": "node_modules/.bin", "pypi": "bin"}


class Client(NamedTuple):
    """packages: to install, the one whose version counts first. arguments: of its command, {prompt} in them.

    command: "" where `launch` runs it.
    """

    kind: str
    packages: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    command: str = ""


def _library(name: str, *packages: str) -> Client:
    return Client("pypi", packages, (str(LOOPS), name, "{url}", "{model}", "{prompt}"), "python")


CLIENTS = {
    "claude": Client("npm", ("@anthropic-ai/claude-code",), ("-p", "{prompt}", "--allowedTools", "Read,Edit")),
    "codex": Client(
        "npm",
        ("@openai/codex",),
        ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "{prompt}"),
    ),
    "opencode": Client("npm", ("opencode-ai",), ("run", "{prompt}")),
    "qwen": Client("npm", ("@qwen-code/qwen-code",), ("-p", "{prompt}", "--approval-mode", "yolo")),
    "crush": Client("npm", ("@charmland/crush",), ("run", "{prompt}")),
    "aider": Client(
        "pypi",
        ("aider-chat",),
        (
            *("--message", "{prompt}", "--yes-always", "--no-git", "--no-check-update", "--no-stream"),
            *("--analytics-disable", "--no-show-release-notes", "--no-show-model-warnings", "greeting.txt"),
        ),
    ),
    "continue": Client("npm", ("@continuedev/cli",), ("-p", "{prompt}", "--config", "{config}", "--auto"), "cn"),
    "llm": Client(
        "pypi", ("llm",), ("prompt", "-m", "here", "--functions", "{functions}", "--no-log", "{prompt}"), "llm"
    ),
    "openai": _library("openai", "openai"),
    "openai-agents": _library("openai-agents", "openai-agents"),
    "anthropic": _library("anthropic", "anthropic"),
    "ollama": _library("ollama", "ollama"),
    "litellm": _library("litellm", "litellm"),
    "langchain": _library("langchain", "langchain", "langchain-openai"),
    "llama-index": _library("llama-index", "llama-index-core", "llama-index-llms-openai-like"),
    "pydantic-ai": _library("pydantic-ai", "pydantic-ai-slim[openai]"),
    "smolagents": _library("smolagents", "smolagents[openai]"),
}


class Outcome(NamedTuple):
    """note: "" where all went well, else the last of what it wrote."""

    note: str
    seconds: float


def installed(name: str, folder: Path) -> tuple[Path, str]:
    """The folder of a client's commands, and its version; it is installed if it is not there yet."""
    client, place = CLIENTS[name], folder / name
    commands = place / _PLACES[client.kind]
    if client.kind == "npm":
        if not commands.exists():
            place.mkdir(parents=True)
            _checked(["npm", "install", "--prefix", place, "--no-audit", "--no-fund", *client.packages])
        manifest = json.loads((place / "node_modules" / client.packages[0] / "package.json").read_text("utf-8"))
        return commands, manifest["version"]
    if not commands.exists():
        _checked([os.environ.get("PYTHON", sys.executable), "-m", "venv", place])
        _checked([commands / "pip", "install", "--quiet", *client.packages])
    package = client.packages[0].partition("[")[0]
    words = f"from importlib.metadata import version; print(version({package!r}))"
    return commands, _checked([commands / "python", "-c", words]).strip()


def _checked(command: Sequence[str | Path]) -> str:
    return subprocess.run(command, env=_environment(), check=True, stdout=subprocess.PIPE, text=True).stdout


def _environment(*paths: Path) -> dict[str, str]:
    """Nothing of the user's own, and a Node.js that clients run on."""
    node = os.environ.get("NODE", "")
    kept = {
        name: value for name, value in os.environ.items() if name in ("LANG", "TMPDIR", "HOME", "npm_config_registry")
    }
    places = [*map(str, paths), *[node] * bool(node), str(Path(sys.executable).parent), "/usr/bin", "/bin"]
    return kept | {"PATH": os.pathsep.join(places)}


def tried(name: str, commands: Path, url: str, model: str, prompt: str, work: Path) -> Outcome:
    """Run a client in a folder of its own, with a home of its own."""
    client, home = CLIENTS[name], work / "home"
    home.mkdir()
    values = {"prompt": prompt, "url": url, "model": model, "config": str(_continue_config(home, url, model))}
    values["functions"] = str(_llm_settings(home, url, model))
    arguments = [each.format(**values) if each.startswith("{") else each for each in client.arguments]
    if client.command:
        command = [str(commands / client.command), *arguments]
    else:
        command = [
            sys.executable,
            "-m",
            "reader_edge",
            "launch",
            name,
            "--url",
            url,
            "--model",
            model,
            "--",
            *arguments,
        ]
    python_path = {} if client.command else {"PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT))}
    environment = _environment(commands) | python_path | _quiet(home) | {"HOME": str(home)}
    start = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=work / "project",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        output, code = done.stdout + done.stderr, done.returncode
    except subprocess.TimeoutExpired as error:
        output, code = f"{error.stdout!r} {error.stderr!r}", -1
    (work / "output.txt").write_text(output, "utf-8")
    last = " / ".join(line.strip() for line in output.strip().splitlines()[-4:])[-300:]
    return Outcome("" if code == 0 and done.stdout.strip() else f"exit code {code}: {last}", time.monotonic() - start)


def _quiet(home: Path) -> dict[str, str]:
    """Switches of clients against what goes elsewhere than to the model."""
    return {
        "CONTINUE_TELEMETRY_ENABLED": "0",
        "CRUSH_DISABLE_METRICS": "1",
        "CRUSH_DISABLE_PROVIDER_AUTO_UPDATE": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DO_NOT_TRACK": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LLM_USER_PATH": str(home / "llm"),
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }


def _continue_config(home: Path, url: str, model: str) -> Path:
    place = {"apiBase": f"{url}/v1", "apiKey": "none"}
    described: dict[str, Any] = {"name": model, "provider": "openai", "model": model, **place}
    described |= {"roles": ["chat"], "capabilities": ["tool_use"]}
    path = home / "config.yaml"
    path.write_text(json.dumps({"name": "here", "version": "1.0.0", "schema": "v1", "models": [described]}), "utf-8")
    return path


def _llm_settings(home: Path, url: str, model: str) -> Path:
    """A file of tools for `llm`, beside its settings."""
    (home / "llm").mkdir()
    entry = {
        "model_id": "here",
        "model_name": model,
        "api_base": f"{url}/v1",
        "can_stream": True,
        "supports_tools": True,
    }
    (home / "llm" / "extra-openai-models.yaml").write_text(json.dumps([entry]), "utf-8")
    path = home / "tools.py"
    path.write_text(LOOPS.read_text("utf-8").partition("# Tools end here.")[0], "utf-8")
    return path


@contextmanager
def scripted_server(record: Path) -> Iterator[None]:
    """`serve_script` in a process of its own."""
    command = [sys.executable, "-m", "tests.reader_edge.server.clients.serve_script", str(PORT), str(record)]
    with (record.parent / "server.log").open("w") as log, subprocess.Popen(command, stderr=log, cwd=ROOT) as server:
        try:
            for _ in range(600):
                time.sleep(0.1)
                try:
                    urllib.request.urlopen(f"{URL}/health", timeout=1).close()
                    break
                except OSError:
                    continue
            yield
        finally:
            server.terminate()


def _read(record: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("clients", nargs="*")
    parser.add_argument("--real", nargs=2, default=None)
    parser.add_argument("--record", type=Path, default=None)
    given = parser.parse_args()
    num_failed = 0
    print("| client | version | a served model | reads, edits, ends | requests | notes |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        record = given.record or Path(folder) / "record.jsonl"
        with scripted_server(record):
            for name in given.clients or CLIENTS:
                commands, version = installed(name, given.folder.resolve())
                num_before, notes = len(_read(record)), list[str]()
                work = Path(tempfile.mkdtemp(prefix=f"{name}-"))
                done = _edit(name, commands, work, notes)
                requests = _read(record)[num_before:]
                refused = [str(each["path"]) for each in requests if int(str(each["status"])) >= 400]
                notes += [f"refused: {', '.join(refused)}"] * bool(refused)
                connects = "not tried"
                if given.real:
                    connects = _ask(name, commands, given.real[0], given.real[1], notes)
                num_failed += not done
                title = AGENTS[name].title if name in AGENTS else name
                row = (title, version, connects, "yes" if done else "NO", len(requests), "; ".join(notes))
                print("| " + " | ".join(map(str, row)) + " |", flush=True)
    return 1 if num_failed else 0


def _edit(name: str, commands: Path, work: Path, notes: list[str]) -> bool:
    """Whether a client reads and edits a file as the script has it, and ends."""
    project = work / "project"
    project.mkdir()
    file = project / "greeting.txt"
    file.write_text(f"first line\n{OLD}\nlast line\n", "utf-8")
    outcome = tried(name, commands, URL, MODEL, TASK.format(path=file, old=OLD, new=NEW), work)
    is_edited = file.read_text("utf-8") == f"first line\n{NEW}\nlast line\n"
    notes += [outcome.note] * bool(outcome.note)
    notes += [] if is_edited else [f"the file is not edited ({work})"]
    return is_edited and not outcome.note


def _ask(name: str, commands: Path, url: str, model: str, notes: list[str]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "project").mkdir()
        (Path(folder) / "project" / "greeting.txt").write_text("hello\n", "utf-8")
        outcome = tried(name, commands, url.rstrip("/"), model, QUESTION, Path(folder))
    notes += [re.sub(r"\s+", " ", f"{model}: {outcome.note}")] * bool(outcome.note)
    return "no" if outcome.note else "yes"


if __name__ == "__main__":
    sys.exit(main())
