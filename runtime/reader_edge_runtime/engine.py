"""The engine: text in, text out, over one decoder."""

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

from reader_edge_runtime.assembly import Drafting, assemble
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.sequence import FinishReason
from reader_edge_runtime.decoding.sequence import Sequence as DecodingSequence
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.measuring.cost_cache import load_or_measure
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.chat_template import Message
from reader_edge_runtime.text.text_stream import TextStream
from reader_edge_runtime.text.tokenizer import Tokenizer

Prompt = str | Sequence[Message]

_BATCH_MEASURED = 4


@dataclass(frozen=True, slots=True)
class GenerationChunk:
    """A piece of an answer: text that is certain, and the tokens emitted since the last chunk.

    finish_reason and stats come with the last chunk, whose text may be empty.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stats: GenerationStats | None = None


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A whole answer. token_ids: as emitted, an end token included; text leaves it out."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    stats: GenerationStats


class Engine:
    """An exported model ready to answer.

        engine = Engine.load("models/demo/package")
        print(engine.generate("# tar").text)

    width_report: what the width probe found at load, None when it did not run.
    Not thread-safe: one caller at a time.
    """

    def __init__(
        self,
        package: ModelPackage,
        tokenizer: Tokenizer,
        decoder: Decoder,
        width_report: WidthReport | None = None,
    ) -> None:
        self.package = package
        self.tokenizer = tokenizer
        self.decoder = decoder
        self.width_report = width_report

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        config: EngineConfig | None = None,
        draft: DraftConfig | None = None,
        drafter: Drafter | None = None,
        history: str | os.PathLike[str] | None = None,
        datastores: Sequence[str | os.PathLike[str]] = (),
        on_progress: Callable[[int, int], None] | None = None,
        on_calibration: Callable[[int, int], None] | None = None,
    ) -> "Engine":
        """Open a package, check its files, load its graph and probe it.

        drafter: an own one in place of the retrieval drafter that the arguments below describe.
        history: a file that keeps past answers for drafting between runs; made when it is not there.
        datastores: files of `reader-edge datastore build`, made with this model's tokenizer, to draft from; 4 at most.
        on_progress: told bytes checked and bytes in all. on_calibration: told rounds measured and rounds at most, at
        the first use of a package on a machine. Raises PackageError, TokenizerError, DatastoreError
        or ProviderError.
        """
        drafting = Drafting(draft or DraftConfig(), history, datastores, drafter)
        parts = assemble(path, config or EngineConfig(), drafting, on_progress, on_calibration)
        return cls(parts.package, parts.tokenizer, parts.decoder, parts.width_report)

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of a text, or of chat messages through the model's chat template."""
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else self.tokenizer.encode_chat(prompt)

    def generate(self, prompt: Prompt, config: GenerationConfig | None = None) -> GenerationResult:
        """Answer one prompt. Raises PromptError or ConfigError."""
        return self.generate_batch([prompt], config)[0]

    def generate_batch(
        self, prompts: Sequence[Prompt], config: GenerationConfig | Sequence[GenerationConfig] | None = None
    ) -> list[GenerationResult]:
        """Answer several prompts together, each as if it were alone; one config for all, or one for each."""
        if config is None or isinstance(config, GenerationConfig):
            configs: Sequence[GenerationConfig] = [config or GenerationConfig()] * len(prompts)
        else:
            configs = config
        if len(configs) != len(prompts):
            raise ConfigError(f"{len(prompts)} prompts came with {len(configs)} configs: give one, or one for each.")
        if len(prompts) > 1:
            self._calibrate_batches()
        answers: list[_Answer] = []
        try:
            for prompt, each in zip(prompts, configs, strict=True):
                answers.append(_Answer(self, prompt, each))
            while any(answer.is_running for answer in answers):
                self.decoder.step()
        finally:
            for answer in answers:
                answer.close()
        return [answer.result() for answer in answers]

    def stream(self, prompt: Prompt, config: GenerationConfig | None = None) -> Generator[GenerationChunk, None, None]:
        """Answer one prompt piece by piece; the last chunk has the finish reason and the statistics.

        Closing the iterator early ends the request and leaves the cache right.
        """
        answer = _Answer(self, prompt, config or GenerationConfig())
        return self._chunks(answer)

    def forget(self) -> None:
        """Drop what past requests left behind: cached prefixes and drafting history."""
        self.decoder.forget()

    def _calibrate_batches(self) -> None:
        """Measure batched passes when the first batch comes; one size stands for all."""
        decoder = self.decoder
        size = min(_BATCH_MEASURED, decoder.config.max_batch)
        if decoder.config.is_calibrated and size > 1 and not decoder.budget.times.has(size):
            decoder.budget.times.add(load_or_measure(decoder.target, decoder.config.threads, size))

    def _chunks(self, answer: "_Answer") -> Generator[GenerationChunk, None, None]:
        try:
            while answer.is_running:
                self.decoder.step()
                yield answer.next_chunk()
        finally:
            answer.close()


class _Answer:
    """One request's text beside its sequence."""

    def __init__(self, engine: Engine, prompt: Prompt, config: GenerationConfig) -> None:
        token_ids = engine.encode_prompt(prompt)
        self._decoder = engine.decoder
        self._stream = TextStream(engine.tokenizer, token_ids, config.stop)
        self._sequence: DecodingSequence = engine.decoder.submit(token_ids, config, self._stream.push)
        self._num_taken = 0

    @property
    def is_running(self) -> bool:
        return self._sequence.finish_reason is None

    def next_chunk(self) -> GenerationChunk:
        token_ids = tuple(self._sequence.output_token_ids[self._num_taken :])
        self._num_taken += len(token_ids)
        if self._sequence.finish_reason is None:
            return GenerationChunk(self._stream.take(), token_ids)
        self._stream.finish()
        return GenerationChunk(self._stream.take(), token_ids, self._sequence.finish_reason, self._sequence.stats)

    def result(self) -> GenerationResult:
        chunk = self.next_chunk()
        reason = self._sequence.finish_reason or "cancelled"
        return GenerationResult(chunk.text, chunk.token_ids, reason, self._sequence.stats)

    def close(self) -> None:
        self._decoder.cancel(self._sequence)
