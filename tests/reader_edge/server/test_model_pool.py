"""Several models of one server: loaded when a request asks for one, unloaded for others, and never mixed."""

import asyncio
import json
import os
import random
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import onnx
import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.remote.connection import LostError
from reader_edge.server import event_stream
from reader_edge.server.app import make_app
from reader_edge.server.model_pool import ModelPool
from reader_edge.server.served_model import ServedModel
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy
from tests.reader_edge.server.conftest import LIMIT_S
from tests.reader_edge.server.draft.conftest import greeted, serving

CONFIG = EngineConfig(is_calibrated=False, is_probed=False)
LONG = {"max_tokens": 400, "ignore_eos": True}


@pytest.fixture(scope="module")
def folders(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Packages of two models, whose weights differ."""
    place = tmp_path_factory.mktemp("models")
    for name in ("first", "second"):
        package = PackageCopy(demo_folder, place / name)
        package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    graph = onnx.load(package.folder / "model.onnx", load_external_data=False).graph
    matrix = next(each for each in graph.initializer if each.data_type == onnx.TensorProto.INT8)
    place_of = {entry.key: int(entry.value) for entry in matrix.external_data if entry.key != "location"}
    start, end = place_of["offset"], place_of["offset"] + place_of["length"]
    weights = (package.folder / "model.onnx.data").read_bytes()
    package.write_file("model.onnx.data", weights[:start] + weights[start:end][::-1] + weights[end:])
    return {name: place / name for name in ("first", "second")}


class Served:
    """What clients meet, of one loop. num_loads: by name. hold: cleared, it keeps loads waiting. failures: of loads."""

    def __init__(self, folders: dict[str, Path], idle_s: float = float("inf"), num_models: float = 2.0) -> None:
        self.num_loads = dict.fromkeys(folders, 0)
        self.failures: list[Exception] = []
        self.hold = threading.Event()
        self.hold.set()
        models = [ServedModel(name, ModelPackage.open(folder), self._load(name)) for name, folder in folders.items()]
        room = int(num_models * models[0].package.manifest.num_bytes * 1.01)
        self.pool = ModelPool(models, ServerSettings("first", max_tokens=500), room, idle_s)
        self.app = make_app(self.pool, ServerSettings("first", max_tokens=500))
        self._folders = folders

    def _load(self, name: str) -> Callable[[], AsyncEngine]:
        def load() -> AsyncEngine:
            assert self.hold.wait(LIMIT_S)
            self.num_loads[name] += 1
            if self.failures:
                raise self.failures.pop()
            return AsyncEngine(Engine.load(self._folders[name], CONFIG))

        return load

    @asynccontextmanager
    async def client(self) -> AsyncIterator["Client"]:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=LIMIT_S) as http:
            yield Client(http)
        self.hold.set()
        await self.pool.close(cancels=True)


class Client:
    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def complete(self, model: str, prompt: str = "# tar", **fields: Any) -> httpx.Response:
        body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0} | fields
        return await self.http.post("/v1/completions", json=body)

    async def states(self) -> dict[str, str]:
        listed = (await self.http.get("/v1/models")).json()["data"]
        return {each["id"]: each["status"]["value"] for each in listed}

    async def wait(self, **states: str) -> None:
        """Until models are in these states."""
        async with asyncio.timeout(LIMIT_S):
            while not (await self.states()).items() >= states.items():
                await asyncio.sleep(0.01)


def run(served: Served, work: Callable[[Client], Any]) -> Any:
    async def within() -> Any:
        async with served.client() as client:
            return await work(client)

    return asyncio.run(asyncio.wait_for(within(), LIMIT_S))


def test_two_models_never_mix(folders: dict[str, Path]) -> None:
    """Requests in any order, over several interfaces, with room for one model: answers are those of each alone."""
    chosen = random.Random(5)  # noqa: S311
    prompts = ["# tar", "An archive", "# ls\n\nList", "tar tar tar"]
    requests = [
        (chosen.choice([*folders]), chosen.choice(prompts), chosen.choice([0.0, 1.0]), chosen.randrange(3), number)
        for number in range(30)
    ]
    expected = {}
    for name, folder in folders.items():
        with Engine.load(folder, CONFIG) as engine:
            for each in requests:
                if each[0] == name:
                    sampling = SamplingConfig(temperature=each[2], seed=each[4])
                    expected[each] = engine.generate(each[1], GenerationConfig(12, sampling)).text
    texts = {name: {text for each, text in expected.items() if each[0] == name} for name in folders}
    assert len(texts["first"] ^ texts["second"]) > 10  # they are no copies

    async def ask(client: Client, request: Any) -> str:
        name, prompt, temperature, face, seed = request
        await asyncio.sleep(chosen.random() * 0.5)
        if face == 2:
            options = {"temperature": temperature, "seed": seed, "num_predict": 12, "top_k": 0, "top_p": 1.0}
            body = {"model": name, "prompt": prompt, "raw": True, "options": options}
            lines = (await client.http.post("/api/generate", json=body)).text.splitlines()
            return "".join(json.loads(line)["response"] for line in lines)
        fields = {"temperature": temperature, "seed": seed, "max_tokens": 12}
        response = await client.complete(name, prompt, **fields, stream=face == 1)
        if face == 0:
            return str(response.json()["choices"][0]["text"])
        events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        return "".join(each["choices"][0]["text"] for each in events)

    async def work(client: Client) -> list[str]:
        return list(await asyncio.gather(*(ask(client, each) for each in requests)))

    served = Served(folders, num_models=1)
    assert run(served, work) == [expected[each] for each in requests]
    assert min(served.num_loads.values()) > 0


def test_a_model_is_loaded_when_it_is_requested_and_unloaded_for_another(folders: dict[str, Path]) -> None:
    async def work(client: Client) -> None:
        assert await client.states() == {"first": "unloaded", "second": "unloaded"}
        assert (await client.complete("second")).status_code == 200
        assert await client.states() == {"first": "unloaded", "second": "loaded"}
        (running,) = (await client.http.get("/api/ps")).json()["models"]
        assert (running["name"], running["expires_at"][:4], running["context_length"]) == (
            "second:latest",
            "2318",
            2048,
        )
        assert (await client.complete("first:latest")).status_code == 200
        assert await client.states() == {"first": "loaded", "second": "unloaded"}
        assert (await client.complete("first")).json()["model"] == "first"

    served = Served(folders, num_models=1)
    run(served, work)
    assert served.num_loads == {"first": 1, "second": 1}


def test_lists_have_all_models_with_their_states_and_contexts(folders: dict[str, Path]) -> None:
    async def work(client: Client) -> None:
        await client.complete("second")
        (first, second) = (await client.http.get("/api/v0/models")).json()["data"]
        assert (first["id"], first["state"], second["state"]) == ("first", "not-loaded", "loaded")
        (one, two) = (await client.http.get("/api/v1/models")).json()["models"]
        assert (one["loaded_instances"], two["loaded_instances"][0]["id"]) == ([], "second")
        openai = (await client.http.get("/v1/models")).json()["data"]
        tags = (await client.http.get("/api/tags")).json()["models"]
        assert [each["name"] for each in tags] == ["first:latest", "second:latest"]
        assert {each["context_length"] for each in (first, second, one, two, *openai, *tags)} == {2048}
        shown = (await client.http.post("/api/show", json={"model": "first"})).json()  # which is not loaded
        assert shown["capabilities"] == ["completion", "tools"]
        assert (await client.http.get("/v1/models/first")).json()["status"] == {"value": "unloaded"}
        document = (await client.http.get("/openapi.json")).json()
        model = document["components"]["schemas"]["CompletionBody"]["properties"]["model"]
        assert model == {"enum": ["first", "second"]}
        assert 'id="' in (await client.http.get("/")).text

    run(Served(folders), work)


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate", "/api/show", "/models/load"])
def test_a_model_that_there_is_not_is_one_sentence(folders: dict[str, Path], path: str) -> None:
    prompt = {"prompt": "tar"} if path in ("/v1/completions", "/api/generate") else {}

    async def work(client: Client) -> None:
        refused = await client.http.post(path, json={"model": "third", **prompt})
        assert refused.status_code == 404
        assert "There is no model 'third' here: ask for 'first' or 'second'." in refused.text

    run(Served(folders), work)


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        ("/v1/completions", {"prompt": "tar", "draft": "no"}, "'draft' is 'no', but must be false"),
        ("/v1/messages", {"messages": [], "max_tokens": 5}, "'messages'"),
        ("/api/generate", {"prompt": 5}, "'prompt' is 5"),
        ("/infill", {"input_prefix": "a"}, "no fill-in-the-middle tokens"),
        ("/v1/embeddings", {"input": "a"}, "ask one made for them, as Qwen3-Embedding"),
        ("/v1/rerank", {"query": "a", "documents": ["b"]}, "ask one made for it, as Qwen3-Reranker"),
    ],
)
def test_what_is_refused_loads_no_model(
    folders: dict[str, Path], path: str, fields: dict[str, object], words: str
) -> None:
    served = Served(folders)

    async def work(client: Client) -> None:
        refused = await client.http.post(path, json={"model": "second", **fields})
        assert refused.status_code == 400
        assert words in refused.text
        assert ("type" in refused.json()) == (path == "/v1/messages")  # in the words of its interface

    run(served, work)
    assert served.num_loads == {"first": 0, "second": 0}


@pytest.mark.long
def test_idle_models_are_unloaded_and_keep_alive_has_the_last_word(folders: dict[str, Path]) -> None:
    async def ask(client: Client, name: str, **fields: Any) -> Any:
        return (await client.http.post("/api/generate", json={"model": name, "stream": False} | fields)).json()

    async def work(client: Client) -> None:
        await client.complete("second")
        await client.wait(second="unloaded")
        assert (await ask(client, "first", keep_alive="1h30m"))["done_reason"] == "load"
        (running,) = (await client.http.get("/api/ps")).json()["models"]
        left = datetime.fromisoformat(running["expires_at"]) - datetime.now(UTC)
        assert 5300 < left.total_seconds() <= 5400
        await ask(client, "first", keep_alive=-1)
        await client.complete("first")  # says nothing of it, as OpenAI's clients cannot
        await asyncio.sleep(0.3)
        assert (await client.http.get("/api/ps")).json()["models"][0]["expires_at"].startswith("2318")
        await ask(client, "first", keep_alive="99999999999h")  # beyond any date
        assert (await client.http.get("/api/ps")).json()["models"][0]["expires_at"].startswith("2318")
        assert (await ask(client, "first", prompt="tar", raw=True, keep_alive=0))["done"]
        await client.wait(first="unloaded")
        await ask(client, "first")
        assert (await ask(client, "first", keep_alive="0s"))["done_reason"] == "unload"
        await client.wait(first="unloaded")
        assert "keep_alive" in (await ask(client, "first", keep_alive="soon"))["error"]

    run(Served(folders, idle_s=0.2), work)


def test_a_model_that_fails_to_load_says_so_and_is_tried_again(folders: dict[str, Path]) -> None:
    async def work(client: Client) -> None:
        served.failures.append(PackageError("'/a/secret/place' is damaged: export it again."))
        refused = await client.complete("first")
        assert refused.status_code == 500
        sentence = "'first' cannot be loaded: '...' is damaged: export it again."
        assert refused.json()["error"]["message"] == sentence
        assert (await client.states())["first"] == "unloaded"
        assert (await client.complete("first")).status_code == 200

    served = Served(folders)
    run(served, work)
    assert served.num_loads["first"] == 2


@pytest.mark.long
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/api/chat"])
def test_a_stream_begins_while_its_model_is_loaded(
    folders: dict[str, Path], path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_stream, "HEARTBEAT_S", 0.05)
    body = {"model": "first", "messages": [{"role": "user", "content": "tar"}], "stream": True}

    async def work(client: Client) -> tuple[str, str]:
        served.hold.clear()
        asyncio.get_running_loop().call_later(0.3, served.hold.set)
        late = (await client.http.post(path, json=body)).text
        served.failures.append(PackageError("The package is damaged."))
        served.hold.clear()
        asyncio.get_running_loop().call_later(0.3, served.hold.set)
        failed = await client.http.post(path, json=body | {"model": "second"})
        assert failed.status_code == 200
        return late, failed.text

    served = Served(folders)
    late, failed = run(served, work)
    first = late.splitlines()[0].removeprefix(": ")
    assert json.loads(first)["model_loading"] == "first"
    assert '"done": true' in late or late.endswith("data: [DONE]\n\n")
    assert "error" in json.loads(failed.strip().splitlines()[-1].removeprefix("data: "))


def test_a_model_with_running_requests_stays_and_nobody_waits_for_ever(folders: dict[str, Path]) -> None:
    """There is room for one; requests of the other model come between those of the first."""
    ended: list[str] = []

    async def ask(client: Client, label: str, model: str, **fields: Any) -> None:
        assert (await client.complete(model, **fields)).status_code == 200
        ended.append(label)

    async def work(client: Client) -> None:
        tasks = [asyncio.create_task(ask(client, "long", "first", **LONG))]
        await client.wait(first="loaded")
        for label, model in (("other", "second"), ("behind", "first")):
            await asyncio.sleep(0.1)
            tasks.append(asyncio.create_task(ask(client, label, model)))
        await asyncio.gather(*tasks)

    served = Served(folders, num_models=1)
    run(served, work)
    assert ended == ["long", "other", "behind"]
    assert served.num_loads == {"first": 2, "second": 1}


def test_clients_load_and_unload(folders: dict[str, Path]) -> None:
    async def work(client: Client) -> None:
        loaded = (await client.http.post("/api/v1/models/load", json={"model": "first", "context_length": 4096})).json()
        assert (loaded["type"], loaded["instance_id"], loaded["status"]) == ("llm", "first", "loaded")
        assert (await client.http.post("/models/load", json={"model": "second"})).json()["success"]
        assert await client.states() == {"first": "loaded", "second": "loaded"}
        unloaded = await client.http.post("/api/v1/models/unload", json={"instance_id": "first"})
        assert unloaded.json()["instance_id"] == "first"
        assert (await client.http.post("/models/unload", json={"model": "second"})).json()["success"]
        assert await client.states() == {"first": "unloaded", "second": "unloaded"}
        assert (await client.http.post("/models/unload", json={"model": "second"})).status_code == 404

    run(Served(folders, num_models=3), work)


def test_a_model_that_waits_for_its_end_keeps_no_other_from_being_loaded(folders: dict[str, Path]) -> None:
    async def work(client: Client) -> None:
        first = served.pool.first
        await served.pool.acquire(first)
        unloading = asyncio.create_task(client.http.post("/models/unload", json={"model": "first"}))
        while not first.is_leaving:
            await asyncio.sleep(0.01)
        behind = asyncio.create_task(client.complete("first"))
        assert (await client.complete("second")).status_code == 200
        assert await client.states() == {"first": "loaded", "second": "loaded"}
        assert not behind.done()
        served.pool.release(first)
        assert (await unloading).json()["success"]
        assert (await behind).status_code == 200

    served = Served(folders, num_models=3)
    run(served, work)
    assert served.num_loads == {"first": 2, "second": 1}


def test_a_device_without_an_answer_keeps_no_model_loaded(folders: dict[str, Path]) -> None:
    served = Served(folders, num_models=1)

    async def ask() -> httpx.Response:
        async with served.client() as client:
            return await client.complete("second")

    with serving(served.app) as server:
        link = greeted(server)
        assert asyncio.run_coroutine_threadsafe(ask(), server.loop).result(LIMIT_S).status_code == 200
        with pytest.raises(LostError):
            link.receive(LIMIT_S)


def test_a_package_that_is_gone_is_one_sentence(folders: dict[str, Path], tmp_path: Path) -> None:
    gone = tmp_path / "first"
    shutil.copytree(folders["first"], gone)

    async def work(client: Client) -> None:
        shutil.rmtree(gone)
        for path, fields in (("/api/show", {}), ("/api/generate", {"prompt": "tar"})):
            refused = await client.http.post(path, json={"model": "first"} | fields)
            assert refused.status_code == 500
            assert refused.json()["error"].startswith("'first' cannot be loaded: ")
            assert str(tmp_path) not in refused.text

    run(Served({"first": gone}), work)


def test_counts_are_of_all_models_and_outlive_them(folders: dict[str, Path]) -> None:
    async def figures(client: Client) -> dict[str, float]:
        lines = (await client.http.get("/metrics")).text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    async def work(client: Client) -> None:
        await client.complete("first")
        one = await figures(client)
        await client.complete("second")
        both = await figures(client)
        assert both["reader_edge_tokens_total"] == 8
        assert both["reader_edge_decoder_steps_total"] > one["reader_edge_decoder_steps_total"] > 0
        assert both['reader_edge_model_loaded{model="first"}'] == 0
        assert both['reader_edge_model_loads_total{model="second"}'] == 1
        assert both["reader_edge_requests_running"] == 0

    run(Served(folders, num_models=1), work)


def test_a_server_that_stops_lets_nobody_wait_for_a_model(folders: dict[str, Path]) -> None:
    async def work(client: Client) -> None:
        served.hold.clear()
        asking = asyncio.create_task(client.complete("first"))
        await client.wait(first="loading")
        assert "reader_edge_requests_waiting 1.0" in (await client.http.get("/metrics")).text
        await served.pool.close(cancels=True)
        assert (await asking).status_code == 503
        served.hold.set()

    served = Served(folders)
    run(served, work)


class TestCommand:
    """`serve` of several models."""

    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        made: list[Any] = []
        monkeypatch.setattr("reader_edge.server.app.make_app", lambda served, settings: made.append(served))
        monkeypatch.setattr("reader_edge.server.listening.listen", lambda app, socket, served: None)
        return made

    def test_models_are_called_as_their_folders(
        self, made: list[Any], folders: dict[str, Path], runner: CliRunner
    ) -> None:
        place = folders["first"].parent
        for options in (["--models", str(place)], map(str, folders.values())):
            result = runner.invoke(main, ["serve", "--port", "0", *options])
            assert (result.exit_code, result.stdout) == (0, "")
            pool = made.pop()
            assert pool.names == ["first", "second"]
            assert not any(pool._loaded())

    def test_a_package_that_cannot_be_read_is_left_out(
        self, made: list[Any], folders: dict[str, Path], runner: CliRunner, tmp_path: Path
    ) -> None:
        for name in ("broken", "first", ".hidden"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "reader_edge.json").write_text("{}")
        (tmp_path / "no folder").write_text("text")
        shutil.rmtree(tmp_path / "first")
        (tmp_path / "first").symlink_to(folders["first"])
        result = runner.invoke(main, ["serve", "--port", "0", "--models", str(tmp_path), "--memory", "10000000"])
        assert result.exit_code == 0
        assert result.stderr.count("Left out: ") == 1
        assert made.pop().names == ["first"]

    @pytest.mark.skipif(sys.platform != "linux", reason="other systems hold names to be text")
    def test_no_folders_name_harms_a_terminal_or_a_list_of_models(
        self, made: list[Any], folders: dict[str, Path], runner: CliRunner, tmp_path: Path
    ) -> None:
        (tmp_path / os.fsdecode(b"no\xfftext")).symlink_to(folders["first"])
        (tmp_path / "plain").symlink_to(folders["second"])
        (tmp_path / "\x1b[31mred").mkdir()
        (tmp_path / "\x1b[31mred" / "reader_edge.json").write_text("{}")
        result = runner.invoke(main, ["serve", "--port", "0", "--models", str(tmp_path)])
        assert result.exit_code == 0, result.stderr
        assert r"\x1b[31mred" in result.stderr
        assert "\x1b" not in result.stderr
        assert made.pop().names == ["no\ufffdtext", "plain"]

    def test_one_model_alone_is_loaded_at_the_start(
        self, made: list[Any], folders: dict[str, Path], runner: CliRunner
    ) -> None:
        options = ["serve", str(folders["first"]), "--port", "0", "--no-calibrate"]
        assert runner.invoke(main, options).exit_code == 0
        assert isinstance(made.pop(), AsyncEngine)
        assert runner.invoke(main, [*options, "--idle-unload", "60"]).exit_code == 0
        assert made.pop().first.state == "loaded"

    def test_what_cannot_be_is_one_sentence(
        self, made: list[Any], folders: dict[str, Path], runner: CliRunner, tmp_path: Path
    ) -> None:
        both = [*map(str, folders.values()), "--port", "0"]
        for options, status, words in (
            ([*both, "--name", "a"], 2, "--name"),
            ([*both, "--history", str(tmp_path / "history")], 2, "--history"),
            ([*both, "--memory", "1000"], 2, "--memory is 1000"),
            ([both[0], both[0], "--port", "0"], 2, "Two models are called 'first'"),
            (["--models", str(tmp_path)], 2, "has no packages"),
        ):
            refused = runner.invoke(main, ["serve", *options])
            assert refused.exit_code == status, refused.stderr
            assert words in refused.stderr
        assert not made


def test_no_adapter_takes_the_name_of_another_model(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "pirate").mkdir()

    async def work(client: Client) -> None:
        for name, words in {"first": "is there already", "second": "is there already", "third": "no adapters"}.items():
            body = {"lora_name": name, "lora_path": "pirate", "model": "first", "load_inplace": True}
            response = await client.http.post("/v1/load_lora_adapter", json=body)
            assert (response.status_code, words in response.text) == (400, True), response.text

    served = Served(folders)
    served.app = make_app(served.pool, ServerSettings("first", adapters_folder=tmp_path))
    run(served, work)
