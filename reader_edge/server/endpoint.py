"""What all endpoints have in common: a body in, a completion request to the engine, answers out."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from reader_edge.server import event_stream
from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.completion import AnswerParser, CompletionRequest, CompletionRun, Json
from reader_edge.server.event_stream import ClientDisconnectedError, EventStream, unless_disconnected
from reader_edge.server.ignored_fields import LeftOut
from reader_edge.server.json_body import read_values
from reader_edge.server.metrics import Metrics
from reader_edge.server.request_log import LEFT_STATUS, note_of
from reader_edge.server.schema import JsonObject, decode, without_effect
from reader_edge.server.settings import ServerSettings
from reader_edge.server.tool_grammar import enforced_arguments
from reader_edge_runtime import AsyncEngine, Conversation, GenerationConfig, GenerationResult
from reader_edge_runtime.text.conversation import Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser

if TYPE_CHECKING:
    from reader_edge.server.served_model import ServedModel

Body = TypeVar("Body", bound=JsonObject)
_EFFORT = "reasoning_effort"  # a template that knows it has a variable of that name


class Endpoint(ABC, Generic[Body]):
    """What a model answers at a path. body_type: what it takes. stream_type: how events are framed.

    plain_path: of the interface's endpoint that takes plain prompts.
    """

    body_type: type[Body]
    stream_type: type[EventStream] = EventStream
    plain_path = "/v1/completions"

    def __init__(self, engine: AsyncEngine, settings: ServerSettings, metrics: Metrics) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics

    async def respond(self, request: Request, values: object) -> Response:
        """The response to a body's values: an answer or a refusal, or a stream whose first event may be to come."""
        try:
            begun = await self._begun(request, values)
            if isinstance(begun, dict):
                return Response(json.dumps(begun), media_type="application/json")
            body, completion, answers = begun
            if completion.is_streamed:
                events = self._events(body, completion, answers)
                first = await unless_disconnected(request.receive, _first_unless_late(events, answers))
                return self.stream_type(first, events, {**completion.headers, **answers.headers})
            results = await unless_disconnected(request.receive, answers.whole())
            # In ASCII: the format in a request may hold halves of characters.
            text = json.dumps(self._whole(body, completion, answers, results), allow_nan=False)
            headers = {**completion.headers, **answers.headers}
            return Response(text, headers=headers, media_type="application/json")
        except (ClientDisconnectedError, ClientDisconnect):
            note_of(request.scope).leave()
            return Response(status_code=LEFT_STATUS)
        except Exception as error:
            return self._refusal(error)

    async def events(self, request: Request, values: object) -> AsyncGenerator[Json, None]:
        """What a stream tells that has begun before the model was there. Raises what keeps it from its end."""
        begun = await self._begun(request, values)
        if isinstance(begun, dict):
            yield begun
            return
        async with aclosing(self._events(*begun)) as events:
            async for event in events:
                yield event

    async def _begun(self, request: Request, values: object) -> "tuple[Body, CompletionRequest, CompletionRun] | Json":
        """A body, what it asks, and its answers being decoded; or what answers it directly. Raises what refuses it."""
        # Beside the event loop: what a stranger sends may take a while to read.
        body, completion = await asyncio.to_thread(self._read, values, request.scope.get("caller", ""))
        if not isinstance(completion, CompletionRequest):
            return completion
        answers, note = self._answers(completion), note_of(request.scope)
        note.usage, note.progress = answers.usage, answers.progress
        return body, completion.without_prompts(), answers

    def _read(self, values: object, caller: str = "") -> tuple[Body, CompletionRequest | Json]:
        """A body without what was read once, and what it asks of the engine, or what answers it directly."""
        body, left_out = self._decoded(values)
        direct = self._direct_answer(body)
        if direct is not None:
            return body.kept(), direct
        return body.kept(), self._checked_completion_request(body, caller).with_headers(left_out.headers)

    async def answer_whole(self, values: object) -> Json:
        """What a request that asks for no stream is answered with, without HTTP. Raises what keeps it from that."""
        body, _ = self._decoded(values)
        completion = self._checked_completion_request(body)
        body = body.kept()
        if completion.is_streamed:
            raise ApiError(400, "'stream' has no place here: leave it out.", "stream", "unsupported_parameter")
        answers = self._answers(completion)
        return self._whole(body, completion, answers, await answers.whole())

    def _decoded(self, values: object) -> tuple[Body, LeftOut]:
        """A body, and what it has without effect, which is counted. Raises ApiError."""
        left_out = LeftOut(self._settings.refused_fields)
        body = decode(values, self.body_type, left_out)
        for name in body.thought_fields() if self._tokenizer.thinking_tags is None else ():
            left_out.take(name, is_ignored=True)
            if left_out.refused == "all":
                raise without_effect(name)
        self._metrics.ignored_fields.count(left_out)
        return body, left_out

    def _checked_completion_request(self, body: Body, caller: str = "") -> CompletionRequest:
        """What a body asks. caller: as for `ServerSettings.salt`.

        Raises what `_completion_request` does, and ApiError for messages to a model without a chat template, and for
        more answers in a format than there ever is room for.
        """
        completion = self._completion_request(body)
        adapter = self._settings.adapter_named(getattr(body, "model", None) or self._settings.model_name)
        configs = [
            replace(
                config,
                cache_salt=self._settings.salt(caller, config.cache_salt),
                max_reasoning_tokens=self._reasoning_budget(prompt, config),
                adapter=adapter,
            )
            for prompt, config in zip(completion.prompts, completion.configs, strict=True)
        ]
        completion = replace(completion, configs=configs)
        if not self._tokenizer.has_chat_template and any(isinstance(each, Conversation) for each in completion.prompts):
            raise ApiError(
                400,
                f"This model has no chat template: send a plain prompt to {self.plain_path} instead of messages, or "
                "have it exported with one (`reader-edge export --chat-template`).",
            )
        num_enforced, most = sum(config.grammar is not None for config in completion.configs), self._engine.max_grammars
        if num_enforced > most:
            excess = f"'n' and prompts ask for {num_enforced} answers in a form, or with tools, together"
            raise ApiError(400, f"{excess}: 1 to {most} are given here.", "n")
        if self._engine.engine.is_greedy and not completion.names_temperature:
            return completion.greedy()
        return completion

    def _reasoning_budget(self, prompt: Encodable, config: GenerationConfig) -> int | None:
        args = prompt.template_args if isinstance(prompt, Conversation) else {}
        effort = None if _EFFORT in self._tokenizer.chat_source else args.get(_EFFORT)
        return self._settings.reasoning_budget(config.max_reasoning_tokens, effort, config.max_tokens)

    @classmethod
    async def read_values(cls, request: Request, settings: ServerSettings) -> object:
        """What a request's body says. Raises ApiError."""
        return await read_values(request, settings)

    @classmethod
    def check_unloaded(cls, values: object, model: "ServedModel", settings: ServerSettings) -> None:
        """Raise ApiError for what can be refused before its model is loaded: it is not worth the wait, nor the room."""
        decode(values, cls.body_type, LeftOut(settings.refused_fields))

    @classmethod
    def keep_s(cls, fields: Mapping[str, object]) -> float | None:
        """How long a body asks that its model stay loaded; None where it does not ask. Raises ApiError."""
        return None

    def _direct_answer(self, body: Body) -> Json | None:
        """What is answered without asking the engine; None where it decodes."""
        return None

    def _answers(self, completion: CompletionRequest) -> CompletionRun:
        return CompletionRun(self._engine, completion, self._metrics, self._settings.max_answer_s)

    def _refusal(self, error: Exception) -> Response:
        """How an error is worded."""
        return api_error(error).response()

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._engine.engine.tokenizer

    def _parser(self, completion: CompletionRequest) -> AnswerParser:
        """Of one answer, from its beginning on."""
        use, is_formatted = completion.use, completion.answer_format.grammar is not None
        if not use.tools:
            return AnswerParser()
        syntax = self._tokenizer.call_syntax
        grammars = (
            enforced_arguments(use, syntax) if any(config.grammar is not None for config in completion.configs) else {}
        )

        def compare(name: str, arguments: str) -> None:
            if name in grammars:
                self._engine.engine.compare(grammars[name], arguments)

        return AnswerParser(ToolCallParser(use, syntax, is_formatted), compare if grammars else None)

    @abstractmethod
    def _completion_request(self, body: Body) -> CompletionRequest:
        """What a body asks of the engine. Raises ApiError and ConfigError."""

    @abstractmethod
    def _whole(
        self, body: Body, completion: CompletionRequest, answers: CompletionRun, results: list[GenerationResult]
    ) -> Json:
        """The answers in one piece."""

    @abstractmethod
    def _events(self, body: Body, completion: CompletionRequest, answers: CompletionRun) -> AsyncGenerator[Json, None]:
        """What a stream tells, piece by piece."""


async def _first_unless_late(events: AsyncGenerator[Json, None], answers: CompletionRun) -> "asyncio.Future[Json]":
    """The first event; where it takes long, and nothing can be refused any more, while it is still awaited.

    Raises what keeps it from coming before.
    """
    first = asyncio.ensure_future(anext(events))
    try:
        while not first.done():
            await asyncio.wait((first,), timeout=event_stream.HEARTBEAT_S)
            if answers.is_begun:
                break
        if first.done():
            first.result()
        return first
    except BaseException:
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        raise
