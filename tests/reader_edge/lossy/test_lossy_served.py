"""A lossy engine that a server was told to take: usage tells what each answer gave up."""

from pathlib import Path

import pytest

from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, EngineConfig, ServingConfig
from reader_edge_runtime.lossy.lossy_engine import LossyEngine
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.conftest import Served


@pytest.fixture(scope="module")
def served(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Served:
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("chat") / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    engine = LossyEngine.load(package.folder, EngineConfig(is_calibrated=False))
    return Served(AsyncEngine(engine, ServingConfig(takes_lossy=True)), ServerSettings("demo"))


def test_usage_of_completions_has_the_meter_of_each_choice(served: Served) -> None:
    given_up = served.complete(max_tokens=6, prompt=["# tar", "# zip"])["usage"]["given_up"]
    assert [each["num_tokens"] for each in given_up] == [6, 6]
    assert {each["rule"] for each in given_up} == {"relaxed"}


def test_usage_of_responses_has_it_too(served: Served) -> None:
    body = {"model": "demo", "input": "# tar", "max_output_tokens": 16, "temperature": 0}
    assert served.post("/v1/responses", body).json()["usage"]["given_up"][0]["num_tokens"] == 16


def test_what_is_sampled_is_refused_as_the_engine_refuses_it(served: Served) -> None:
    refused = served.post("/v1/completions", {"model": "demo", "prompt": "# tar", "temperature": 1})
    assert refused.status_code == 400
    assert "Lossy answers are greedy" in refused.json()["error"]["message"]
