"""Ollama's `/api/chat` and `/api/generate`, answered by the same engine."""

import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import ClassVar, NamedTuple, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from reader_edge.server.api_error import ApiError, api_error, shown_json, shown_names
from reader_edge.server.completion import (
    THOUGHT,
    AnswerParser,
    CompletionRequest,
    CompletionRun,
    Json,
    seed_headers,
    text_in,
)
from reader_edge.server.endpoint import Body, Endpoint
from reader_edge.server.event_stream import LineStream
from reader_edge.server.json_body import read_values
from reader_edge.server.ollama.bodies import GenerateBody, OllamaBody, OllamaChatBody, keep_alive_s
from reader_edge.server.openai.choices import chat_logprobs
from reader_edge.server.settings import ServerSettings
from reader_edge.server.tool_grammar import tool_grammar
from reader_edge_runtime import GenerationChunk, GenerationResult, GenerationStats
from reader_edge_runtime.untrusted.untrusted_json import load_finite

_DONE_REASONS = {"stop": "stop", "length": "length", "context": "length"}
_NS = 1_000_000_000  # of a second

AnyBody = TypeVar("AnyBody", bound=OllamaBody)


class AnswerPiece(NamedTuple):
    """A part of an answer. calls: those that are whole with it."""

    text: str = ""
    thinking: str = ""
    calls: tuple[Json, ...] = ()


class OllamaParser:
    """Reads one answer: thoughts and texts as they come, calls once they are whole; one that was cut is left out."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser
        self._name = ""
        self._arguments = ""
        self._number = -1

    def push(self, answered: GenerationChunk | GenerationResult) -> AnswerPiece:
        """What a further piece says, or the whole answer."""
        output = self._parser.push(answered)
        calls: list[Json] = []
        for each in output:
            if each.call >= 0 and each.call != self._number:
                calls += self._whole()
                self._name, self._arguments, self._number = each.name or "", "", each.call
            if each.call >= 0:
                self._arguments += each.text
        if answered.finish_reason is not None:
            calls += self._whole()
        return AnswerPiece(text_in(output), text_in(output, THOUGHT), tuple(calls))

    def _whole(self) -> list[Json]:
        """The call that was begun, if its arguments came to their end."""
        try:
            arguments = load_finite(self._arguments)
        except (ValueError, RecursionError):
            return []
        return [{"function": {"index": self._number, "name": self._name, "arguments": arguments}}]


class OllamaRequests(Endpoint[Body]):
    """How Ollama's clients send bodies, say how long a model stays, and read refusals."""

    @classmethod
    async def read_values(cls, request: Request, settings: ServerSettings) -> object:
        return await read_ollama_values(request, settings)

    @classmethod
    def keep_s(cls, fields: Mapping[str, object]) -> float | None:
        return keep_alive_s(fields.get("keep_alive"))

    def _refusal(self, error: Exception) -> Response:
        return api_error(error).response("ollama")


class OllamaEndpoint(OllamaRequests[AnyBody]):
    """What both endpoints of Ollama share. An answer names the model as the request named it."""

    plain_path = "/api/generate"

    def _direct_answer(self, body: AnyBody) -> Json | None:
        """Ollama takes a request without a prompt as one to load or, with `keep_alive: 0`, to unload the model."""
        check_ollama_model(body.model, self._settings)
        if not body.is_empty:
            return None
        is_unloaded = self._settings.unloads and keep_alive_s(body.keep_alive) == 0
        reason = {"done": True, "done_reason": "unload" if is_unloaded else "load"}
        return self._head(body) | self._fields(AnswerPiece(), []) | reason

    def _completion_request(self, body: AnyBody) -> CompletionRequest:
        check_ollama_model(body.model, self._settings)
        if body.think and self._tokenizer.thinking_tags is None:
            sentence = f"'think' is {shown_json(body.think)}, but the model here does not think: leave it out."
            public = "'think' is given, but the model here does not think: leave it out."
            raise ApiError(400, sentence, "think", public=public)
        use, answer_format = body.tool_use(), body.answer_format()
        num_predict = body.options.num_predict
        requested = num_predict if num_predict > 0 else None
        max_tokens, headers = self._settings.allowed_tokens("options.num_predict", requested)
        config = body.config(max_tokens, self._engine.engine.sampling)
        grammar = tool_grammar(use, self._tokenizer.call_syntax, answer_format.grammar)
        return CompletionRequest(
            prompts=[body.prompt_of(use, self._tokenizer.has_chat_template)],
            configs=[replace(config, grammar=grammar)],
            use=use,
            answer_format=answer_format,
            is_streamed=body.stream,
            names_temperature=body.options.temperature is not None,
            headers=headers | seed_headers(config),
        )

    def _whole(
        self, body: AnyBody, completion: CompletionRequest, answers: CompletionRun, results: list[GenerationResult]
    ) -> Json:
        result = results[0]
        output = self._fields(OllamaParser(self._parser(completion)).push(result), self._logprobs(result))
        return self._head(body) | output | _end(result.finish_reason, result.stats, answers, result.deviation)

    async def _events(
        self, body: AnyBody, completion: CompletionRequest, answers: CompletionRun
    ) -> AsyncGenerator[Json, None]:
        parser = OllamaParser(self._parser(completion))
        async for _, chunk in answers.pieces():
            piece, logprobs = parser.push(chunk), self._logprobs(chunk)
            if any(piece) or logprobs:
                yield self._head(body) | self._fields(piece, logprobs) | {"done": False}
            if chunk.finish_reason is not None and chunk.stats is not None:
                end = _end(chunk.finish_reason, chunk.stats, answers, chunk.deviation)
                yield self._head(body) | self._fields(AnswerPiece(), []) | end

    def _head(self, body: AnyBody) -> Json:
        return {"model": body.model, "created_at": now()}

    def _logprobs(self, answered: GenerationChunk | GenerationResult) -> list[object]:
        logprobs = chat_logprobs(answered, self._tokenizer)
        content = logprobs["content"] if logprobs is not None else []
        return content if isinstance(content, list) else []

    @abstractmethod
    def _fields(self, piece: AnswerPiece, logprobs: list[object]) -> Json:
        """A part of an answer, or all of it."""


class ChatLines(LineStream):
    """Messages."""

    empty: ClassVar[Json] = {"message": {"role": "assistant", "content": ""}}


class ResponseLines(LineStream):
    """Responses."""

    empty: ClassVar[Json] = {"response": ""}


class OllamaChatEndpoint(OllamaEndpoint[OllamaChatBody]):
    """Messages in, a message out."""

    body_type = OllamaChatBody
    stream_type = ChatLines

    def _fields(self, piece: AnswerPiece, logprobs: list[object]) -> Json:
        message: Json = {"role": "assistant", "content": piece.text}
        message |= {"thinking": piece.thinking} if piece.thinking else {}
        message |= {"tool_calls": piece.calls} if piece.calls else {}
        return {"message": message} | ({"logprobs": logprobs} if logprobs else {})


class GenerateEndpoint(OllamaEndpoint[GenerateBody]):
    """A prompt in, a response out."""

    body_type = GenerateBody
    stream_type = ResponseLines

    def _completion_request(self, body: GenerateBody) -> CompletionRequest:
        completion = super()._completion_request(body)
        return completion.filling_in(self._tokenizer, body.suffix) if body.suffix else completion

    def _fields(self, piece: AnswerPiece, logprobs: list[object]) -> Json:
        output: Json = {"response": piece.text}
        output |= {"thinking": piece.thinking} if piece.thinking else {}
        return output | ({"logprobs": logprobs} if logprobs else {})


def check_ollama_model(name: str, settings: ServerSettings) -> None:
    """Raise ApiError unless it is the model that is served. Ollama adds `:latest` to names without a tag."""
    if not name:
        raise ApiError(400, f"'model' is missing: ask for {settings.model_name!r}.", "model")
    if not settings.is_served(name):
        sentence = f"model {name!r:.100} not found: this server has {shown_names(settings.names)}"
        raise ApiError(404, sentence, "model", "model_not_found")


async def read_ollama_values(request: Request, settings: ServerSettings) -> object:
    """A body's values. Raises ApiError."""
    # Ollama takes JSON under any type, as curl sends it. A browser always tells what site a page is of that asks.
    is_browser = "origin" in request.headers or "sec-fetch-site" in request.headers
    return await read_values(request, settings, is_type_checked=is_browser)


def now() -> str:
    return utc(datetime.now(UTC))


def utc(moment: datetime) -> str:
    """A moment as Ollama writes it."""
    return moment.isoformat().replace("+00:00", "Z")


def _end(reason: str, stats: GenerationStats, answers: CompletionRun, deviation: Mapping[str, object]) -> Json:
    """How an answer ended, what it took in nanoseconds, the tokens counted, and how far it deviates by a rule.

    The model was there already.
    """
    return {
        "done": True,
        "done_reason": _DONE_REASONS[reason],
        "total_duration": int((time.monotonic() - answers.start_s) * _NS),
        "load_duration": 0,
        "prompt_eval_count": stats.num_prompt_tokens,
        "prompt_eval_duration": int(stats.prefill_s * _NS),
        "eval_count": stats.num_tokens,
        "eval_duration": int(stats.decode_s * _NS),
        **({"deviation": deviation} if deviation else {}),
    }
