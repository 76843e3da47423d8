"""What `reader-edge serve` refuses before it loads a model."""

import json
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.models.model_source import model_name
from reader_edge.server.request_log import RequestNote
from reader_edge.server.settings import ServerSettings


def test_without_a_key_it_listens_nowhere_else(runner: CliRunner, tmp_path: Path) -> None:
    refused = runner.invoke(main, ["serve", "--host", "0.0.0.0"])  # noqa: S104
    assert refused.exit_code == 2
    assert "--api-key-file" in refused.stderr
    (tmp_path / "keys").write_text("short")
    refused = runner.invoke(main, ["serve", "--api-key-file", str(tmp_path / "keys")])
    assert refused.exit_code == 1
    assert "each of 16 to 1024 letters" in refused.stderr
    for number in ("nan", "inf"):
        assert runner.invoke(main, ["serve", "--max-seconds", number]).exit_code == 2


def test_a_port_that_is_taken_is_one_sentence(runner: CliRunner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = runner.invoke(main, ["serve", "--port", str(taken.getsockname()[1])])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("Error: Nothing can listen at 127.0.0.1:")
    assert len(refused.stderr.splitlines()) == 1


def test_what_is_not_installed_is_shown_with_the_remedy(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "uvicorn" else name)
    refused = runner.invoke(main, ["serve"])
    assert refused.exit_code == 1
    assert refused.stderr == "Error: This needs uvicorn, which is missing: pip install 'reader-edge[serve]'.\n"


def test_a_model_is_called_what_its_user_calls_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert model_name(None) == "demo"
    assert model_name("smollm2:135m") == "smollm2:135m"
    assert model_name(str(tmp_path)) == tmp_path.name
    (tmp_path / "package").mkdir()
    (tmp_path / "qwen").symlink_to("package")
    assert model_name(str(tmp_path / "qwen")) == "qwen"
    monkeypatch.setenv("READER_EDGE_MODEL", "qwen2.5:0.5b")
    assert model_name(None) == "qwen2.5:0.5b"


def test_no_more_choices_are_promised_than_can_be_taken_in(
    runner: CliRunner, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    promised: list[ServerSettings] = []
    monkeypatch.setattr("reader_edge.server.app.make_app", lambda engine, settings: promised.append(settings))
    monkeypatch.setattr("reader_edge.server.listening.listen", lambda app, socket, engine: None)
    options = ["--port", "0", "--max-batch", "2", "--max-waiting", "1", "--no-calibrate"]
    result = runner.invoke(main, ["serve", str(demo_folder), *options])
    assert (result.exit_code, result.stdout) == (0, "")
    first, *_, last = result.stderr.splitlines()
    assert first.endswith(f"Z INFO Loading '{demo_folder.name}'.")
    assert f"Z INFO Serving '{demo_folder.name}' at http://127.0.0.1:" in last
    assert promised[0].max_choices == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], ["INFO", "INFO", "INFO", "INFO", "WARNING", "ERROR"]),
        (["--log-level", "warning"], ["WARNING", "ERROR"]),
        (["--log-level", "error"], ["ERROR"]),
        (["--log-format", "json"], ["info", "info", "info", "info", "warning", "error"]),
        (["--log-format", "json", "--log-level", "warning"], ["warning", "error"]),
    ],
)
def test_the_log_is_shown_as_its_options_say(
    options: list[str],
    words: list[str],
    runner: CliRunner,
    demo_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Of a package that was never probed here, and requests that end in three ways."""
    monkeypatch.setattr("reader_edge_runtime.measuring.width_cache.cache_folder", lambda: tmp_path)

    def listen(*_: object) -> None:
        for status in (200, 404, 500):
            note = RequestNote("GET", "/v1/models", status=status)
            note.write()

    monkeypatch.setattr("reader_edge.server.listening.listen", listen)
    result = runner.invoke(main, ["serve", str(demo_folder), "--port", "0", "--no-calibrate", *options])
    assert (result.exit_code, result.stdout) == (0, "")
    lines = result.stderr.splitlines()
    if "json" in options:
        assert [json.loads(line)["level"] for line in lines] == words
    else:
        assert [line.split(" ")[1] for line in lines] == words


@pytest.mark.parametrize("is_sent", [False, True])
def test_prompts_are_logged_where_that_is_requested(
    is_sent: bool, runner: CliRunner, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ServerSettings] = []
    monkeypatch.setattr("reader_edge.server.app.make_app", lambda engine, settings: made.append(settings))
    monkeypatch.setattr("reader_edge.server.listening.listen", lambda app, socket, engine: None)
    options = ["--port", "0", "--no-calibrate", *["--log-prompts"] * is_sent]
    assert runner.invoke(main, ["serve", str(demo_folder), *options]).exit_code == 0
    assert made[0].logs_prompts == is_sent
