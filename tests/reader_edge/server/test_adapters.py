"""Adapters of a served model: names by which clients mean them, and those that come and go while it runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, GenerationConfig
from reader_edge_runtime.adapters.adapter_set import AdapterSet, LoadedAdapter
from reader_edge_runtime.errors import AdapterError, ConfigError
from reader_edge_runtime.untrusted.user_input import given_path
from tests.reader_edge.server.conftest import Served


@pytest.fixture
def requested(chat_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The adapters of requests, in their order, of a model whose package takes none: they are names alone."""
    names: list[str | None] = []
    answer = chat_engine.answer

    def note(prompt: Any, config: GenerationConfig | None = None, device: Any = None) -> Any:
        names.append(None if config is None else config.adapter)
        return answer(prompt, config, device)

    def load(name: str, path: Path) -> None:
        if not given_path(path, "path").exists():
            raise AdapterError(f"No adapter at '{path}': give a folder.")
        chat_engine.adapters._adapters[name] = LoadedAdapter(name, path, -1, name)

    monkeypatch.setattr(chat_engine, "answer", note)
    monkeypatch.setattr(chat_engine, "load_adapter", load)
    monkeypatch.setattr(chat_engine, "adapters", AdapterSet())
    load("pirate", Path())
    return names


@pytest.fixture
def served(requested: list[str | None], async_engine: AsyncEngine, tmp_path: Path) -> Served:
    folder = tmp_path / "adapters"
    (folder / "sub" / "oracle").mkdir(parents=True)
    paths = {"pirate": folder / "sub"}
    return Served(async_engine, ServerSettings("demo", max_tokens=16, adapter_paths=paths, adapters_folder=folder))


QUESTION = [{"role": "user", "content": "tar"}]
BODIES: Mapping[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "# tar", "max_tokens": 2},
    "/v1/chat/completions": {"messages": QUESTION, "max_tokens": 2},
    "/v1/responses": {"input": "tar", "max_output_tokens": 2},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 2},
    "/api/chat": {"messages": QUESTION, "stream": False, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": "# tar", "stream": False, "options": {"num_predict": 2}},
}


@pytest.mark.parametrize("path", BODIES)
def test_a_name_alone_or_behind_the_model_s_means_an_adapter(
    path: str, served: Served, requested: list[str | None]
) -> None:
    for name in ("demo", "pirate", "pirate:latest", "demo:pirate", "demo:latest"):
        response = served.post(path, BODIES[path] | {"model": name})
        assert response.status_code == 200, response.text
        assert response.json()["model"] in (name, "pirate" if "pirate" in name else "demo")
    assert requested == [None, "pirate", "pirate", "pirate", None]
    for name in ("oracle", "other:pirate", "pirate:demo"):
        response = served.post(path, BODIES[path] | {"model": name})
        assert (response.status_code, name in response.text) == (404, True)
        assert "'demo' or 'pirate'" in response.text


def test_lists_of_models_name_adapters_and_what_they_are_made_of(served: Served) -> None:
    listed = served.get("/v1/models").json()["data"]
    assert [(each["id"], each.get("parent")) for each in listed] == [("demo", None), ("pirate", "demo")]
    page = served.get("/v1/models", headers={"anthropic-version": "2023-06-01"}).json()
    assert (page["first_id"], page["last_id"]) == ("demo", "pirate")
    assert served.get("/v1/models/pirate").json()["parent"] == "demo"
    assert served.get("/v1/models/oracle").status_code == 404
    tags = served.get("/api/tags").json()["models"]
    assert [(each["name"], each["details"]["parent_model"]) for each in tags] == [
        ("demo:latest", ""),
        ("pirate:latest", "demo:latest"),
    ]
    for name, parent in (("pirate", "demo:latest"), ("demo:pirate", "demo:latest"), ("demo", "")):
        assert served.post("/api/show", {"model": name}).json()["details"]["parent_model"] == parent
    assert served.get("/openapi.json").status_code == 200


def test_adapters_come_and_go_while_the_server_runs(served: Served, requested: list[str | None]) -> None:
    loaded = served.post("/v1/load_lora_adapter", {"lora_name": "oracle", "lora_path": "sub/oracle"})
    assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'oracle' added successfully.")
    again = served.post("/v1/load_lora_adapter", {"lora_name": "oracle", "lora_path": "sub/oracle"})
    assert (again.status_code, "is there already" in again.text) == (400, True)
    in_place = {"lora_name": "oracle", "lora_path": "sub/oracle", "load_inplace": True}
    assert served.post("/v1/load_lora_adapter", in_place).status_code == 200
    served.complete(model="oracle", max_tokens=1)
    assert requested == ["oracle"]
    body = served.get("/openapi.json").json()["components"]["schemas"]["CompletionBody"]
    assert body["properties"]["model"]["enum"] == ["demo", "pirate", "oracle"]
    gone = served.post("/v1/unload_lora_adapter", {"lora_name": "oracle"})
    assert (gone.status_code, gone.text) == (200, "Success: LoRA adapter 'oracle' removed successfully.")
    again = served.post("/v1/unload_lora_adapter", {"lora_name": "oracle"})
    assert (again.status_code, "There is no adapter 'oracle': none was loaded since the start." in again.text) == (
        404,
        True,
    )
    assert [each["id"] for each in served.get("/v1/models").json()["data"]] == ["demo", "pirate"]
    assert served.post("/v1/completions", BODIES["/v1/completions"] | {"model": "oracle"}).status_code == 404


def test_what_the_server_was_started_with_stays(served: Served, chat_engine: Engine) -> None:
    loaded = chat_engine.adapters.get("pirate")
    for path, body in (
        ("/v1/unload_lora_adapter", {"lora_name": "pirate"}),
        ("/v1/load_lora_adapter", {"lora_name": "pirate", "lora_path": "sub/oracle", "load_inplace": True}),
    ):
        refused = served.post(path, body)
        assert (refused.status_code, "which stays: " in refused.text) == (400, True)
    assert chat_engine.adapters.get("pirate") is loaded


def test_of_two_requests_that_load_one_name_at_once_the_second_is_refused(
    served: Served, chat_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, second = chat_engine.load_adapter, []
    body = {"lora_name": "oracle", "lora_path": "sub/oracle", "load_inplace": True}

    def load_while_another_asks(name: str, path: Path) -> None:
        second.append(served.post("/v1/load_lora_adapter", body))
        load(name, path)

    monkeypatch.setattr(chat_engine, "load_adapter", load_while_another_asks)
    assert served.post("/v1/load_lora_adapter", body).status_code == 200
    assert (len(second), second[0].status_code, "is being loaded" in second[0].text) == (1, 400, True)


def test_an_adapter_is_of_the_model_that_a_request_names(served: Served, chat_engine: Engine) -> None:
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        body = {"lora_name": "oracle", "lora_path": "sub/oracle", "model": "other"}
        assert served.post(path, body).status_code == 404
        assert served.post(path, body | {"model": "demo"}).status_code == 200
    assert list(chat_engine.adapters) == ["pirate"]


def test_paths_of_strangers_stay_below_the_folder(served: Served, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "adapters" / "link").symlink_to(tmp_path / "outside")
    for path in (
        "../outside",
        "/etc",
        "link",
        ".",
        "sub/../..",
        "",
        "a\0b",
        "x" * 255 + "/" + "x" * 256,
        "x" * 5000,
        "x" * 300,
        str(tmp_path / "outside"),
    ):
        body = {"lora_name": "oracle", "lora_path": path}
        response = served.post("/v1/load_lora_adapter", body)
        assert (response.status_code, "param" in response.text) == (400, True), path
        assert str(tmp_path) not in response.text
    content = b'{"lora_name": "oracle", "lora_path": "\\ud800"}'
    header = {"Content-Type": "application/json"}
    response = served.request("POST", "/v1/load_lora_adapter", content=content, headers=header)
    assert (response.status_code, "leads out" in response.text) == (400, True)
    missing = served.post("/v1/load_lora_adapter", {"lora_name": "oracle", "lora_path": "nowhere"})
    assert missing.status_code == 400
    assert missing.json()["error"]["message"] == "No adapter at 'nowhere': give a folder."
    for name in ("demo", "demo:latest", "../x", ""):
        body = {"lora_name": name, "lora_path": "sub/oracle"}
        assert served.post("/v1/load_lora_adapter", body).status_code == 400
    nowhere = served.post("/v1/load_lora_adapter", {"lora_name": "oracle"}).json()["error"]["message"]
    assert nowhere.endswith("started with: give lora_path below its folder of adapters.")


def test_without_a_folder_only_names_given_at_the_start_are_loaded(
    requested: list[str | None], async_engine: AsyncEngine, tmp_path: Path
) -> None:
    served = Served(async_engine, ServerSettings("demo", adapter_paths={"pirate": tmp_path}))
    refused = served.post("/v1/load_lora_adapter", {"lora_name": "oracle", "lora_path": str(tmp_path)})
    assert (refused.status_code, "start it with --adapters-folder" in refused.text) == (400, True)
    again = {"lora_name": "pirate", "load_inplace": True}
    assert served.post("/v1/load_lora_adapter", again).status_code == 200


def test_an_adapter_is_not_called_as_its_model(tmp_path: Path) -> None:
    for model, name in (("demo", "demo"), ("smollm2:135m", "smollm2"), ("demo:latest", "demo")):
        for names, paths in (([name], {}), ([], {name: tmp_path})):
            with pytest.raises(ConfigError, match=f"called '{name}', which means the model: give it another name"):
                ServerSettings(model, adapters=names, adapter_paths=paths)


def test_an_unknown_adapter_is_refused_with_the_names_there_are(chat_engine: Engine) -> None:
    with pytest.raises(ConfigError, match="There is no adapter 'oracle': loaded are none"):
        chat_engine.generate("# tar", adapter="oracle")
