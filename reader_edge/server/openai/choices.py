"""What chats and completions have in common: answers in choices, whole or piece by piece."""

import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator
from typing import Protocol, TypeVar

from reader_edge.server.completion_request import CompletionRequest, Json
from reader_edge.server.completion_run import CompletionRun
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.openai.generation_body import ChoicesBody
from reader_edge.server.openai.token_fields import DraftSpans
from reader_edge_runtime import GenerationChunk, GenerationResult

_FINISH_REASONS = {"stop": "stop", "length": "length", "context": "length"}

BodyOfChoices = TypeVar("BodyOfChoices", bound=ChoicesBody)


class ChoiceWording(Protocol):
    """How one choice is worded, without its number and end. has_calls: whether it called tools, and no call was cut."""

    @property
    def has_calls(self) -> bool: ...

    def choice(self, result: GenerationResult) -> Json:
        """A whole answer."""

    def piece(self, chunk: GenerationChunk, is_first: bool) -> Json:
        """The next part of an answer."""


class ChoicesEndpoint(Endpoint[BodyOfChoices]):
    """One that answers in choices.

    id_prefix: of an answer's name. whole_object, piece_object: what whole and streamed answers are called.
    """

    id_prefix: str
    whole_object: str
    piece_object: str

    def _completion_request(self, body: BodyOfChoices) -> CompletionRequest:
        return body.completion_request(self._settings, self._tokenizer.call_form, self._engine.engine.sampling)

    @abstractmethod
    def _wording(
        self, body: BodyOfChoices, completion: CompletionRequest, answers: CompletionRun, number: int
    ) -> ChoiceWording:
        """What words a choice, from its beginning on."""

    def _whole(
        self,
        body: BodyOfChoices,
        completion: CompletionRequest,
        answers: CompletionRun,
        results: list[GenerationResult],
    ) -> Json:
        choices = []
        for number, result in enumerate(results):
            wording = self._wording(body, completion, answers, number)
            choice = {"index": number, **wording.choice(result)}
            choices.append(choice | {"finish_reason": _finish_reason(result.finish_reason, wording)})
        return self._head(self.whole_object) | {"choices": choices, "usage": answers.usage()}

    async def _events(
        self, body: BodyOfChoices, completion: CompletionRequest, answers: CompletionRun
    ) -> AsyncGenerator[Json, None]:
        head, options = self._head(self.piece_object), body.stream_options
        wordings: dict[int, ChoiceWording] = {}
        spans = [DraftSpans(self._tokenizer) for _ in completion.prompts]
        async for number, chunk in answers.pieces():
            is_first = number not in wordings
            if is_first:
                wordings[number] = self._wording(body, completion, answers, number)
            piece = wordings[number].piece(chunk, is_first)
            sources = {"draft_sources": spans[number].push(chunk)} if options.include_sources else {}
            if is_first or chunk.text or chunk.reasoning or chunk.logprobs or chunk.finish_reason is not None:
                end: Json = {"finish_reason": _finish_reason(chunk.finish_reason, wordings[number])}
                if chunk.deviation:  # told to those who ask for no usage, too
                    end["deviation"] = chunk.deviation
                event = head | {"choices": [{"index": number, **piece, **sources, **end}]}
                if options.continuous_usage_stats:
                    event |= {"usage": answers.usage()}
                elif options.include_usage:
                    event |= {"usage": None}
                yield event
        if options.include_usage:
            yield head | {"choices": [], "usage": answers.usage()}

    def _head(self, kind: str) -> Json:
        name = self.id_prefix + secrets.token_hex(12)
        return {"id": name, "object": kind, "created": int(time.time()), "model": self._settings.model_name}


def _finish_reason(reason: str | None, wording: ChoiceWording) -> str | None:
    if reason == "stop" and wording.has_calls:
        return "tool_calls"
    return None if reason is None else _FINISH_REASONS[reason]
