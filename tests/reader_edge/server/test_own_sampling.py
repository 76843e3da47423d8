"""A client that says nothing of sampling gets what the model's maker recommends, by a seed that it is shown."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reader_edge.server.completion import SEED_HEADER
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig, SamplingConfig
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.conftest import Served

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
    shown = served_drawing.post("/api/show", {"model": "demo"}).json()["parameters"]
    assert dict(line.split() for line in shown.splitlines()) == {"temperature": "0.9", "top_k": "40", "top_p": "0.95"}
    assert 'id="temperature" type="number" min="0" max="2" step="0.1" value=""' in served_drawing.get("/").text
    assert 'id="temperature" type="number" min="0" max="2" step="0.1" value="0"' in served.get("/").text
