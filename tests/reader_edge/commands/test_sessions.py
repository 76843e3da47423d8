"""`run` with a session, and `run` before a server."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reader_edge.chat.prompt_input import PromptInput
from reader_edge.chat.sampling_options import SamplingOptions
from reader_edge.cli import main
from reader_edge.remote import remote_engine
from reader_edge.remote.connection import FrameConnection
from reader_edge.remote.remote_server import RemoteServer
from reader_edge.server.app import make_app
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Conversation, DraftSources, Engine, EngineConfig, GenerationConfig, Message
from reader_edge_runtime.package.manifest import TOKENIZER_NAME
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.draft.conftest import serving


def ask(runner: CliRunner, package: PackageCopy, kept: Path, *arguments: str) -> Result:
    command = ["run", str(package.folder), "-n", "16", "--session", str(kept), "--no-calibrate"]
    return runner.invoke(main, [*command, *arguments])


def test_an_unwritable_session_is_refused_first(runner: CliRunner, chat_package: PackageCopy, tmp_path: Path) -> None:
    shown = ask(runner, chat_package, tmp_path / "no" / "folder")
    assert (shown.exit_code, shown.stdout) == (2, "")
    assert "There is no folder" in shown.stderr


def test_each_run_goes_on_with_the_conversation(runner: CliRunner, chat_package: PackageCopy, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = ask(runner, chat_package, kept, "-s", "Be brief.", "-p", "one")
    second = ask(runner, chat_package, kept, "-p", "two", "--stats")
    assert (first.exit_code, second.exit_code) == (0, 0), second.stderr
    engine = Engine.load(chat_package.folder, EngineConfig(is_calibrated=False))
    messages: list[Message] = [{"role": "system", "content": "Be brief."}]
    for question, result in (("one", first), ("two", second)):
        messages.append({"role": "user", "content": question})
        text = engine.generate(messages, GenerationConfig(max_tokens=16)).text
        assert result.stdout == text
        messages.append({"role": "assistant", "content": text})
    assert "(0 reused)" not in second.stderr
    assert engine.load_session(kept) == messages
    other = ask(runner, chat_package, kept, "-s", "Be long.", "-p", "three")
    assert other.exit_code == 2
    assert "began with another system message" in other.stderr


def test_without_a_template_rows_are_found_again(runner: CliRunner, package: PackageCopy, tmp_path: Path) -> None:
    prompt = "# tar\n\nArchiving utility."
    first, second = (ask(runner, package, tmp_path / "kept", "-p", prompt, "--stats") for _ in range(2))
    assert first.stdout == second.stdout
    assert "(0 reused)" in first.stderr
    assert "(0 reused)" not in second.stderr


def test_a_file_that_is_no_session_is_refused_before_a_model_is_loaded(
    runner: CliRunner, package: PackageCopy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letter = tmp_path / "letter"
    letter.write_text("dear")
    monkeypatch.setattr("reader_edge.models.model_source.load_engine", pytest.fail)
    result = ask(runner, package, letter, "-p", "one")
    assert result.exit_code == 1
    assert result.stderr == f"Error: '{letter}' is there, and no session: name another file.\n"
    assert letter.read_text() == "dear"


def test_a_damaged_session_stays_as_it_is(runner: CliRunner, package: PackageCopy, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    ask(runner, package, kept, "-p", "# tar")
    kept.write_bytes(kept.read_bytes()[:-9])
    data = kept.read_bytes()
    result = ask(runner, package, kept, "-p", "# tar")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == f"Error: '{kept}' is damaged: erase it and begin a new session.\n"
    assert kept.read_bytes() == data


@pytest.mark.parametrize("other", [["--history", "past"], ["--compare"]])
def test_excluded_options_are_named(runner: CliRunner, package: PackageCopy, tmp_path: Path, other: list[str]) -> None:
    result = ask(runner, package, tmp_path / "kept", "-p", "# tar", *other)
    assert result.exit_code == 2
    assert "out." in result.stderr


@pytest.mark.long
@pytest.mark.skipif(os.name == "nt", reason="Windows forks no process")
def test_a_kill_during_a_save_leaves_a_whole_session() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.durability.kill_saves", "--kills", "12"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("12 kills")


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
        (["-p", "a", "--draft-model", str(empty)], 2, "history, workspace and datastores"),
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
    given = PromptInput(None, raw=True), "# tar", CONFIG, SamplingOptions(is_greedy=True), DraftSources()
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
