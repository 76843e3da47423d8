"""What chats and completions share: choices, and log-probabilities of single tokens."""

import math
import secrets
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Protocol, TypeVar

from reader_edge.server.completion import CompletionRequest, CompletionRun, Json
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.openai.generation_body import ChoicesBody
from reader_edge.terminal.draft_spans import DraftSpans
from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.text.tokenizer import Tokenizer

_FINISH_REASONS = {"stop": "stop", "length": "length", "context": "length"}

BodyOfChoices = TypeVar("BodyOfChoices", bound=ChoicesBody)

Answered = GenerationChunk | GenerationResult


class ChoiceFormatter(Protocol):
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
        return body.completion_request(self._settings, self._tokenizer.call_syntax, self._engine.engine.sampling)

    @abstractmethod
    def _formatter(
        self, body: BodyOfChoices, completion: CompletionRequest, answers: CompletionRun, number: int
    ) -> ChoiceFormatter:
        """What words a choice, from its beginning on."""

    def _whole(
        self,
        body: BodyOfChoices,
        completion: CompletionRequest,
        answers: CompletionRun,
        results: list[GenerationResult],
    ) -> Json:
        choices: list[Json] = []
        for number in _best(results, completion.num_choices, body.n):
            result, formatter = results[number], self._formatter(body, completion, answers, number)
            choice = {"index": len(choices), **formatter.choice(result)}
            choices.append(choice | {"finish_reason": _finish_reason(result.finish_reason, formatter)})
        return self._head(self.whole_object, completion) | {"choices": choices, "usage": answers.usage()}

    async def _events(
        self, body: BodyOfChoices, completion: CompletionRequest, answers: CompletionRun
    ) -> AsyncGenerator[Json, None]:
        head, options = self._head(self.piece_object, completion), body.stream_options
        formatters: dict[int, ChoiceFormatter] = {}
        spans = [DraftSpans(self._tokenizer) for _ in completion.prompts]
        async for number, chunk in answers.pieces():
            is_first = number not in formatters
            if is_first:
                formatters[number] = self._formatter(body, completion, answers, number)
            piece = formatters[number].piece(chunk, is_first)
            sources = {"draft_sources": spans[number].push(chunk)} if options.include_sources else {}
            if is_first or chunk.text or chunk.reasoning or chunk.logprobs or chunk.finish_reason is not None:
                end: Json = {"finish_reason": _finish_reason(chunk.finish_reason, formatters[number])}
                if chunk.deviation:  # sent to those who ask for no usage, too
                    end["deviation"] = chunk.deviation
                event = head | {"choices": [{"index": number, **piece, **sources, **end}]}
                if options.continuous_usage_stats:
                    event |= {"usage": answers.usage()}
                elif options.include_usage:
                    event |= {"usage": None}
                yield event
        if options.include_usage:
            yield head | {"choices": [], "usage": answers.usage()}

    def _head(self, kind: str, completion: CompletionRequest) -> Json:
        name, model = self.id_prefix + secrets.token_hex(12), completion.adapter or self._settings.model_name
        return {"id": name, "object": kind, "created": int(time.time()), "model": model}


def _best(results: list[GenerationResult], num_choices: int, most: int) -> Iterator[int]:
    """The answers to each prompt whose tokens are the likeliest in the mean, in that order; all where all are wanted.

    num_choices: to each prompt, one after the other. most: of them, that are wanted.
    """
    for start in range(0, len(results), num_choices):
        numbers: Iterable[int] = range(start, start + num_choices)
        if num_choices > most:
            numbers = sorted(numbers, key=lambda number: results[number].stats.perplexity or math.inf)[:most]
        yield from numbers


def _finish_reason(reason: str | None, formatter: ChoiceFormatter) -> str | None:
    if reason == "stop" and formatter.has_calls:
        return "tool_calls"
    return None if reason is None else _FINISH_REASONS[reason]


def chat_logprobs(answered: Answered, tokenizer: Tokenizer) -> Json | None:
    """None where they were not requested."""
    if not answered.logprobs:
        return None
    content = []
    for token_id, each in zip(answered.token_ids, answered.logprobs, strict=True):
        if tokenizer.token(token_id) is not None:  # the end of an answer has no text
            top = [_fields(other, logprob, tokenizer) for other, logprob in each.top]
            content.append(_fields(token_id, each.logprob, tokenizer) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _fields(token_id: int, logprob: float, tokenizer: Tokenizer) -> Json:
    spelled = tokenizer.token_bytes(token_id)
    return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}
