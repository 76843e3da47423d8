"""What all endpoints have in common: a body in, a question to the engine, answers out; and those that give choices."""

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Generic, Protocol, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from reader_edge.server.answer_body import ChoicesBody
from reader_edge.server.answers import Answers
from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.contract import JsonObject, decode
from reader_edge.server.draft_spans import DraftSpans
from reader_edge.server.event_stream import EventStream, LeftError, unless_left
from reader_edge.server.json_body import read_values
from reader_edge.server.metrics import Metrics
from reader_edge.server.question import Json, Question
from reader_edge.server.settings import ServerSettings
from reader_edge.server.tool_calls import CallReader
from reader_edge_runtime import AsyncEngine, GenerationChunk, GenerationResult
from reader_edge_runtime.text.call_form import CallForm
from reader_edge_runtime.text.tokenizer import Tokenizer

_LEFT_STATUS = 499  # nginx's; nobody is there to read it
_FINISH_REASONS = {"stop": "stop", "length": "length", "context": "length"}

Body = TypeVar("Body", bound=JsonObject)
BodyOfChoices = TypeVar("BodyOfChoices", bound=ChoicesBody)


class Endpoint(ABC, Generic[Body]):
    """A route's handler. body_type: what it takes."""

    body_type: type[Body]

    def __init__(self, engine: AsyncEngine, settings: ServerSettings, metrics: Metrics) -> None:
        self._engine = engine
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        response = await self._respond(request)
        self._metrics.count_request(request.url.path, response.status_code)
        return response

    async def _respond(self, request: Request) -> Response:
        try:
            body = decode(await read_values(request, self._settings), self.body_type)
            question = self._checked_question(body)
            answers = self._answers(question)
            if question.is_streamed:
                events = self._events(body, question, answers)
                return self._stream(await unless_left(request.receive, anext(events)), events, question)
            results = await unless_left(request.receive, answers.whole())
            # In ASCII: what a request said of its form may hold halves of characters.
            text = json.dumps(self._whole(body, question, answers, results), allow_nan=False)
            return Response(text, headers=dict(question.headers), media_type="application/json")
        except (LeftError, ClientDisconnect):
            return Response(status_code=_LEFT_STATUS)
        except Exception as error:
            return self._refusal(error)

    async def answer_whole(self, values: object) -> Json:
        """What a request that asks for no stream is answered with, without HTTP. Raises what keeps it from that."""
        body = decode(values, self.body_type)
        question = self._checked_question(body)
        if question.is_streamed:
            raise ApiError(400, "'stream' has no place here: leave it out.", "stream", "unsupported_parameter")
        answers = self._answers(question)
        return self._whole(body, question, answers, await answers.whole())

    def _checked_question(self, body: Body) -> Question:
        """Raises what `_question` does, and ApiError for more answers in a form than there ever is room for."""
        question = self._question(body)
        num_held, most = sum(config.grammar is not None for config in question.configs), self._engine.max_grammars
        if num_held > most:
            asked = f"'n' and prompts ask for {num_held} answers in a form, or with tools, together"
            raise ApiError(400, f"{asked}: 1 to {most} are given here.", "n")
        return question

    def _answers(self, question: Question) -> Answers:
        return Answers(self._engine, question, self._metrics, self._settings.max_answer_s)

    def _stream(self, first: Json, events: AsyncGenerator[Json, None], question: Question) -> Response:
        """A response that tells events as they come."""
        return EventStream(first, events, question.headers)

    def _refusal(self, error: Exception) -> Response:
        """How an error is told."""
        return api_error(error).response()

    @property
    def _tokenizer(self) -> Tokenizer:
        return self._engine.engine.tokenizer

    @property
    def _call_form(self) -> CallForm:
        return self._tokenizer.call_form

    def _reader(self, question: Question) -> CallReader | None:
        return CallReader(question.use, self._call_form) if question.use.tools else None

    @abstractmethod
    def _question(self, body: Body) -> Question:
        """What a body asks of the engine. Raises ApiError and ConfigError."""

    @abstractmethod
    def _whole(self, body: Body, question: Question, answers: Answers, results: list[GenerationResult]) -> Json:
        """The answers in one piece."""

    @abstractmethod
    def _events(self, body: Body, question: Question, answers: Answers) -> AsyncGenerator[Json, None]:
        """What a stream tells, piece by piece."""


class Wording(Protocol):
    """How an endpoint that answers in choices words those.

    id_prefix: of an answer's name. whole_object, piece_object: what whole and streamed answers are called.
    """

    id_prefix: str
    whole_object: str
    piece_object: str

    def choice(self, index: int, result: GenerationResult, tokenizer: Tokenizer, calls: CallReader | None) -> Json:
        """A whole answer, without its end. calls: what finds them in it, where there may be any."""

    def piece(
        self, index: int, chunk: GenerationChunk, is_first: bool, tokenizer: Tokenizer, calls: CallReader | None
    ) -> Json:
        """A part of an answer, without its end. calls: what reads this answer, from its beginning on."""


class ChoicesEndpoint(Endpoint[BodyOfChoices]):
    """One that answers in choices."""

    wording: Wording

    def _question(self, body: BodyOfChoices) -> Question:
        return Question.of(body, self._settings, self._call_form)

    def _whole(
        self, body: BodyOfChoices, question: Question, answers: Answers, results: list[GenerationResult]
    ) -> Json:
        choices = [self._choice(question, number, result) for number, result in enumerate(results)]
        return self._head(self.wording.whole_object) | {"choices": choices, "usage": answers.usage()}

    async def _events(self, body: BodyOfChoices, question: Question, answers: Answers) -> AsyncGenerator[Json, None]:
        head, options = self._head(self.wording.piece_object), body.stream_options
        begun: set[int] = set()
        readers = [self._reader(question) for _ in question.prompts]
        spans = [DraftSpans(self._tokenizer) for _ in question.prompts]
        async for number, chunk in answers.pieces():
            is_first = number not in begun
            sources = {"draft_sources": spans[number].push(chunk)} if options.include_sources else {}
            begun.add(number)
            if is_first or chunk.text or chunk.logprobs or chunk.finish_reason is not None:
                event = head | {"choices": [self._piece(number, chunk, is_first, readers[number]) | sources]}
                yield event | {"usage": None} if options.include_usage else event
        if options.include_usage:
            yield head | {"choices": [], "usage": answers.usage()}

    def _choice(self, question: Question, number: int, result: GenerationResult) -> Json:
        reader = self._reader(question)
        choice = self.wording.choice(number, result, self._tokenizer, reader)
        return choice | {"finish_reason": _finish_reason(result.finish_reason, reader)}

    def _piece(self, number: int, chunk: GenerationChunk, is_first: bool, reader: CallReader | None) -> Json:
        piece = self.wording.piece(number, chunk, is_first, self._tokenizer, reader)
        return piece | {"finish_reason": _finish_reason(chunk.finish_reason, reader)}

    def _head(self, kind: str) -> Json:
        name = self.wording.id_prefix + secrets.token_hex(12)
        return {"id": name, "object": kind, "created": int(time.time()), "model": self._settings.model_name}


def _finish_reason(reason: str | None, reader: CallReader | None) -> str | None:
    if reason == "stop" and reader is not None and reader.num_calls:
        return "tool_calls"
    return None if reason is None else _FINISH_REASONS[reason]
