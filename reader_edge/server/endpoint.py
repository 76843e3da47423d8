"""What `/v1/chat/completions`, `/v1/completions` and `/v1/responses` have in common: a question in, answers out."""

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from reader_edge.server.answers import Answers
from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.draft_spans import DraftSpans
from reader_edge.server.event_stream import EventStream, LeftError, unless_left
from reader_edge.server.fields import Fields
from reader_edge.server.json_body import read_fields
from reader_edge.server.metrics import Metrics
from reader_edge.server.question import Json, Question, QuestionWording, Wording
from reader_edge.server.settings import ServerSettings
from reader_edge.server.tool_calls import CallReader
from reader_edge_runtime import AsyncEngine, GenerationChunk, GenerationResult
from reader_edge_runtime.text.call_form import CallForm

_LEFT_STATUS = 499  # nginx's; nobody is there to read it
_FINISH_REASONS = {"stop": "stop", "length": "length", "context": "length"}


class Endpoint(ABC):
    """A route's handler. has_named_events: whether events of a stream tell their types beside them."""

    has_named_events = False

    def __init__(
        self, reading: QuestionWording, engine: AsyncEngine, settings: ServerSettings, metrics: Metrics
    ) -> None:
        self._reading = reading
        self._engine = engine
        self._settings = settings
        self._metrics = metrics

    async def __call__(self, request: Request) -> Response:
        response = await self._respond(request)
        self._metrics.count_request(request.url.path, response.status_code)
        return response

    async def _respond(self, request: Request) -> Response:
        try:
            fields = await read_fields(request, self._settings)
            question = self._question(fields)
            answers = Answers(self._engine, question, self._metrics, self._settings.max_answer_s)
            if question.is_streamed:
                events = self._events(question, answers)
                return EventStream(await unless_left(request.receive, anext(events)), events, self.has_named_events)
            results = await unless_left(request.receive, answers.whole())
            # In ASCII: what a request said of its form may hold halves of characters.
            body = json.dumps(self._whole(question, answers, results), allow_nan=False)
            return Response(body, media_type="application/json")
        except (LeftError, ClientDisconnect):
            return Response(status_code=_LEFT_STATUS)
        except Exception as error:
            return api_error(error).response()

    def _question(self, fields: Fields) -> Question:
        """Raises what `Question.read` does, and ApiError for more answers in a form than there ever is room for."""
        question = Question.read(fields, self._reading, self._settings, self._call_form)
        num_held, most = sum(config.grammar is not None for config in question.configs), self._engine.max_grammars
        if num_held > most:
            asked = f"'n' and prompts ask for {num_held} answers in a form, or with tools, together"
            raise ApiError(400, f"{asked}: 1 to {most} are given here.", "n")
        return question

    @property
    def _call_form(self) -> CallForm:
        return self._engine.engine.tokenizer.call_form

    def _reader(self, question: Question) -> CallReader | None:
        return CallReader(question.use, self._call_form) if question.use.tools else None

    async def answer_whole(self, fields: Fields) -> Json:
        """What a request that asks for no stream is answered with, without HTTP. Raises what keeps it from that."""
        question = self._question(fields)
        if question.is_streamed:
            raise ApiError(400, "'stream' has no place here: leave it out.", "stream", "unsupported_parameter")
        answers = Answers(self._engine, question, self._metrics, self._settings.max_answer_s)
        return self._whole(question, answers, await answers.whole())

    @abstractmethod
    def _whole(self, question: Question, answers: Answers, results: list[GenerationResult]) -> Json:
        """The answers in one piece."""

    @abstractmethod
    def _events(self, question: Question, answers: Answers) -> AsyncGenerator[Json, None]:
        """What a stream tells, piece by piece."""


class ChoicesEndpoint(Endpoint):
    """One that answers in choices."""

    def __init__(self, wording: Wording, engine: AsyncEngine, settings: ServerSettings, metrics: Metrics) -> None:
        super().__init__(wording, engine, settings, metrics)
        self._wording = wording

    def _whole(self, question: Question, answers: Answers, results: list[GenerationResult]) -> Json:
        choices = [self._choice(question, number, result) for number, result in enumerate(results)]
        return self._head(self._wording.whole_object) | {"choices": choices, "usage": answers.usage()}

    async def _events(self, question: Question, answers: Answers) -> AsyncGenerator[Json, None]:
        head = self._head(self._wording.piece_object)
        begun: set[int] = set()
        readers = [self._reader(question) for _ in question.prompts]
        spans = [DraftSpans(self._engine.engine.tokenizer) for _ in question.prompts]
        async for number, chunk in answers.pieces():
            is_first = number not in begun
            sources = {"draft_sources": spans[number].push(chunk)} if question.includes_sources else {}
            begun.add(number)
            if is_first or chunk.text or chunk.logprobs or chunk.finish_reason is not None:
                event = head | {"choices": [self._piece(number, chunk, is_first, readers[number]) | sources]}
                yield event | {"usage": None} if question.includes_usage else event
        if question.includes_usage:
            yield head | {"choices": [], "usage": answers.usage()}

    def _choice(self, question: Question, number: int, result: GenerationResult) -> Json:
        reader = self._reader(question)
        choice = self._wording.choice(number, result, self._engine.engine.tokenizer, reader)
        return choice | {"finish_reason": _finish_reason(result.finish_reason, reader)}

    def _piece(self, number: int, chunk: GenerationChunk, is_first: bool, reader: CallReader | None) -> Json:
        piece = self._wording.piece(number, chunk, is_first, self._engine.engine.tokenizer, reader)
        return piece | {"finish_reason": _finish_reason(chunk.finish_reason, reader)}

    def _head(self, kind: str) -> Json:
        name = self._wording.id_prefix + secrets.token_hex(12)
        return {"id": name, "object": kind, "created": int(time.time()), "model": self._settings.model_name}


def _finish_reason(reason: str | None, reader: CallReader | None) -> str | None:
    if reason == "stop" and reader is not None and reader.num_calls:
        return "tool_calls"
    return None if reason is None else _FINISH_REASONS[reason]
