"""One answer on its way: its request's tokens, and the text that is certain of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from reader_edge_runtime.config import GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.choosing.constraint import Constraint
from reader_edge_runtime.decoding.choosing.logprobs import TokenLogprob
from reader_edge_runtime.decoding.request import FinishReason, Request
from reader_edge_runtime.drafting.drafter import NO_GUESSES, Guesses
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.reading import Reading
from reader_edge_runtime.text.text_stream import TextStream
from reader_edge_runtime.text.thinking import ThinkingReader
from reader_edge_runtime.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """A piece of an answer: text that is certain, and the tokens emitted since the last chunk.

    text: empty in the last chunk if nothing is left.
    finish_reason, stats: only in the last chunk.
    error: only in the last chunk of a request that failed.
    logprobs: one for each of token_ids, if the config asked for them.
    sources: the source that drafted each of token_ids, "" for tokens that were not drafted.
    prompt_logprobs: one for each token of the prompt, None for the first; in the first chunk that has tokens, if the
        config asked for them.
    reasoning: what the model thinks, if the config splits it off.
    given_up: only in the last chunk: what an acceptance rule that is not exact gave up; {} for one that is.
    sampling: only in the last chunk: how the tokens were chosen; with its seed the answer can be repeated.
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
    given_up: Mapping[str, object] = field(default_factory=dict)
    sampling: SamplingConfig | None = None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A whole answer, or what came before its request failed.

    token_ids: as emitted, an end token included, which text leaves out.
    error: what failed, if finish_reason is "error".
    logprobs: one for each of token_ids, if the config asked for them.
    prompt_logprobs: one for each token of the prompt, None for the first, if the config asked for them.
    reasoning: what the model thought, if the config splits it off.
    given_up: what an acceptance rule that is not exact gave up; {} for one that is.
    sampling: how the tokens were chosen; with its seed the answer can be repeated.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: GenerationStats
    error: Exception | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    reasoning: str = ""
    given_up: Mapping[str, object] = field(default_factory=dict)
    sampling: SamplingConfig | None = None

    @classmethod
    def of_chunks(cls, chunks: Sequence[GenerationChunk]) -> "GenerationResult":
        """The answer that came in these chunks; the last of them ended it."""
        last = chunks[-1]
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
            last.given_up,
            last.sampling,
        )


class Answer:
    """A request, and its text beside its tokens. Raises PromptError or ConfigError for what can be no request."""

    def __init__(
        self,
        prompt_token_ids: Sequence[int],
        config: GenerationConfig,
        manifest: Manifest,
        tokenizer: Tokenizer,
        constraint: Constraint | None = None,
        guesses: Guesses = NO_GUESSES,
        reading: Reading | None = None,
    ) -> None:
        """reading: how tokens become text; by default special tokens are left out, and nothing is split off."""
        reading = reading or Reading()
        self.request = Request(prompt_token_ids, config, manifest, self._push, constraint=constraint, guesses=guesses)
        self._stream = TextStream(tokenizer, self.request.token_ids, config.stop, reading.kept)
        kept_ends = reading.kept.keys() - set(config.stop_token_ids)
        self._left_out = self.request.stop_token_ids - kept_ends  # of the text
        self._thinking = reading.reader()
        self._thought, self._said = "", ""  # what was read of the stream, and not taken yet
        self._num_taken = 0

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
        if not is_last:
            return chunk
        given_up = request.acceptance.report(request.output_token_ids)
        ended = replace(chunk, finish_reason=request.finish_reason, stats=request.stats, error=request.error)
        return replace(ended, given_up=given_up, sampling=request.sampling)

    def _take_text(self, is_last: bool) -> tuple[str, str]:
        """What the model thought since the last chunk, and what it said."""
        if self._thinking is None:
            return "", self._stream.take()
        self._read(self._thinking, is_last)
        taken = self._thought, self._said
        self._thought, self._said = "", ""
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
        self._thought, self._said = self._thought + reasoning, self._said + text
