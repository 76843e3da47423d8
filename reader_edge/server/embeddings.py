"""`/v1/embeddings`, and Ollama's `/api/embed` and `/api/embeddings`: texts in, vectors out."""

import base64
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, cast

from msgspec import Meta

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.completion import CompletionRequest, CompletionRun, Json, check_model
from reader_edge.server.endpoint import Body, Endpoint
from reader_edge.server.ollama.bodies import KeepAlive
from reader_edge.server.ollama.endpoints import OllamaRequests, check_ollama_model
from reader_edge.server.schema import JsonObject
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import GenerationResult
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.embeddings import NO_EMBEDDINGS, Embedder, LastToken
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Encodable

if TYPE_CHECKING:
    from reader_edge.server.served_model import ServedModel

MAX_INPUTS = 2048  # texts of a request, as OpenAI has it
_MAX_ITEMS = 1 << 17  # of a list, which may be token ids
_INPUTS = "a text, a list of token ids, or a list of such"
_NS = 1_000_000_000  # of a second

_Dimensions = Annotated[int, Meta(ge=1)]


class EmbeddingsBody(JsonObject, ignored="user priority input_type", refused="truncate_prompt_tokens messages"):
    """What `/v1/embeddings` takes."""

    read_once = ("input",)

    model: str = ""
    input: Annotated[
        str | Annotated[list[int | str | list[int]], Meta(min_length=1, max_length=_MAX_ITEMS)],
        Meta(description=_INPUTS),
    ]
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: _Dimensions | None = None


class OllamaEmbedBody(JsonObject, ignored="truncate options"):
    """What `/api/embed` takes. A text that is longer than the model's context is refused."""

    read_once = ("input",)

    model: str = ""
    input: Annotated[
        str | Annotated[list[str], Meta(max_length=MAX_INPUTS)], Meta(description="a text or a list of texts")
    ] = ""
    dimensions: _Dimensions | None = None
    keep_alive: KeepAlive = None


class OllamaEmbeddingsBody(JsonObject, ignored="truncate options"):
    """What `/api/embeddings` takes, which is older."""

    read_once = ("prompt",)

    model: str = ""
    prompt: str = ""
    keep_alive: KeepAlive = None


class ReadingEndpoint(Endpoint[Body]):
    """What reads prompts to their ends, so many at once as run together. There are no streams of it.

    pooling: of models that are made for it, as of `Manifest`. refusal: of others.
    """

    pooling = "last"
    refusal = NO_EMBEDDINGS

    @classmethod
    def check_unloaded(cls, values: object, model: "ServedModel", settings: ServerSettings) -> None:
        super().check_unloaded(values, model, settings)
        cls._check_pooling(model.package)

    def _reading(self, prompts: Sequence[Encodable], readers: Sequence[LastToken]) -> CompletionRequest:
        return CompletionRequest(prompts, [each.config for each in readers], is_answer_hidden=True)

    def _answers(self, completion: CompletionRequest) -> CompletionRun:
        max_at_once = self._engine.engine.decoder.config.max_batch
        return CompletionRun(self._engine, completion, self._metrics, self._settings.max_answer_s, max_at_once)

    @classmethod
    def _check_pooling(cls, package: ModelPackage) -> None:
        """Raise ApiError for a model that is made for something else."""
        if package.manifest.pooling != cls.pooling:
            raise ApiError(400, cls.refusal, "model", "unsupported_endpoint")

    async def _events(self, body: Body, completion: CompletionRequest, answers: CompletionRun) -> AsyncGenerator[Json]:
        yield self._whole(body, completion, answers, await answers.whole())


def readers_of(completion: CompletionRequest) -> list[LastToken]:
    """What the requests have kept of their prompts."""
    return [cast(LastToken, config.acceptance) for config in completion.configs]


class EmbeddingEndpoint(ReadingEndpoint[Body]):
    """What all endpoints of embeddings share."""

    def _embedding_request(self, prompts: Sequence[Encodable], dimensions: int | None) -> CompletionRequest:
        embedder = self._embedder(dimensions)
        return self._reading(prompts, [embedder.reader() for _ in prompts])

    def _embedder(self, dimensions: int | None) -> Embedder:
        self._check_pooling(self._engine.engine.package)
        size = self._engine.engine.package.manifest.hidden_size
        if dimensions is not None and size is not None and dimensions > size:
            raise wrong_value("dimensions", dimensions, f"a whole number from 1 to {size}", "dimensions")
        return self._engine.engine.embedder(dimensions)

    def _vectors(self, completion: CompletionRequest, dimensions: int | None) -> list[Float32Array]:
        embedder = self._embedder(dimensions)
        return [embedder.vector(each) for each in readers_of(completion)]


class EmbeddingsEndpoint(EmbeddingEndpoint[EmbeddingsBody]):
    """A route's handler."""

    body_type = EmbeddingsBody

    def _completion_request(self, body: EmbeddingsBody) -> CompletionRequest:
        check_model(body.model, self._settings)
        return self._embedding_request(_inputs(body.input), body.dimensions)

    def _whole(
        self,
        body: EmbeddingsBody,
        completion: CompletionRequest,
        answers: CompletionRun,
        results: list[GenerationResult],
    ) -> Json:
        vectors = self._vectors(completion, body.dimensions)
        is_packed = body.encoding_format == "base64"
        data = [
            {"object": "embedding", "index": index, "embedding": _packed(vector) if is_packed else vector.tolist()}
            for index, vector in enumerate(vectors)
        ]
        return {"object": "list", "data": data, "model": self._settings.model_name, "usage": usage_of(answers)}


class OllamaEmbedEndpoint(OllamaRequests[OllamaEmbedBody], EmbeddingEndpoint[OllamaEmbedBody]):
    """A list of vectors, whatever was sent."""

    body_type = OllamaEmbedBody

    def _completion_request(self, body: OllamaEmbedBody) -> CompletionRequest:
        check_ollama_model(body.model, self._settings)
        texts = [body.input] if isinstance(body.input, str) else body.input
        return self._embedding_request([] if body.input == "" else texts, body.dimensions)  # none loads the model

    def _whole(
        self,
        body: OllamaEmbedBody,
        completion: CompletionRequest,
        answers: CompletionRun,
        results: list[GenerationResult],
    ) -> Json:
        return {
            "model": body.model,
            "embeddings": [each.tolist() for each in self._vectors(completion, body.dimensions)],
            "total_duration": int((time.monotonic() - answers.start_s) * _NS),
            "load_duration": 0,
            "prompt_eval_count": answers.usage()["prompt_tokens"],
        }


class OllamaEmbeddingsEndpoint(OllamaRequests[OllamaEmbeddingsBody], EmbeddingEndpoint[OllamaEmbeddingsBody]):
    """One vector, [] where no text was sent."""

    body_type = OllamaEmbeddingsBody

    def _completion_request(self, body: OllamaEmbeddingsBody) -> CompletionRequest:
        check_ollama_model(body.model, self._settings)
        return self._embedding_request([body.prompt] if body.prompt else [], None)

    def _whole(
        self,
        body: OllamaEmbeddingsBody,
        completion: CompletionRequest,
        answers: CompletionRun,
        results: list[GenerationResult],
    ) -> Json:
        vectors = self._vectors(completion, None)
        return {"embedding": vectors[0].tolist() if vectors else []}


def usage_of(answers: CompletionRun) -> Json:
    """Tokens that were read, in OpenAI's words."""
    num_tokens = answers.usage()["prompt_tokens"]
    return {"prompt_tokens": num_tokens, "total_tokens": num_tokens}


def _inputs(given: str | list[int | str | list[int]]) -> Sequence[Encodable]:
    """The prompts of a request. Raises ApiError."""
    if isinstance(given, str):
        return [given]
    if _is_token_ids(given):
        return [cast(list[int], given)]
    if len(given) > MAX_INPUTS:  # refused before all of them are looked at
        raise ApiError(400, f"'input' has {len(given)} texts: 1 to {MAX_INPUTS} are embedded together.", "input")
    if not all(isinstance(each, str) or _is_token_ids(each) for each in given):
        raise wrong_value("input", given, _INPUTS, "input")
    return cast(Sequence[Encodable], given)


def _is_token_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(each) is int for each in value)


def _packed(vector: Float32Array) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
