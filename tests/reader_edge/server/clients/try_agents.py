"""Coding agents and agent libraries, unmodified, each with a task: read a file with its tool, edit it, and end.

    python -m tests.reader_edge.server.clients.try_agents [--real URL MODEL] [--save] FOLDER [CLIENT ...]

Clients are installed from npm and PyPI into FOLDER, each by itself, once; NODE in the environment is the folder of a
Node.js that they can run on, PYTHON a Python for them. What they are answered is `edit_script`, so no large model is
needed. With --real they also ask a model that is served. --save writes their requests to tests/data/clients. Prints a
table; the exit code is 1 if anything failed.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from reader_edge.launch.agents import AGENTS
from tests.conftest import ROOT
from tests.reader_edge.server.clients import recorded
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

    command: "" where `launch` runs it. before: what is run first.
    """

    kind: str
    packages: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    command: str = ""
    before: tuple[str, ...] = ()


def _library(name: str, *packages: str) -> Client:
    return Client("pypi", packages, (str(LOOPS), name, "{url}", "{model}", "{prompt}"), "python")


CLIENTS = {
    "claude": Client(
        "npm", ("@anthropic-ai/claude-code",), ("-p", "{prompt}", "--allowedTools", "Read,Edit,Write,Bash")
    ),
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
    "pi": Client(
        "npm", ("@mariozechner/pi-coding-agent",), ("-p", "--offline", "--model", "{named}", "{prompt}"), "pi"
    ),
    "cline": Client(
        "npm",
        ("cline",),
        ("-P", "openai-compatible", "-m", "{model}", "{prompt}"),
        "cline",
        ("auth", "-p", "openai-compatible", "-k", "none", "-m", "{model}", "-b", "{openai_url}"),
    ),
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


def installed(name: str, folder: Path) -> tuple[Path, str]:
    """The folder of a client's commands, and its version; it is installed if it is not there yet."""
    client, place = CLIENTS[name], folder / name
    commands = place / _PLACES[client.kind]
    if client.kind == "npm":
        if not commands.exists():
            place.mkdir(parents=True, exist_ok=True)
            _checked(["npm", "install", "--prefix", place, "--no-audit", "--no-fund", *client.packages])
        manifest = json.loads((place / "node_modules" / client.packages[0] / "package.json").read_text("utf-8"))
        return commands, manifest["version"]
    if not commands.exists():
        _checked([os.environ.get("PYTHON", sys.executable), "-m", "venv", place])
        _checked([commands / "pip", "install", "--quiet", *client.packages])
    package = client.packages[0].partition("[")[0]
    words = f"from importlib.metadata import version; print(version({package!r}))"
    return commands, _checked([commands / "python", "-c", words]).strip()


def _checked(command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> str:
    environment = environment or _environment()
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def _environment(*paths: Path) -> dict[str, str]:
    """Nothing of the user's own, and a Node.js that clients run on."""
    node = os.environ.get("NODE", "")
    kept = {
        name: value for name, value in os.environ.items() if name in ("LANG", "TMPDIR", "HOME", "npm_config_registry")
    }
    places = [*map(str, paths), *[node] * bool(node), str(Path(sys.executable).parent), "/usr/bin", "/bin"]
    return kept | {"PATH": os.pathsep.join(places)}


def tried(name: str, commands: Path, url: str, model: str, prompt: str, work: Path) -> str:
    """Run a client in a folder of its own, with a home of its own. Returns what went wrong, else an empty text."""
    client, home = CLIENTS[name], work / "home"
    home.mkdir()
    values = {"prompt": prompt, "url": url, "openai_url": f"{url}/v1", "model": model, **_settings(home, url, model)}
    before, arguments = (
        [each.format(**values) if each.startswith("{") else each for each in parts]
        for parts in (client.before, client.arguments)
    )
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
    if before:
        _checked([commands / client.command, *before], environment)
    output, code = _run(command, work / "project", environment)
    (work / "output.txt").write_text(output, "utf-8")
    last = " / ".join(line.strip() for line in output.strip().splitlines()[-4:])[-300:]
    return "" if code == 0 and output.strip() else f"exit code {code}: {last}"


def _run(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> tuple[str, int]:
    """What a client writes, and its exit code; one that takes too long is ended with all that it started."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=folder, env=environment, text=True, start_new_session=True, **pipes) as process:
        try:
            return process.communicate(timeout=LIMIT_S)[0], process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"no end within {LIMIT_S} s", -1


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


def _settings(home: Path, url: str, model: str) -> dict[str, str]:
    """Write what clients without switches for it read, and name it as their arguments do."""
    place, named = {"apiBase": f"{url}/v1", "apiKey": "none"}, {"name": model, "model": model}
    served = {**named, **place, "provider": "openai", "roles": ["chat"], "capabilities": ["tool_use"]}
    provider = {"baseUrl": f"{url}/v1", "api": "openai-completions", "apiKey": "none", "models": [{"id": model}]}
    entry = {"model_id": "here", "model_name": model, "api_base": f"{url}/v1", "supports_tools": True}
    files = {  # JSON, which is YAML too
        "continue.yaml": {"name": "here", "version": "1.0.0", "schema": "v1", "models": [served]},
        ".pi/agent/models.json": {"providers": {"here": provider}},
        "llm/extra-openai-models.yaml": [entry | {"can_stream": True}],
    }
    for name, values in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(json.dumps(values), "utf-8")
    (home / "tools.py").write_text(LOOPS.read_text("utf-8").partition("# Tools end here.")[0], "utf-8")
    return {
        **{"config": str(home / "continue.yaml"), "functions": str(home / "tools.py")},
        "named": f"here/{model}",
    }


@contextmanager
def scripted_server(record: Path, module: str = "tests.reader_edge.server.clients.serve_script") -> Iterator[None]:
    """`serve_script`, or a module that takes what it does, in a process of its own."""
    command = [sys.executable, "-m", module, str(PORT), str(record)]
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


def _read(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in record.read_text("utf-8").splitlines()] if record.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("clients", nargs="*")
    parser.add_argument("--real", nargs=2, default=None)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    print("| client | version | a served model | reads, edits, ends | requests | notes |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "record.jsonl"
        with scripted_server(record):
            return max(_try(name, given, record) for name in given.clients or CLIENTS)


def _try(name: str, given: argparse.Namespace, record: Path) -> int:
    """Try a client and print its row; 1 if anything failed."""
    title = AGENTS[name].title if name in AGENTS else name
    try:
        commands, version = installed(name, given.folder.resolve())
    except subprocess.CalledProcessError as error:
        print(f"| {title} | | | | | cannot be installed: {error} |", flush=True)
        return 1
    num_before, notes = len(_read(record)), list[str]()
    work = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    done = _edit(name, commands, work, notes)
    requests = [each for each in _read(record)[num_before:] if each["path"] != "/health"]
    if given.save and done:
        recorded.save(name, version, requests, work)
    refused = [each["path"] for each in requests if each["status"] >= 400]
    notes += [f"refused: {', '.join(refused)}"] * bool(refused)
    connects = _ask(name, commands, given.real[0], given.real[1], notes) if given.real else "not tried"
    row = (title, version, connects, "yes" if done else "no", len(requests), "; ".join(notes))
    print("| " + " | ".join(map(str, row)) + " |", flush=True)
    return int(not done)


def _edit(name: str, commands: Path, work: Path, notes: list[str]) -> bool:
    """Whether a client reads and edits a file as the script has it, and ends."""
    project = work / "project"
    project.mkdir()
    file = project / "greeting.txt"
    file.write_text(f"first line\n{OLD}\nlast line\n", "utf-8")
    note = tried(name, commands, URL, MODEL, TASK.format(path=file, old=OLD, new=NEW), work)
    is_edited = file.read_text("utf-8") == f"first line\n{NEW}\nlast line\n"
    notes += [note] * bool(note)
    notes += [] if is_edited else [f"the file is not edited ({work})"]
    return is_edited and not note


def _ask(name: str, commands: Path, url: str, model: str, notes: list[str]) -> str:
    """Whether a model answers a client, whatever that makes of it."""
    num_before = _num_answered(url)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "project").mkdir()
        (Path(folder) / "project" / "greeting.txt").write_text("hello\n", "utf-8")
        note = tried(name, commands, url.rstrip("/"), model, QUESTION, Path(folder))
    notes += [re.sub(r"\s+", " ", f"{model}: {note}")] * bool(note)
    return "yes" if _num_answered(url) > num_before else "no"


def _num_answered(url: str) -> float:
    """Tokens that a server has answered with."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
        found = re.search(r"^reader_edge_tokens_total (\S+)", reply.read().decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


if __name__ == "__main__":
    sys.exit(main())
