"""Embeddings and reranking over HTTP, by the real clients, of the demo model as if it were made for them."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import ollama
import openai
import pytest

from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, ServingConfig
from reader_edge_runtime.errors import ConfigError, PromptError
from tests.reader_edge.package_copy import PackageCopy
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.openai.test_refusals import assert_refused

TEXTS = ["# tar\n\n> Archiving utility.", "# ls", "# git"]


def engine_for(pooling: str, demo_folder: Path, folder: Path, **options: Any) -> Engine:
    package = PackageCopy(demo_folder, folder)
    package.change_manifest(pooling=pooling)
    return Engine.load(package.folder, EngineConfig(is_calibrated=False, **options))


@pytest.fixture(scope="module")
def embedding_engine(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return engine_for("last", demo_folder, tmp_path_factory.mktemp("embeds") / "package", max_batch=3)


def serving(engine: Engine) -> Iterator[Served]:
    asynchronous = AsyncEngine(engine, ServingConfig(max_waiting=4))
    yield Served(asynchronous, ServerSettings("demo"))
    asyncio.run(asynchronous.close(cancels=True))
    assert not engine.decoder.running


@pytest.fixture
def embedder(embedding_engine: Engine) -> Iterator[Served]:
    yield from serving(embedding_engine)


@pytest.fixture(scope="module")
def ranking_engine(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return engine_for("rank", demo_folder, tmp_path_factory.mktemp("ranks") / "package")


@pytest.fixture
def reranker(ranking_engine: Engine) -> Iterator[Served]:
    yield from serving(ranking_engine)


def embedded(served: Served, **fields: Any) -> Any:
    response = served.post("/v1/embeddings", {"model": "demo"} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def test_an_embedding_has_the_same_bits_whatever_runs_beside_it_and_in_chunks_of_any_size(
    embedding_engine: Engine, demo_folder: Path, tmp_path: Path
) -> None:
    text = "# tar\n\n> Archiving utility.\n\n- Create an archive from files:" * 4
    alone = embedding_engine.embed([text])[0]

    async def beside() -> Any:
        async with AsyncEngine(embedding_engine) as engine:
            answers = [asyncio.ensure_future(engine.generate(each, max_tokens=60)) for each in TEXTS[:2]]
            vectors = await engine.embed([text, *TEXTS, *TEXTS, text])
            results = [await each for each in answers]
        return vectors, [each.token_ids for each in results]

    embedding_engine.forget()
    vectors, answers = asyncio.run(beside())
    assert np.array_equal(vectors[0], alone)
    assert np.array_equal(vectors[-1], alone)
    assert answers == [embedding_engine.generate(each, max_tokens=60).token_ids for each in TEXTS[:2]]
    with engine_for("last", demo_folder, tmp_path / "package", prefill_chunk=5) as chunked:
        assert np.array_equal(chunked.embed([text])[0], alone)


def test_openais_client_gets_vectors_of_length_one_in_either_form(embedder: Served, embedding_engine: Engine) -> None:
    async def ask() -> Any:
        http: Any  # httpx2's, or what is like it
        async with embedder.client() as http:
            client = openai.AsyncOpenAI(api_key="-", base_url="http://localhost:8000/v1", http_client=http)
            packed = await client.embeddings.create(model="demo", input=TEXTS)
            plain = await client.embeddings.create(model="demo", input=TEXTS, encoding_format="float", dimensions=16)
            return packed, plain

    packed, plain = asyncio.run(ask())
    vectors = embedding_engine.embed(TEXTS)
    assert np.array_equal(np.array([each.embedding for each in packed.data], np.float32), vectors)
    assert np.allclose([np.linalg.norm(each.embedding) for each in plain.data], 1, atol=1e-6)
    assert {len(each.embedding) for each in plain.data} == {16}
    num_tokens = sum(len(embedding_engine.encode_prompt(text)) for text in TEXTS)
    assert (packed.usage.prompt_tokens, packed.usage.total_tokens) == (num_tokens, num_tokens)


def test_token_ids_are_embedded_as_they_are_and_many_texts_need_no_place_in_the_queue(
    embedder: Served, embedding_engine: Engine
) -> None:
    ids = embedding_engine.encode_prompt(TEXTS[0])
    text, token_ids = (embedded(embedder, input=given)["data"][0]["embedding"] for given in (TEXTS[0], ids))
    assert text == token_ids
    data = embedded(embedder, input=[TEXTS[0], "# ls"] * 20, encoding_format="base64")["data"]
    assert [each["index"] for each in data] == list(range(40))
    first = np.frombuffer(base64.b64decode(data[-2]["embedding"]), "<f4")
    assert first.tolist() == text
    embedder.wait_until_idle()


def test_ollamas_client_gets_them_too(embedder: Served, embedding_engine: Engine) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        path, sent = request.url.path, {"content": request.content, "headers": request.headers}
        return httpx.Response(200, content=embedder.request(request.method, path, **sent).content)

    client = ollama.Client(host="http://localhost:8000", transport=httpx.MockTransport(answer))
    several = client.embed(model="demo", input=TEXTS, dimensions=32)
    assert np.array_equal(np.array(several.embeddings, np.float32), embedding_engine.embed(TEXTS, 32))
    assert several.prompt_eval_count
    one = client.embeddings(model="demo", prompt=TEXTS[0])
    assert np.array_equal(np.array(one.embedding, np.float32), embedding_engine.embed(TEXTS[:1])[0])
    assert client.show("demo").capabilities == ["embedding"]
    assert client.embed(model="demo", input="").embeddings == []


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_documents_are_ranked_best_first(reranker: Served, ranking_engine: Engine, path: str) -> None:
    scores = ranking_engine.rerank("archives", TEXTS)
    best = sorted(range(3), key=lambda index: -scores[index])
    body = {"model": "demo", "query": "archives", "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]]}
    answer = reranker.post(path, body).json()
    wanted = [{"index": index, "relevance_score": scores[index]} for index in best]
    assert answer["results"] == wanted
    assert answer["usage"]["total_tokens"] > 300
    first = reranker.post(path, body | {"top_n": 1, "return_documents": True}).json()["results"]
    assert first == [wanted[0] | {"document": {"text": TEXTS[best[0]]}}]
    other = reranker.post(path, body | {"instruction": "Find lists of files"}).json()["results"]
    assert {each["relevance_score"] for each in other} != set(scores)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"input": []}, "'input' is []"),
        ({"input": ["a", 1]}, "a text, a list of token ids, or a list of such"),
        ({"input": ["a"] * 2049}, "'input' has 2049 texts: 1 to 2048"),
        ({"input": [10**6]}, "token id 1000000"),
        ({"input": "a " * 9000}, "shorten the prompt"),
        ({"input": "a", "dimensions": 257}, "'dimensions' is 257, but must be a whole number from 1 to 256"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "'truncate_prompt_tokens' is 5, which is not supported"),
    ],
)
def test_what_cannot_be_embedded_is_refused(embedder: Served, fields: dict[str, Any], words: str) -> None:
    assert_refused(embedder.post("/v1/embeddings", {"model": "demo"} | fields), 400, words)


def test_each_kind_of_model_says_what_it_is_not_made_for(
    embedder: Served, reranker: Served, embedding_engine: Engine, shared_engine: Engine
) -> None:
    ranked = {"model": "demo", "query": "a", "documents": ["a"]}
    assert_refused(embedder.post("/v1/rerank", ranked), 400, "The model here is no reranker")
    assert_refused(reranker.post("/v1/embeddings", {"model": "demo", "input": "a"}), 400, "makes no embeddings")
    with pytest.raises(ConfigError, match="makes no embeddings"):
        shared_engine.embed(["a"])
    with pytest.raises(PromptError, match="texts is 'a', but must be a list"):
        embedding_engine.embed("a")
    with pytest.raises(ConfigError, match="dimensions is 0"):
        embedding_engine.embed(["a"], dimensions=0)
    assert embedding_engine.embed([]).shape == (0, 256)
