"""`serve`: its options, and the sampling of its model's maker."""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.models.model_source import model_name
from reader_edge.server.completion import SEED_HEADER
from reader_edge.server.request_log import RequestNote
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig, SamplingConfig
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.conftest import Served
from tests.seeing_engine import seeing_engine


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


def test_a_model_that_is_not_there_is_one_sentence(runner: CliRunner) -> None:
    refused = runner.invoke(main, ["serve", "./nothing", "--port", "0"])
    assert refused.exit_code == 2
    assert refused.stderr.startswith("Error: ")
    assert "'./nothing'" in refused.stderr


def test_choices_are_bounded_by_slots(runner: CliRunner, demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    promised: list[ServerSettings] = []
    monkeypatch.setattr("reader_edge.server.app.make_app", lambda engine, settings: promised.append(settings))
    monkeypatch.setattr("reader_edge.server.listening.listen", lambda app, socket, engine: None)
    options = ["--port", "0", "--max-batch", "2", "--max-waiting", "1", "--no-calibrate"]
    result = runner.invoke(main, ["serve", str(demo_folder), *options])
    assert (result.exit_code, result.stdout) == (0, "")
    first, *_, last = result.stderr.splitlines()
    assert first.endswith(f"Z INFO Loading '{demo_folder.name}'.")
    assert f"Z INFO Serving '{demo_folder.name}' at http://127.0.0.1:" in last
    assert all(word in last for word in ("page", "/v1", "Anthropic's", "Ollama's"))
    assert promised[0].max_choices == 3


def test_without_pillow_the_start_says_that_images_need_it(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = seeing_engine(tmp_path)
    monkeypatch.setattr("reader_edge.models.model_source.load_engine", lambda *_: engine)
    monkeypatch.setattr("reader_edge.models.model_source.finder", lambda *_: Path)
    monkeypatch.setattr("reader_edge.server.listening.listen", lambda *_: None)
    for pillow, is_warned in ((None, True), ("PIL", False)):
        monkeypatch.setattr("reader_edge.commands.serve.find_spec", lambda name, pillow=pillow: pillow)
        result = runner.invoke(main, ["serve", str(tmp_path), "--port", "0"])
        assert result.exit_code == 0
        assert ("pip install 'reader-edge[images]'" in result.stderr) == is_warned


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
def test_prompts_may_be_logged(
    is_sent: bool, runner: CliRunner, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[ServerSettings] = []
    monkeypatch.setattr("reader_edge.server.app.make_app", lambda engine, settings: made.append(settings))
    monkeypatch.setattr("reader_edge.server.listening.listen", lambda app, socket, engine: None)
    options = ["--port", "0", "--no-calibrate", *["--log-prompts"] * is_sent]
    assert runner.invoke(main, ["serve", str(demo_folder), *options]).exit_code == 0
    assert made[0].logs_prompts == is_sent


OWN: dict[str, Any] = {"temperature": 0.9, "top_k": 40, "top_p": 0.95}
MESSAGES = [{"role": "user", "content": "What is tar?"}]
SENT: dict[str, dict[str, Any]] = {
    "/v1/completions": {"model": "demo", "prompt": "# tar", "max_tokens": 24},
    "/v1/chat/completions": {"model": "demo", "messages": MESSAGES, "max_tokens": 24},
    "/v1/responses": {"model": "demo", "input": MESSAGES, "max_output_tokens": 24},
    "/api/chat": {"model": "demo", "messages": MESSAGES, "stream": False, "options": {"num_predict": 24}},
    "/api/generate": {"model": "demo", "prompt": "# tar", "raw": True, "stream": False, "options": {"num_predict": 24}},
}


@pytest.fixture(scope="module")
def drawing(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("drawing") / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    package.change_manifest(sampling=OWN)
    return Engine.load(package.folder, EngineConfig(is_calibrated=False))


@pytest.fixture
def served_drawing(drawing: Engine) -> Iterator[Served]:
    engine = AsyncEngine(drawing)
    yield Served(engine, ServerSettings("demo", max_tokens=500))
    asyncio.run(engine.close(cancels=True))


def _text(path: str, answer: Any) -> str:
    text: str
    if path == "/v1/responses":
        text = answer["output"][0]["content"][0]["text"]
    elif path.startswith("/api"):
        text = answer["response"] if path == "/api/generate" else answer["message"]["content"]
    else:
        choice = answer["choices"][0]
        text = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
    return text


@pytest.mark.parametrize("path", SENT)
def test_on_every_face(served_drawing: Served, drawing: Engine, path: str) -> None:
    response = served_drawing.post(path, SENT[path])
    sampling = SamplingConfig(**OWN, seed=int(response.headers[SEED_HEADER]))
    prompt: Any = "# tar" if "prompt" in SENT[path] else MESSAGES
    expected = drawing.generate(prompt, GenerationConfig(24, sampling)).text
    assert _text(path, response.json()) == expected
    seed: dict[str, Any] = {"seed": sampling.seed}
    seed = {"options": SENT[path]["options"] | seed} if path.startswith("/api") else seed
    assert _text(path, served_drawing.post(path, SENT[path] | seed).json()) == expected


def test_what_a_client_says_stands_beside_it(served_drawing: Served, drawing: Engine) -> None:
    body = SENT["/v1/completions"] | {"temperature": 0.4, "seed": 5}
    sampling = SamplingConfig(temperature=0.4, top_k=40, top_p=0.95, seed=5)
    expected = drawing.generate("# tar", GenerationConfig(24, sampling)).text
    assert _text("/v1/completions", served_drawing.post("/v1/completions", body).json()) == expected
    greedy = served_drawing.post("/v1/completions", SENT["/v1/completions"] | {"temperature": 0})
    assert SEED_HEADER not in greedy.headers
    output = served_drawing.post("/v1/responses", SENT["/v1/responses"]).json()
    assert (output["temperature"], output["top_p"]) == (0.9, 0.95)


def test_clients_see_it_and_the_page_leaves_it(served_drawing: Served, served: Served) -> None:
    """The page sends a temperature of its own only where `/api/show` has none (test_page_in_browser.py)."""
    shown = served_drawing.post("/api/show", {"model": "demo"}).json()["parameters"]
    assert dict(line.split() for line in shown.splitlines()) == {"temperature": "0.9", "top_k": "40", "top_p": "0.95"}
    assert "temperature" not in served.post("/api/show", {"model": "demo"}).json()["parameters"]
    assert '<input id="temperature" type="number" min="0" max="2" step="0.1">' in served.get("/").text
