"""Completion requests, their choices being decoded, and the parts of an answer: thoughts, text and calls."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from reader_edge.server.api_error import ApiError, no_model
from reader_edge.server.metrics import Metrics
from reader_edge.server.settings import LEFT_OUT_HEADER, ServerSettings
from reader_edge.server.structured_outputs import RequestedFormat
from reader_edge_runtime import (
    AsyncEngine,
    GenerationChunk,
    GenerationConfig,
    GenerationResult,
    GenerationStats,
    SamplingConfig,
)
from reader_edge_runtime.errors import ClosedError
from reader_edge_runtime.text.conversation import Conversation, Encodable
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.text.tool_calls.call_parser import ToolCallParser
from reader_edge_runtime.text.tool_calls.tool_use import AnswerDelta, ToolUse

Json = dict[str, object]
SEED_HEADER = "X-Seed"

NO_FIM = "the model here has no fill-in-the-middle tokens: ask one that has, as Qwen2.5-Coder."
_MAX_LEFT_OUT = 16  # parts of a schema that a header names

THOUGHT = -2  # in place of a call's number: what the model thinks before it answers


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """prompts, configs: of each choice. num_choices: to each prompt, one after the other. use: of tools.

    answer_format: of all answers. is_answer_hidden: whether the prompt alone is returned, since no token is requested.
    priority: as of a request. names_temperature: whether it says one itself. headers: what the answer's say besides the
    usual.
    """

    prompts: Sequence[Encodable]
    configs: Sequence[GenerationConfig]
    num_choices: int = 1
    use: ToolUse = field(default_factory=ToolUse)
    answer_format: RequestedFormat = field(default_factory=RequestedFormat)
    is_streamed: bool = False
    is_answer_hidden: bool = False
    priority: int = 0
    names_temperature: bool = True
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def adapter(self) -> str | None:
        """The name of the adapter that gives all answers, if any does."""
        return self.configs[0].adapter

    def without_prompts(self) -> "CompletionRequest":
        """The same without conversations, which nobody needs once they are encoded."""
        return replace(self, prompts=["" if isinstance(each, Conversation) else each for each in self.prompts])

    def with_headers(self, headers: Mapping[str, str]) -> "CompletionRequest":
        """The same with further headers of its answer."""
        return replace(self, headers={**self.headers, **headers})

    def filling_in(self, tokenizer: Tokenizer, suffix: str) -> "CompletionRequest":
        """The same for what stands between each prompt, a text, and the suffix. Raises ApiError and PromptError."""
        form = tokenizer.fill_in_middle
        if form is None:
            raise ApiError(400, f"'suffix' is given, but {NO_FIM}", "suffix", "unsupported_parameter")
        if not all(isinstance(each, str) for each in self.prompts):
            raise ApiError(400, "'suffix' stands beside prompts that are texts: give 'prompt' as one.", "suffix")
        encoded = {each: tokenizer.encode_infill(str(each), suffix) for each in set(map(str, self.prompts))}
        configs = [
            replace(each, stop_token_ids=(*each.stop_token_ids, *form.end_ids), splits_thinking=False)
            for each in self.configs
        ]
        return replace(self, prompts=[encoded[str(each)] for each in self.prompts], configs=configs)

    def greedy(self) -> "CompletionRequest":
        """The same at temperature 0."""
        configs = [replace(each, sampling=replace(sampling_of(each), temperature=0.0)) for each in self.configs]
        headers = {name: value for name, value in self.headers.items() if name != SEED_HEADER}
        return replace(self, configs=configs, headers=headers)


def check_model(name: str, settings: ServerSettings) -> None:
    """Raise ApiError unless it is the model that is served."""
    if not name:
        raise ApiError(400, f"'model' is missing: ask for {settings.model_name!r}.", "model")
    if not settings.is_served(name):
        raise no_model(name, *settings.names)


def with_next_seed(config: GenerationConfig, distance: int) -> GenerationConfig:
    """The config of a further choice: the same, its random numbers others."""
    sampling = sampling_of(config)
    return replace(config, sampling=replace(sampling, seed=(sampling.seed + distance) % 2**64))


def seed_headers(config: GenerationConfig) -> dict[str, str]:
    """What tells the seed of a first choice whose tokens are drawn; those of further choices follow it."""
    sampling = sampling_of(config)
    return {SEED_HEADER: str(sampling.seed)} if sampling.temperature else {}


def sampling_of(config: GenerationConfig) -> SamplingConfig:
    """How tokens are chosen, which every request's config says."""
    assert config.sampling is not None
    return config.sampling


class CompletionRun:
    """All choices of a request, decoded together; leaving them gives them up. start_s: when the request came.

    max_at_once: choices that are decoded together, so that many more may be requested; None for all.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        completion: CompletionRequest,
        metrics: Metrics,
        max_s: float,
        max_at_once: int | None = None,
    ) -> None:
        paired = zip(completion.prompts, completion.configs, strict=True)
        self._streams = [engine.stream(prompt, config, completion.priority) for prompt, config in paired]
        self.start_s = time.monotonic()
        self._completion_request = completion.without_prompts()
        self._metrics = metrics
        self._max_s = max_s
        self._max_at_once = max_at_once
        self._stats: dict[int, GenerationStats] = {}
        self._deviation: dict[int, Mapping[str, object]] = {}  # of a lossy engine's answers

    async def pieces(self) -> AsyncGenerator[tuple[int, GenerationChunk], None]:
        """Chunks with the numbers of their choices, once all of them were taken in: a request is refused whole.

        Raises what keeps any of them from its end, a time limit too.
        """
        start, came = time.monotonic(), list[tuple[int, GenerationChunk]]()
        numbers = iter(range(len(self._streams)))
        pending = {
            asyncio.ensure_future(anext(self._streams[number])): number for number in islice(numbers, self._max_at_once)
        }
        times = [start] * len(self._streams)
        try:
            while pending:
                left_s = start + self._max_s - time.monotonic()
                done, _ = await asyncio.wait(pending, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise ApiError(
                        504,
                        f"The answer takes longer than {self._max_s:g} seconds: ask for fewer tokens.",
                        code="timeout",
                    )
                for task in sorted(done, key=pending.__getitem__):
                    number, chunk = pending.pop(task), task.result()
                    now = time.monotonic()
                    self._take(number, chunk, now - times[number], is_first=times[number] == start)
                    times[number] = now
                    came.append((number, chunk))
                    following = number if chunk.finish_reason is None else next(numbers, None)
                    if following is not None:
                        pending[asyncio.ensure_future(anext(self._streams[following]))] = following
                if all(stream.prompt_token_ids for stream in self._streams[: self._max_at_once]):
                    for each in came:
                        yield each
                    came.clear()
        finally:
            for task in pending:
                task.cancel()
            for stream in self._streams:
                stream.give_up()
            await asyncio.gather(*pending, return_exceptions=True)
            self._count_deviation()

    async def whole(self) -> list[GenerationResult]:
        """The answers to their ends. Raises what `pieces` does."""
        chunks: list[list[GenerationChunk]] = [[] for _ in self._streams]
        async for number, chunk in self.pieces():
            chunks[number].append(chunk)
        return [GenerationResult.of_chunks(each) for each in chunks]

    def usage(self) -> Json:
        """Tokens counted so far. A prompt counts once, however many choices it has."""
        running = {number: stream.stats for number, stream in enumerate(self._streams) if stream.stats is not None}
        every = running | self._stats
        first = [stats for number, stats in every.items() if number % self._completion_request.num_choices == 0]
        total = GenerationStats.total(every.values())
        num_tokens = 0 if self._completion_request.is_answer_hidden else total.num_tokens
        num_prompt_tokens = sum(stats.num_prompt_tokens for stats in first)
        deviation = [self._deviation[number] for number in sorted(self._deviation)]
        return ({"deviation": deviation} if deviation else {}) | {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
            "prompt_tokens_details": {
                "cached_tokens": sum(stats.num_reused_tokens for stats in first),
                "cache_write_tokens": 0,  # which responses must have: of those that would have a price
            },
            "completion_tokens_details": {
                "reasoning_tokens": total.num_reasoning_tokens,
                "accepted_prediction_tokens": total.num_accepted_tokens,
                "rejected_prediction_tokens": total.num_drafted_tokens - total.num_accepted_tokens,
            },
        }

    @property
    def is_begun(self) -> bool:
        """Whether all choices were taken in, so that no refusal is to come, and the headers are known."""
        return all(stream.prompt_token_ids for stream in self._streams)

    def progress(self) -> Json:
        """How much of the prompts was read, in the words of llama.cpp's server; {} where all of it was.

        Of choices to the same prompt the first counts. "left_ms": what the rest takes by the passes so far.
        """
        first = self._streams[:: self._completion_request.num_choices]
        total = sum(len(stream.prompt_token_ids) for stream in first)
        processed = sum(stream.num_read_tokens for stream in first)
        if total == processed:
            return {}
        stats = [stream.stats for stream in first if stream.stats is not None]
        cached, read_s = sum(each.num_reused_tokens for each in stats), sum(each.prefill_s for each in stats)
        time_ms = int((time.monotonic() - self.start_s) * 1000)
        progress = {"total": total, "cache": cached, "processed": processed, "time_ms": time_ms}
        if processed > cached and read_s:
            progress["left_ms"] = int((total - processed) * read_s / (processed - cached) * 1000)
        return {"prompt_progress": progress}

    @property
    def headers(self) -> dict[str, str]:
        """What tells the parts of schemas that the answers are not held to, once they have begun."""
        left_out = dict.fromkeys(part for stream in self._streams for part in stream.left_out)
        return {LEFT_OUT_HEADER: json.dumps(list(left_out)[:_MAX_LEFT_OUT])} if left_out else {}

    def prompt_token_ids(self, number: int) -> Sequence[int]:
        """The prompt of a choice that has begun."""
        return self._streams[number].prompt_token_ids

    def _count_deviation(self) -> None:
        """Count what was decoded of answers that nobody waits for any more."""
        for number, stream in enumerate(self._streams):
            if number not in self._stats and stream.stats is not None and stream.stats.prefill_s:
                self._metrics.count_answer(stream.stats)

    def _take(self, number: int, chunk: GenerationChunk, seconds: float, is_first: bool) -> None:
        """Count a chunk that came so long after the one before. Raises the error that ended its request."""
        if chunk.stats is not None:
            self._stats[number] = chunk.stats
            self._metrics.count_answer(chunk.stats)
        if chunk.deviation:
            self._deviation[number] = chunk.deviation
        if chunk.error is not None:
            raise chunk.error
        if chunk.finish_reason == "cancelled":
            raise ClosedError("The engine was closed during an answer.")
        self._metrics.time_tokens(seconds, len(chunk.token_ids), is_first)


class AnswerParser:
    """Takes one answer apart. calls: what finds calls in its text, where there may be any.

    compare: gets the name and the arguments of each call of an answer that came to its end.
    """

    def __init__(
        self, calls: ToolCallParser | None = None, compare: Callable[[str, str], object] | None = None
    ) -> None:
        self._calls = calls
        self._compare = compare
        self._called: dict[int, tuple[str, str]] = {}

    @property
    def num_calls(self) -> int:
        """Calls of tools that were found so far."""
        return 0 if self._calls is None else self._calls.num_calls

    @property
    def is_inside_call(self) -> bool:
        """Whether a call was begun whose arguments have not ended, as where a stop cuts them."""
        return self._calls is not None and self._calls.is_inside_call

    def push(self, answered: GenerationChunk | GenerationResult) -> list[AnswerDelta]:
        """What a further piece says, or the whole answer."""
        text = answered.text
        deltas = (
            [AnswerDelta(text)] if self._calls is None else self._calls.push(text, answered.finish_reason is not None)
        )
        if self._compare is not None:
            self._follow(deltas, self._compare if answered.finish_reason == "stop" else None)
        return [
            each for each in (AnswerDelta(answered.reasoning, THOUGHT), *deltas) if each.text or each.name is not None
        ]

    def _follow(self, pieces: list[AnswerDelta], compare: Callable[[str, str], object] | None) -> None:
        """Put calls together; compare: for the last time."""
        for piece in pieces:
            if piece.call >= 0:
                name, arguments = self._called.get(piece.call, ("", ""))
                self._called[piece.call] = piece.name or name, arguments + piece.text
        if compare is not None and not self.is_inside_call:
            for name, arguments in self._called.values():
                compare(name, arguments)


def text_in(deltas: list[AnswerDelta], call: int = -1) -> str:
    """The text of the answer, or what was thought, among pieces."""
    return "".join(each.text for each in deltas if each.call == call)
