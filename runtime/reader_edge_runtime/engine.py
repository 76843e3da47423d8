"""The engine: text in, text out, over one decoder."""

import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from typing import Self, Unpack

from reader_edge_runtime.adapters.adapter_set import AdapterSet, ReadAdapter, check_takes_adapters
from reader_edge_runtime.answer import Answer, GenerationChunk, GenerationResult
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import assemble, open_package, prompt_reader
from reader_edge_runtime.call_options import (
    NO_ADAPTERS,
    AdapterPaths,
    Callback,
    EngineOptions,
    GenerationOptions,
    engine_config,
    given_callback,
    given_config,
    is_iterable,
    placed_prompt,
    with_options,
)
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, Grammar
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.draft_permission import DraftPermission
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.rule_config import RuleConfig, check_rule, ruled_config
from reader_edge_runtime.decoding.sampling.grammar import Grammars
from reader_edge_runtime.decoding.sampling.grammar_process import Vocabulary
from reader_edge_runtime.decoding.sampling.reasoning_budget import within_budget
from reader_edge_runtime.decoding.session import FORMAT, LOSSY_FORMAT, load_session, save_session
from reader_edge_runtime.decoding.shared_decoder import SharedDecoder
from reader_edge_runtime.drafting.draft_hints import NO_HINTS, answer_hints
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.embeddings import Embedder, LastToken, Reranker, given_list
from reader_edge_runtime.errors import ConfigError, PromptError
from reader_edge_runtime.generation_config import chosen_sampling
from reader_edge_runtime.images.prompt_reader import PromptReader
from reader_edge_runtime.measuring.cost_cache import forget_cost
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Encodable, Message, without_thinking
from reader_edge_runtime.text.output_format import OutputFormat
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted.user_input import given_path, short_repr


class Engine:
    """An exported model ready to answer.

        with Engine.load("models/demo/package") as engine:
            print(engine.generate("# tar", max_tokens=100).text)

    width_report: what the width probe found at load; None if it did not run.
    draft_permission: whether requests are drafted, and why.
    rule: by which answers may differ from the model's own; None for an exact engine.
    adapters: by name, those that requests may have.

    Several threads may use one engine: their requests share its steps. One that is closed raises ClosedError.
    """

    def __init__(
        self,
        package: ModelPackage,
        tokenizer: Tokenizer,
        decoder: Decoder,
        width_report: WidthReport | None = None,
        rule: RuleConfig | None = None,
    ) -> None:
        if decoder.permission.is_trial:
            raise ConfigError("A trial decoder drafts whatever the probe found: make an engine's with make_decoder.")
        self.package = package
        self.tokenizer = tokenizer
        self.width_report = width_report
        self.rule = rule
        self._usual = None if rule is None else WarmupAnswers.of_package(package)
        self._session_format = FORMAT if rule is None else LOSSY_FORMAT
        self._shared = SharedDecoder(decoder)
        self.adapters = AdapterSet()

    @property
    def decoder(self) -> Decoder:
        """What decodes. Raises ClosedError."""
        return self._shared.decoder

    @property
    def context_length(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.package.manifest.max_context

    @property
    def is_greedy(self) -> bool:
        """Whether its rule gives greedy answers alone."""
        return self.rule is not None and self.rule.is_greedy

    @property
    def sampling(self) -> Mapping[str, float]:
        """What the model's maker recommends, by the names of SamplingConfig's fields; {} is greedy.

        For requests that leave it open; one that says a part of it is completed by `chosen_sampling`.
        """
        return {} if self.is_greedy else self.package.manifest.sampling

    @property
    def draft_permission(self) -> DraftPermission:
        return self.decoder.permission

    @classmethod
    def load(
        cls,
        model: str | os.PathLike[str],
        config: EngineConfig | None = None,
        draft: DraftConfig | None = None,
        sources: DraftSources | None = None,
        drafter: Drafter | None = None,
        on_progress: Callback | None = None,
        on_calibration: Callback | None = None,
        rule: RuleConfig | None = None,
        adapters: AdapterPaths = NO_ADAPTERS,
        **options: Unpack[EngineOptions],
    ) -> Self:
        """Open a package, check its files, load its graph and probe it.

        model: the package's folder.
        options: fields of the config by their names, as threads=2.
        draft, sources: limits of drafting, and what is drafted from.
        drafter: a drafter of your own, in place of draft and sources.
        on_progress: called with bytes checked and bytes in all.
        on_calibration: called with rounds measured and most rounds, at the first use of a package on a machine. What is
            measured, and for how long, is in the log `reader_edge.measuring`: as a warning without this callback.
        rule: by which answers may differ from the model's own, as `reader_edge_lossy.relaxed.Relaxed()`. Each says in
            `deviation` how far it does. No exact engine takes its sessions, nor it theirs.
        adapters: by the names that requests call them, folders or files of adapters for a package that takes them.

        Raises PackageError, AdapterError, TokenizerError, DatastoreError, DraftModelError or ProviderError.
        """
        configs = engine_config(config, options), given_config(draft, DraftConfig, "draft")
        drafted_from = given_config(sources, DraftSources, "sources")
        if drafter is not None and drafted_from != DraftSources():
            raise ConfigError("drafter is in place of what sources describe: give one of them.")
        callbacks = given_callback(on_progress, "on_progress"), given_callback(on_calibration, "on_calibration")
        check_rule(rule, drafted_from, drafter, configs[0].prefix_cache)
        package = open_package(given_path(model, "model"), callbacks[0], configs[0].signature_key)
        for path in adapters.values():
            check_takes_adapters(package.manifest, path)
        tokenizer, decoder, report = assemble(package, *configs, drafted_from, drafter, callbacks[1])
        decoder = decoder if rule is None else rule.decoder(decoder, callbacks[1])
        engine = cls(package, tokenizer, decoder, report, rule)
        try:
            for name, path in adapters.items():
                engine.load_adapter(name, path)
        except BaseException:
            engine.close()
            raise
        return engine

    def load_adapter(self, name: str, path: str | os.PathLike[str]) -> None:
        """Have requests find an adapter by this name, in place of one that they found by it before.

        path: of a folder that PEFT wrote, or of a GGUF file. Those running keep theirs, and wait for none of the
        reading. Raises AdapterError for what is none of this model, ConfigError for a package that takes none.
        """
        if self.rule is not None:
            raise ConfigError("An engine with a rule answers without adapters: load it without.")
        read = ReadAdapter(name, given_path(path, "path"), self.package.manifest)
        with self.working() as decoder:
            self.adapters.add(read, decoder.target)

    def drop_adapter(self, name: str) -> None:
        """Have requests find an adapter no more; those running keep it to their end. Raises ConfigError."""
        with self.working() as decoder:
            self.adapters.drop(name, decoder.target)

    def encode_prompt(self, prompt: Encodable) -> list[int]:
        """Token ids of a prompt, as many for an image as it has; see `Tokenizer.encode_prompt`."""
        return self._prompt_reader.read(prompt).token_ids

    def generate(
        self, prompt: Encodable, config: GenerationConfig | None = None, **options: Unpack[GenerationOptions]
    ) -> GenerationResult:
        """Answer one prompt.

        options: fields of the config and of its sampling by their names, and a schema or tools: see GenerationOptions.
        Raises PromptError or ConfigError, and whatever made the request fail.
        """
        result = self.generate_batch([prompt], config, **options)[0]
        if result.error is not None:
            raise result.error
        return result

    def generate_batch(
        self,
        prompts: Iterable[Encodable],
        config: GenerationConfig | Sequence[GenerationConfig] | None = None,
        **options: Unpack[GenerationOptions],
    ) -> list[GenerationResult]:
        """Answer several prompts together, each as if it were alone; one config for all, or one for each.

        options: see `generate`; they are for all. A request that fails has its error in its result; the others are
        answered. Raises PromptError or ConfigError for a wrong prompt, config or option, before anything is answered;
        a wrong prompt is named by its place in the list.
        """
        if isinstance(prompts, str) or not is_iterable(prompts):
            raise PromptError(f"Several prompts are a list, not {short_repr(prompts)}: 'generate' takes a single one.")
        prompts = list(prompts)
        configs = config if isinstance(config, list | tuple) else [config] * len(prompts)
        if len(configs) != len(prompts):
            raise ConfigError(f"{len(prompts)} prompts came with {len(configs)} configs: give one, or one for each.")
        answers: list[Answer] = []
        try:
            for index, each in enumerate(zip(prompts, configs, strict=True)):
                with placed_prompt(index if len(prompts) > 1 else None):
                    answers.append(self.answer(*self.with_options(*each, options)))
            for answer in answers:
                self._shared.enqueue(answer.request)
            return [self._result(answer) for answer in answers]
        finally:
            self.release(*[answer.request for answer in answers])

    def embed(self, texts: Iterable[Encodable], dimensions: int | None = None) -> Float32Array:
        """Embeddings of texts, or of token ids, float32 (B, E): of each its last token's state, of length 1.

        dimensions: see `Embedder`. A text does not depend on the others beside it. Instructions are part of a text.
        Raises ConfigError for a model or a number of dimensions that is not made for it, and PromptError.
        """
        embedder = self.embedder(dimensions)
        return embedder.vectors(self._read(given_list(texts, "texts"), embedder.reader))

    def rerank(self, query: str, documents: Iterable[str], instruction: str | None = None) -> list[float]:
        """How relevant each document is for a query, from 0 to 1, in their order. instruction: see `Reranker`.

        Raises ConfigError for a model that is no reranker, and PromptError.
        """
        reranker = self.reranker()
        prompts = [reranker.prompt(query, each, instruction) for each in given_list(documents, "documents")]
        return [reranker.score(each) for each in self._read(prompts, reranker.reader)]

    def embedder(self, dimensions: int | None = None) -> Embedder:
        """What makes embeddings of what requests read. Raises ConfigError."""
        self._check_unruled()
        return Embedder(self.package.manifest, dimensions)

    def reranker(self) -> Reranker:
        """What makes prompts and scores. Raises ConfigError."""
        self._check_unruled()
        return Reranker(self.package.manifest, self.tokenizer)

    def _check_unruled(self) -> None:
        if self.rule is not None:
            raise ConfigError("An engine with a rule makes neither embeddings nor scores: load it without.")

    def _read(self, prompts: Sequence[Encodable], reader: Callable[[], LastToken]) -> list[LastToken]:
        """What requests that end with their prompts have kept of them."""
        readers = [reader() for _ in prompts]
        for result in self.generate_batch(prompts, [each.config for each in readers]):
            if result.error is not None:
                raise result.error
        return readers

    def stream(
        self,
        prompt: Encodable,
        config: GenerationConfig | None = None,
        on_progress: Callback | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Generator[GenerationChunk, None, None]:
        """Answer one prompt piece by piece; closing the iterator early ends the request. options: see `generate`.

        on_progress: called with tokens of the prompt read and in all, as passes read it; it must not use the engine.
        The prompt is checked at once, and the request starts with the first chunk. Several streams may be read in turn,
        also by several threads. If the request fails, its error is raised behind the chunks that came before.
        """
        answer = self.answer(*self.with_options(prompt, config, options))
        answer.request.on_progress = given_callback(on_progress, "on_progress")
        return self._chunks(answer)

    def answer(
        self, prompt: Encodable, config: GenerationConfig | None = None, device: RemoteDrafts | None = None
    ) -> Answer:
        """An answer that is not started yet, for callers that drive the decoder themselves.

        device: what a remote client of a server drafts for it.
        Raises PromptError, ConfigError, or InstallationError for a grammar without the library that follows it.
        """
        config = ruled_config(self.with_sampling(config), self.rule, self.package.manifest.eos_token_ids, self._usual)
        adapter = None if config.adapter is None else self.adapters.get(config.adapter)
        prompt = without_thinking(prompt) if config.max_reasoning_tokens == 0 else prompt
        prompt, token_ids, text_ids, images = self._prompt_reader.read(prompt, config.cache_salt)
        manifest, given = self.package.manifest, (prompt, text_ids, config, self.tokenizer)
        hints = answer_hints(*given, manifest.max_context) if self.draft_permission.is_on else NO_HINTS
        if device is not None:
            if images and device.is_lockstep:
                raise PromptError("A remote client drafts for texts alone: ask about images without its drafts.")
            hints = replace(hints, remote=device)
        reading = OutputFormat.of(*given)
        end = reading.thinking_end(text_ids, self.tokenizer) if reading.is_thinking else None
        constraint, left_out = (None, ()) if config.grammar is None else self._grammars.constrain(config.grammar, end)
        try:
            constraint = within_budget(constraint, *given, manifest.vocab_size)
            parts = constraint, hints, reading, left_out, images, adapter
            return Answer(token_ids, config, manifest, self.tokenizer, *parts)
        except BaseException:
            if constraint is not None:
                constraint.close()
            raise

    def with_options(
        self, prompt: Encodable, config: GenerationConfig | None, options: GenerationOptions
    ) -> tuple[Encodable, GenerationConfig]:
        """A prompt and its config with what `generate` was given beside them. Raises PromptError or ConfigError."""
        return with_options(prompt, config, options, self.sampling)

    def with_sampling(self, config: GenerationConfig | None) -> GenerationConfig:
        """A config that says how tokens are chosen: one that leaves it open takes the model's own way, with a seed."""
        config = given_config(config, GenerationConfig, "config")
        return config if config.sampling else replace(config, sampling=chosen_sampling(self.sampling, {}))

    @cached_property
    def _prompt_reader(self) -> PromptReader:
        return prompt_reader(self.package, self.tokenizer, self.decoder.target, self.decoder.config)

    @cached_property
    def _grammars(self) -> Grammars:
        manifest, tokenizer = self.package.manifest, self.tokenizer
        tokens, special_ids = tokenizer.every_token_bytes(manifest.vocab_size), list(tokenizer.special_tokens)
        return Grammars(Vocabulary(tokens, special_ids, manifest.eos_token_ids, tokenizer.to_json()))

    def compare(self, grammar: Grammar, answer: str) -> None:
        """Compare a text with a grammar of kind "json_schema" in the background; the log has an error for a miss."""
        self._grammars.compare(grammar, answer)

    def forget(self) -> None:
        """Drop cached prefixes and the drafting history of past requests."""
        with self.working() as decoder:
            decoder.forget()

    def flush_prefixes(self) -> None:
        """Wait until a prefix cache has all that requests left; `close` does so too."""
        if not self._shared.is_closed:
            with self.working() as decoder:
                decoder.flush_prefixes()

    def save_session(self, path: str | os.PathLike[str], messages: Sequence[Message] = ()) -> None:
        """Write the KV cache, its tokens and what drafting learned to a file, whole or not at all.

        messages: a conversation to keep with it; of an empty list `load_session` returns an empty one. Raises
        SessionError or ConfigError.
        """
        with self.working() as decoder:
            save_session(decoder, given_path(path, "path"), self.package.fingerprint(), messages, self._session_format)

    def load_session(self, path: str | os.PathLike[str]) -> list[Message]:
        """Continue from a saved session, bit for bit; returns its messages.

        Drops cached prefixes and history of past requests. Raises SessionError for a damaged file or one of another
        package, or while requests run; then nothing has changed.
        """
        with self.working() as decoder:
            return load_session(decoder, given_path(path, "path"), self.package.fingerprint(), self._session_format)

    def __repr__(self) -> str:
        closed = ", closed" if self._shared.is_closed else ""
        return f"<{type(self).__name__} of {str(self.package.folder)!r}{closed}>"

    def _chunks(self, answer: Answer) -> Generator[GenerationChunk, None, None]:
        try:
            self._shared.enqueue(answer.request)
            while True:
                chunk = self._shared.until(answer.take)
                yield chunk
                if chunk.error is not None:
                    raise chunk.error
                if chunk.finish_reason is not None:
                    return
        finally:
            self.release(answer.request)

    def _result(self, answer: Answer) -> GenerationResult:
        """The whole answer, decoded to its end."""
        self._shared.until(lambda: not answer.request.is_running or None)
        return GenerationResult.of_chunks([self._shared.until(answer.take)])

    def working(self) -> AbstractContextManager[Decoder]:
        """The decoder, for this thread alone, without the requests that were closed meanwhile.

        Raises BusyError if the same thread is using it already, since it would wait for itself.
        """
        return self._shared.working()

    def withdraw(self, *requests: Request) -> None:
        """End requests when the decoder next works. Never waits."""
        self._shared.withdraw(*requests)

    def release(self, *requests: Request) -> None:
        """End requests, at the latest when the decoder next works: an iterator may be finalised during a step."""
        self.withdraw(*requests)
        if not self._shared.is_working and not self._shared.is_closed:
            with self.working() as decoder:
                # Their measuring ran beside other work. Those that exact engines plan by stay.
                if self.rule is None and decoder.planner.times.take_outrun():
                    forget_cost(decoder.target, decoder.config.threads, 1)

    def close(self) -> None:
        """End all requests and give the model's memory back, where nobody else holds the decoder. Again: nothing."""
        self._shared.close()
        self.__dict__.pop("_grammars", None)  # with its process
        self.__dict__.pop("_prompt_reader", None)  # with its features

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
