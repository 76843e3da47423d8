"""`launch`: which server a coding agent gets, what it is run with, and how both end."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from reader_edge.cli import main
from reader_edge.commands import launch as launch_command
from reader_edge.launch import local_server
from reader_edge.launch.agents import AGENTS, AgentModel
from tests.reader_edge.package_copy import PackageCopy

KEY = "k" * 16
MODEL = AgentModel("http://127.0.0.1:8000", "qwen3:4b", 40_960, KEY)
# Writes down how it was run, and asks the server that it was given which models there are.
CLIENT = f"""#!{sys.executable}
import json, os, sys, urllib.request
url, key = os.environ.get("ANTHROPIC_BASE_URL"), os.environ.get("ANTHROPIC_AUTH_TOKEN")
models = []
for headers in ({{}}, {{"X-Api-Key": key}}) if os.environ.get("ASKS") else ():
    try:
        models.append(json.load(urllib.request.urlopen(urllib.request.Request(url + "/v1/models", headers=headers))))
    except OSError as error:
        models.append(str(error))
usage = None
if prompt := os.environ.get("PROMPT"):
    messages = [{{"role": "user", "content": prompt}}]
    body = {{"model": models[-1]["data"][0]["id"], "max_tokens": 4, "messages": messages}}
    headers = {{"X-Api-Key": key, "Content-Type": "application/json"}}
    sent = urllib.request.Request(url + "/v1/messages", json.dumps(body).encode(), headers)
    usage = json.load(urllib.request.urlopen(sent))["usage"]
seen = {{"arguments": sys.argv[1:], "environment": dict(os.environ), "models": models, "usage": usage}}
json.dump(seen, open(os.environ["SEEN"], "w"))
sys.exit(7)
"""


class Models(BaseHTTPRequestHandler):
    """What `/v1/models` answers where two models are served, and a key is wanted."""

    models: Sequence[dict[str, Any]] = (
        {"id": "first", "max_model_len": 8192},
        {"id": "second", "max_model_len": 65536},
    )

    props: tuple[int, object] = (404, {})  # of a server that has no such path

    def do_GET(self) -> None:
        name = self.path.removeprefix("/v1/models").removeprefix("/")
        found = next((each for each in self.models if each["id"] == name), None)
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self._answer(401, {"error": {"message": "no key"}})
        elif self.path.startswith("/props"):
            self._answer(*self.props)
        elif name and found is None:
            self._answer(404, {"error": {"message": "no such model"}})
        else:
            self._answer(200, found or {"data": self.models})

    def _answer(self, status: int, values: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(values).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Models) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}"
        listening.shutdown()


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `claude` and a `codex` that exit with 7; returns the file in which they write what they saw."""
    folder, seen = tmp_path / "bin", tmp_path / "seen.json"
    folder.mkdir()
    for name in ("claude", "codex"):
        (folder / name).write_text(CLIENT)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("SEEN", str(seen))
    return seen


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(KEY)
    path.chmod(0o600)
    return path


def _launch(runner: CliRunner, *arguments: object) -> Result:
    return runner.invoke(main, ["launch", *map(str, arguments)])


def test_a_client_gets_the_server_that_runs_and_its_exit_code_is_passed_on(
    runner: CliRunner, server: str, client: Path, key_file: Path
) -> None:
    result = _launch(runner, "claude", "--url", f"{server}/v1", "--api-key-file", key_file, "--", "-p", "hi", "--model")
    assert result.exit_code == 7
    seen = json.loads(client.read_text())
    assert seen["arguments"] == ["-p", "hi", "--model"]
    wanted = {"ANTHROPIC_BASE_URL": server, "ANTHROPIC_AUTH_TOKEN": KEY, "ANTHROPIC_MODEL": "first"}
    assert wanted.items() <= seen["environment"].items()
    assert "'first' has a context of 8192 tokens" in result.stderr


def test_a_model_is_chosen_by_name(runner: CliRunner, server: str, client: Path, key_file: Path) -> None:
    given = ("--url", server, "--api-key-file", key_file, "--model")
    result = _launch(runner, "codex", *given, "second", "--", "exec", "hi")
    place = f"Codex CLI runs on 'second' at {server}: 65536 tokens of context, 16384 of an answer at most.\n"
    assert (result.exit_code, result.stderr) == (7, place)
    arguments = json.loads(client.read_text())["arguments"]
    assert arguments[-2:] == ["exec", "hi"]
    assert {'model="second"', "model_context_window=65536"} <= set(arguments)
    assert any("stream_idle_timeout_ms = 3600000" in each for each in arguments)
    refused = _launch(runner, "codex", *given, "second", "--workspace", client.parent)
    assert (refused.exit_code, f"A server runs at {server} already" in refused.stderr) == (2, True)
    refused = _launch(runner, "codex", *given, "third")
    assert refused.exit_code == 2
    assert f"The server at {server} has no model 'third'" in refused.stderr


def test_a_limit_of_the_server_is_the_clients_own_and_is_warned_of(
    runner: CliRunner, server: str, client: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    props = {"chat_template": "{{ messages }}", "default_generation_settings": {"params": {"n_predict": 24}}}
    monkeypatch.setattr(Models, "props", (200, props))
    result = _launch(runner, "claude", "--url", server, "--api-key-file", key_file, "--model", "second")
    assert result.exit_code == 7
    assert json.loads(client.read_text())["environment"]["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "24"
    assert "24 of an answer at most" in result.stderr
    assert "start it with --max-tokens 16384" in result.stderr


@pytest.mark.parametrize("answer", [(200, {"default_generation_settings": {"params": {"n_predict": -1}}}), (200, [])])
def test_a_server_that_names_no_limit_has_none(
    answer: tuple[int, object],
    runner: CliRunner,
    server: str,
    client: Path,
    key_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Models, "props", answer)
    result = _launch(runner, "claude", "--url", server, "--api-key-file", key_file, "--model", "second")
    assert "16384 of an answer at most" in result.stderr


@pytest.mark.long
def test_a_model_without_a_chat_template_is_refused_before_the_client_starts(
    runner: CliRunner, client: Path, package: PackageCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_command, "_URL", "http://127.0.0.1:1")
    refused = _launch(runner, "claude", "--model", package.folder)
    assert refused.exit_code == 2
    assert "'package' has no chat template, which agents need" in refused.stderr.splitlines()[-1]
    assert "reader-edge export MODEL PACKAGE --chat-template FILE" in refused.stderr
    assert not client.exists()


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("claude", "--url", "{server}"), 2, "wants a key: name the file that has it with --api-key-file"),
        (("claude", "--url", "http://127.0.0.1:1"), 2, "No server answers at http://127.0.0.1:1"),
        (("claude", "--url", "http://[::1"), 2, "No server answers at http://[::1"),
        (("claude", "--url", "http://127.0.0.1:80 8"), 2, "No server answers at http://127.0.0.1:80 8"),
        (("claude",), 2, "name a model to serve, as --model"),
        (("opencode",), 1, "OpenCode is not installed: `npm install -g opencode-ai` installs it."),
        (("emacs",), 2, "'emacs' is not one of"),
    ],
)
def test_what_is_missing_is_one_sentence(
    arguments: tuple[str, ...],
    code: int,
    sentence: str,
    runner: CliRunner,
    server: str,
    client: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch_command, "_URL", "http://127.0.0.1:1")  # where nothing listens
    refused = _launch(runner, *[each.format(server=server) for each in arguments])
    assert refused.exit_code == code
    assert sentence in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert not client.exists()


def test_without_a_server_one_is_started_and_ends_with_the_client(
    runner: CliRunner, client: Path, chat_package: PackageCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_command, "_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ASKS", "1")
    result = _launch(runner, "claude", "--model", chat_package.folder, "--workspace", client.parent)
    assert result.exit_code == 7, result.stderr
    seen = json.loads(client.read_text())
    without_key, with_key = seen["models"]
    assert without_key == "HTTP Error 401: Unauthorized"  # of others on this machine
    assert [each["id"] for each in with_key["data"]] == ["package"]
    port = int(seen["environment"]["ANTHROPIC_BASE_URL"].rpartition(":")[2])
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.long
def test_a_session_need_not_read_what_one_before_has_read(
    runner: CliRunner, client: Path, chat_package: PackageCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_command, "_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("ASKS", "1")
    monkeypatch.setenv("PROMPT", "An archive is a file that holds other files. " * 20)
    cached = []
    for _ in range(2):
        given = ("--model", chat_package.folder, "--prefix-cache", tmp_path / "kept")
        assert _launch(runner, "claude", *given).exit_code == 7
        cached.append(json.loads(client.read_text())["usage"]["cache_read_input_tokens"])
    assert cached[0] == 0
    assert cached[1] >= 64


def test_a_server_that_cannot_start_is_no_wait(
    runner: CliRunner, client: Path, package: PackageCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch_command, "_URL", "http://127.0.0.1:1")
    monkeypatch.setattr(local_server, "MAX_TOKENS", "many")
    refused = _launch(runner, "claude", "--model", package.folder)
    assert refused.exit_code == 1
    assert "ended before it answered" in refused.stderr
    assert not client.exists()


@pytest.mark.parametrize("name", AGENTS)
def test_each_client_is_pointed_at_the_model_and_leaves_the_users_settings_alone(name: str, tmp_path: Path) -> None:
    setup = AGENTS[name].setup(MODEL, tmp_path)
    files = [path.read_text("utf-8") for path in tmp_path.iterdir()]
    given = " ".join([*setup.arguments, *setup.environment.values(), *files])
    assert MODEL.url in given
    assert MODEL.name in given
    assert KEY in given
    assert KEY not in " ".join(setup.arguments)  # which every user of the machine may list
    assert "HOME" not in setup.environment


@pytest.mark.parametrize(("given", "wanted"), [("", "127.0.0.1"), ("a.com", "a.com,127.0.0.1"), ("*", "*")])
def test_no_setting_of_the_users_has_a_client_ask_another_than_the_server(
    given: str,
    wanted: str,
    runner: CliRunner,
    server: str,
    client: Path,
    key_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = {"CLAUDE_CODE_USE_BEDROCK": "1", "ANTHROPIC_API_KEY": "sk-other", "HTTP_PROXY": "http://127.0.0.1:1"}
    for name, value in {**others, "NO_PROXY": given, "no_proxy": ""}.items():
        monkeypatch.setenv(name, value)
    assert _launch(runner, "claude", "--url", server, "--api-key-file", key_file).exit_code == 7
    seen = json.loads(client.read_text())["environment"]
    assert {seen["CLAUDE_CODE_USE_BEDROCK"], seen["ANTHROPIC_API_KEY"]} == {""}
    assert (seen["NO_PROXY"], seen["no_proxy"]) == (wanted, wanted)


def _is_there(number: int) -> bool:
    """Whether a process runs, and is not only waited for."""
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="no other system ends a process with its parent")
@pytest.mark.parametrize("moment", ["starting", "running"])
def test_nothing_outlives_a_launch_that_is_killed(tmp_path: Path, chat_package: PackageCopy, moment: str) -> None:
    started = tmp_path / "started"
    (tmp_path / "claude").write_text(f"#!/bin/sh\necho $$ > {started}\nexec sleep 60\n")
    (tmp_path / "claude").chmod(stat.S_IRWXU)
    program = "import sys; from reader_edge.commands import launch; launch._URL = 'http://127.0.0.1:1'; launch.launch()"
    command = [sys.executable, "-c", program, "claude", "--model", str(chat_package.folder)]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (children.read_text() if moment == "starting" else started.exists() and started.read_text().strip()):
            assert process.poll() is None
            time.sleep(0.01)
        numbers = list(map(int, children.read_text().split()))
        process.kill()
    assert len(numbers) == (1 if moment == "starting" else 2)
    deadline = time.monotonic() + 30
    while any(map(_is_there, numbers)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("ignored", ["", "trap '' TERM"], ids=["obeys", "ignores"])
def test_ending_launch_ends_the_client(tmp_path: Path, server: str, key_file: Path, ignored: str) -> None:
    """As where its terminal is closed; a client that takes no notice is killed at the second signal."""
    client, started = tmp_path / "claude", tmp_path / "started"
    client.write_text(f"#!/bin/sh\n{ignored}\necho $$ > {started}\nexec sleep 60\n")
    client.chmod(stat.S_IRWXU)
    options = ("--url", server, "--api-key-file", str(key_file))
    command = [sys.executable, "-m", "reader_edge", "launch", "claude", *options]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with subprocess.Popen(command, env=environment) as process:
        while not (started.exists() and started.read_text().strip()):
            assert process.poll() is None
        process.terminate()
        if ignored:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.terminate()
        assert process.wait(20) == 128 + 15
    with pytest.raises(ProcessLookupError):
        os.kill(int(started.read_text()), 0)


def _started(command: str, monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Processes of `launch` that begin as this, each of which is hardly there when `launch` is ended."""
    started: list[subprocess.Popen[bytes]] = []

    class Ended(subprocess.Popen[bytes]):
        def __init__(self, words: Sequence[str], **options: Any) -> None:
            super().__init__(words, **options)
            if command in words:
                started.append(self)
                signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Ended)
    return started


@pytest.mark.parametrize("ended", ["claude", "serve"])
def test_what_is_hardly_started_ends_as_well(
    ended: str,
    runner: CliRunner,
    server: str,
    key_file: Path,
    client: Path,
    package: PackageCopy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`launch` is ended within Popen, before it has what ends the process."""
    monkeypatch.setattr(launch_command, "_URL", "http://127.0.0.1:1")
    command = str(client.parent / "bin" / ended) if ended == "claude" else ended
    started = _started(command, monkeypatch)
    given = ("--url", server, "--api-key-file", key_file) if ended == "claude" else ("--model", package.folder)
    assert _launch(runner, "claude", *given).exit_code == 128 + signal.SIGTERM
    [process] = started
    is_over = process.returncode is not None
    process.kill()
    process.wait()
    assert is_over
