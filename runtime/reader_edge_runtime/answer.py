"""An answer while it is generated: its request's tokens, and the text that no later token can change."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from reader_edge_runtime.adapters.adapter_set import LoadedAdapter
from reader_edge_runtime.config import GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.decoding.prompt_images import EncodedImage
from reader_edge_runtime.decoding.request import FinishReason, Request
from reader_edge_runtime.decoding.sampling.constraint import Constraint
from reader_edge_runtime.decoding.sampling.sampler import TokenLogprob
from reader_edge_runtime.drafting.draft_hints import NO_HINTS, DraftHints
from reader_edge_runtime.errors import AnswerError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.conversation import Message, Tool
from reader_edge_runtime.text.output_format import OutputFormat
from reader_edge_runtime.text.text_stream import TextStream
from reader_edge_runtime.text.thinking import ThinkingReader
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.text.tool_calls.call_parser import called_tools
from reader_edge_runtime.text.tool_calls.call_syntax import CallSyntax
from reader_edge_runtime.text.tool_calls.tool_use import ToolCall

_SHOWN = 60  # characters of a text


class Usage(NamedTuple):
    """Tokens of a prompt and its answer. cached_tokens: of the prompt, those that were in the KV cache already."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What an answer's text is to be read as: JSON of a schema, and calls of these tools."""

    grammar: Grammar | None = None
    tools: Sequence[Tool] = ()
    call_syntax: CallSyntax | None = None


@dataclass(frozen=True)
class GenerationResult:
    """A whole answer, or what came before its request failed.

    text: what the model wrote, calls of tools included.
    token_ids: as emitted, an end token included, which text leaves out.
    error: what failed, if finish_reason is "error".
    logprobs: one for each of token_ids, if the config requests them.
    prompt_logprobs: one for each token of the prompt, None for the first, if the config requests them.
    reasoning: what the model thought, if the config splits it off.
    deviation: how far a rule that is not exact left the model's own choices; {} for one that is.
    sampling: how the tokens were chosen; with its seed the answer can be repeated.
    left_out: the parts of a lenient schema that the answer was not held to.
    stop_string: which of the config's ended the answer; "" where none did.
    answer_format: what the text is to be read as.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: GenerationStats
    error: Exception | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    reasoning: str = ""
    deviation: Mapping[str, object] = field(default_factory=dict)
    sampling: SamplingConfig | None = None
    left_out: tuple[str, ...] = ()
    stop_string: str = ""
    answer_format: AnswerFormat = field(default=AnswerFormat(), compare=False)

    @classmethod
    def of_chunks(cls, chunks: Sequence["GenerationChunk"]) -> "GenerationResult":
        """The answer that came in these chunks; the last of them ended it."""
        last = chunks[-1]
        if last.result is not None:
            return last.result
        assert last.finish_reason is not None
        assert last.stats is not None
        return cls(
            "".join(chunk.text for chunk in chunks),
            tuple(token_id for chunk in chunks for token_id in chunk.token_ids),
            last.finish_reason,
            last.stats,
            last.error,
            tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
            tuple(logprob for chunk in chunks for logprob in chunk.prompt_logprobs),
            "".join(chunk.reasoning for chunk in chunks),
            last.deviation,
            last.sampling,
            last.left_out,
            last.stop_string,
        )

    @property
    def usage(self) -> Usage:
        """Tokens, in the words of OpenAI's clients."""
        return Usage(self.stats.num_prompt_tokens, self.stats.num_tokens, self.stats.num_reused_tokens)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the tools that were declared, in the text's order."""
        return self._read_calls[1]

    @property
    def message(self) -> Message:
        """The answer as a message, to go on with the conversation."""
        text, calls = self._read_calls
        message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        return message | ({"tool_calls": [call.message for call in calls]} if calls else {})

    @cached_property
    def parsed(self) -> Any:
        """The answer to a schema as an object of its class, or as JSON is read; None where there was no schema.

        Raises AnswerError where the answer was cut, or is nothing that its class takes.
        """
        grammar = self.answer_format.grammar
        return None if grammar is None or grammar.kind != "json_schema" else _parsed(self, grammar.model)

    @cached_property
    def _read_calls(self) -> tuple[str, tuple[ToolCall, ...]]:
        tools, syntax = self.answer_format.tools, self.answer_format.call_syntax
        return (self.text, ()) if syntax is None else called_tools(self.text, tools, syntax)

    def __repr__(self) -> str:
        return f"GenerationResult({_shown(self.text)}, {len(self.token_ids)} tokens, {self.finish_reason!r})"


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """A piece of an answer: text that is certain, and the tokens emitted since the last chunk.

    text: empty in the last chunk if nothing is left.
    finish_reason, stats: only in the last chunk.
    error: only in the last chunk of a request that failed.
    logprobs: one for each of token_ids, if the config requests them.
    sources: the source that drafted each of token_ids, "" for tokens that were not drafted.
    prompt_logprobs: one for each token of the prompt, None for the first; in the first chunk that has tokens, if the
        config requests them.
    reasoning: what the model thinks, if the config splits it off.
    deviation: only in the last chunk: how far a rule that is not exact left the model's own choices; else {}.
    sampling: only in the last chunk: how the tokens were chosen; with its seed the answer can be repeated.
    left_out: only in the last chunk: the parts of a lenient schema that the answer was not held to.
    stop_string: only in the last chunk: which of the config's ended the answer; "" where none did.
    result: only in the last chunk: the whole answer.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stats: GenerationStats | None = None
    error: Exception | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    sources: tuple[str, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    reasoning: str = ""
    deviation: Mapping[str, object] = field(default_factory=dict)
    sampling: SamplingConfig | None = None
    left_out: tuple[str, ...] = ()
    stop_string: str = ""
    result: GenerationResult | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        end = "" if self.finish_reason is None else f", {self.finish_reason!r}"
        return f"GenerationChunk({_shown(self.text)}, {len(self.token_ids)} tokens{end})"


class Answer:
    """A request, and its text beside its tokens. Raises PromptError or ConfigError for what can be no request."""

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        config: GenerationConfig,
        manifest: Manifest,
        tokenizer: Tokenizer,
        constraint: Constraint | None = None,
        hints: DraftHints = NO_HINTS,
        reading: OutputFormat | None = None,
        left_out: tuple[str, ...] = (),
        images: Sequence[EncodedImage] = (),
        adapter: LoadedAdapter | None = None,
    ) -> None:
        """reading: how tokens become text; by default special tokens are left out, and nothing is split off.

        left_out: the parts of a lenient schema that the answer is not held to. images: of the prompt, in its order.
        adapter: as of a `Request`.
        """
        self.left_out = left_out
        reading, settings = reading or OutputFormat(), (prompt_token_ids, config, manifest, self._push)
        self.request = Request(*settings, constraint=constraint, hints=hints, images=images, adapter=adapter)
        self._stream = TextStream(tokenizer, self.request.drafted_ids, config.stop, reading.kept)
        kept_ends = reading.kept.keys() - set(config.stop_token_ids)
        self._left_out = self.request.stop_token_ids - kept_ends  # of the text
        self._thinking = reading.reader()
        self._reasoning, self._text = "", ""  # what was read of the stream, and not taken yet
        self._num_taken = 0
        self._taken: list[GenerationChunk] = []
        self._grammar, self._tools, self._tokenizer = config.grammar, reading.tools, tokenizer

    def take(self) -> GenerationChunk | None:
        """What was emitted since the last chunk, and how it ended if it did; None where there is nothing new yet."""
        request, first = self.request, self._num_taken
        token_ids = tuple(request.output_token_ids[first:])
        logprobs = tuple(request.logprobs[first : first + len(token_ids)])
        drafted = tuple(request.sources[first : first + len(token_ids)])
        sources = drafted + ("",) * (len(token_ids) - len(drafted))
        prompt_logprobs = tuple(request.prompt_logprobs) if token_ids and not first else ()
        self._num_taken += len(token_ids)
        is_last = not request.is_running
        if is_last:
            self._stream.finish()
        elif not token_ids:
            return None
        reasoning, text = self._take_text(is_last)
        chunk = GenerationChunk(text, token_ids, None, None, None, logprobs, sources, prompt_logprobs, reasoning)
        self._taken.append(chunk)
        if not is_last:
            return chunk
        deviation = request.acceptance.report(request.output_token_ids)
        ended = replace(chunk, finish_reason=request.finish_reason, stats=request.stats, error=request.error)
        ended = replace(ended, deviation=deviation, sampling=request.sampling, left_out=self.left_out)
        ended = self._taken[-1] = replace(ended, stop_string=self._stream.stop_string)
        answer_format = AnswerFormat(self._grammar, self._tools, self._tokenizer.call_syntax if self._tools else None)
        return replace(ended, result=replace(GenerationResult.of_chunks(self._taken), answer_format=answer_format))

    def _take_text(self, is_last: bool) -> tuple[str, str]:
        """What the model thought since the last chunk, and what it answered."""
        if self._thinking is None:
            return "", self._stream.take()
        self._read(self._thinking, is_last)
        taken = self._reasoning, self._text
        self._reasoning, self._text = "", ""
        return taken

    def _push(self, token_id: int) -> bool:
        is_stopped = token_id not in self._left_out and self._stream.push(token_id)
        if self._thinking is not None:
            was_inside = self._thinking.is_inside
            self._read(self._thinking, is_last=False)
            self.request.stats.num_reasoning_tokens += was_inside or self._thinking.is_inside
        return is_stopped

    def _read(self, reader: ThinkingReader, is_last: bool) -> None:
        reasoning, text = reader.push(self._stream.take(), is_last)
        self._reasoning, self._text = self._reasoning + reasoning, self._text + text


def _parsed(result: GenerationResult, model: Any) -> Any:
    try:
        value = json.loads(result.text)
    except (ValueError, RecursionError):
        reason = f"ended ({result.finish_reason!r}) before its JSON did: allow more tokens with max_tokens"
        raise AnswerError(f"The answer {_shown(result.text)} {reason}.") from None
    if model is None:
        return value
    try:
        return model.model_validate_json(result.text)
    except ValueError as error:  # as pydantic's are
        reason = " ".join(str(error).split())
        raise AnswerError(
            f"The answer {_shown(result.text)} is none that {model.__name__} takes: {reason:.300}"
        ) from error


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")
