"""`reader-edge run --server`: the server's answer on standard output, and no model here."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reader_edge.chat.given_sampling import GivenSampling
from reader_edge.chat.prompt_input import PromptInput
from reader_edge.cli import main
from reader_edge.remote import remote_engine
from reader_edge.remote.connection import FrameConnection
from reader_edge.remote.remote_server import RemoteServer
from reader_edge.server.app import make_app
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Conversation, DraftSources, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.package.manifest import TOKENIZER_NAME
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.draft.app_connection import serving

URL = "http://localhost:8000"
CONFIG = GenerationConfig(max_tokens=24)


@pytest.fixture(scope="module", params=["plain", "chat"])
def engine(request: pytest.FixtureRequest, demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("remote") / "package")
    if request.param == "chat":
        package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    return Engine.load(package.folder, EngineConfig(is_calibrated=False))


@pytest.fixture
def sent(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """A server behind URL, and the keys that were shown to it."""
    keys: list[str | None] = []
    with serving(make_app(AsyncEngine(engine), ServerSettings("demo"))) as server:

        def connect(url: str, key: str | None) -> FrameConnection:
            keys.append(key)
            return server.connect(url, key)

        monkeypatch.setattr(remote_engine, "connected", connect)
        yield keys


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["run", "--server", URL, "-n", "24", *arguments])


def test_the_answer_is_the_one_of_the_server(sent: list[str | None], engine: Engine, tmp_path: Path) -> None:
    chat = Conversation([{"role": "system", "content": "b"}, {"role": "user", "content": "# tar"}])
    is_chat = engine.tokenizer.has_chat_template
    result = run("-p", "# tar", *(("-s", "b") if is_chat else ()), "--drafts", "verify")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == engine.generate(chat if is_chat else "# tar", CONFIG).text
    raw = engine.generate("# tar", CONFIG)
    shown = run("-p", "# tar", "--raw", "--stats")
    assert shown.stdout == raw.text
    for name in ("tokens/s on the server", "the way included", "accepted by source", "acceptance length"):
        assert name in shown.stderr
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_text("secret-key\n")
    fields = json.loads(run("-p", "# tar", "--raw", "--json", "--no-draft", "--api-key-file", str(key)).stdout)
    assert (fields["text"], fields["token_ids"]) == (raw.text, list(raw.token_ids))
    assert fields["stats"]["num_drafted_tokens"] == 0
    assert sent == [None, None, "secret-key"]


def test_a_tokenizer_is_taken_from_a_file_or_its_folder(
    sent: list[str | None], engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FrameConnection, "fetch", lambda link, num_bytes: pytest.fail("fetched all the same"))
    folder = engine.package.folder
    wanted = engine.generate("# tar", CONFIG).text
    for place in (folder, folder / TOKENIZER_NAME):
        assert run("-p", "# tar", "--raw", "--tokenizer", str(place)).stdout.rstrip() == wanted.rstrip()
    empty = run("-p", "# tar", "--tokenizer", str(tmp_path))
    assert empty.exit_code == 1
    assert f"No tokenizer at '{tmp_path / TOKENIZER_NAME}'" in empty.stderr


def test_what_has_no_place_beside_a_server_is_shown(sent: list[str | None], engine: Engine, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff")
    known = tmp_path / "known"
    known.write_text("secret-key")
    known.chmod(0o644)
    wrong = [
        (["-p", "a", "--api-key-file", str(empty)], 1, "is empty"),
        (["-p", "a", "--api-key-file", str(binary)], 1, "No key can be read"),
        (["-p", "a", "--api-key-file", str(known)], 1, "may be read by others: `chmod 600` it"),
        (["-p", ""], 2, "prompt is empty"),
        (["-p", "a", "--raw", "-s", "b"], 2, "leave them out"),
        (["some-model", "-p", "a"], 2, "leave some-model out"),
        (["-p", "a", "--threads", "2"], 2, "runs elsewhere"),
        (["-p", "a", "--session", str(tmp_path / "s")], 2, "leave --server out"),
        (["-p", "a", "--draft-model", str(empty)], 2, "history and datastores"),
    ]
    for arguments, code, words in wrong:
        result = run(*arguments)
        assert result.exit_code == code, arguments
        assert words in result.stderr
    result = CliRunner().invoke(main, ["run", "-p", "a", "--tokenizer", str(empty)])
    assert "are for a model behind --server" in result.stderr


def test_on_a_terminal_the_answer_ends_its_line(
    sent: list[str | None], engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    given = PromptInput(None, raw=True), "# tar", CONFIG, GivenSampling(is_greedy=True), DraftSources()
    RemoteServer(URL).answer(*given, shows_stats=False, as_json=False)
    assert capsys.readouterr().out == engine.generate("# tar", CONFIG).text.rstrip("\n") + "\n"


def test_without_a_prompt_there_is_no_chat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge.chat.prompt_input.PromptInput.read", lambda self: None)
    assert "needs a prompt" in run().stderr


def test_no_engine_of_execution_is_imported() -> None:
    code = "import reader_edge.cli, reader_edge.terminal.model_text, sys; from reader_edge import RemoteEngine\n"
    code += "print([name for name in sys.modules if name.partition('.')[0] in ('onnxruntime', 'starlette', 'torch')])"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
