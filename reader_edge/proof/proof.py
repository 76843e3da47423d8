"""The proof that drafting changes nothing: every token, and the bits of every logit row a token was chosen from.

The reference decodes plainly, one request alone, one token per pass, and reads every logit row. Against it runs every
drafter in every way, one request alone and several ragged ones together: no drafts, every combination of sources, all
of them beside a hostile one, and a drafter that knows the answers. Then requests come at random moments, greedy and
sampled ones, drafted and plain ones, prompts that take several steps; and some are given up. Trees are verified whether
they pay or not, in widths drawn at random.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, cycle, islice
from pathlib import Path

from reader_edge.proof.any_width import AnyWidth
from reader_edge.proof.arrivals import Arrival, all_at_once, at_random, decode, num_at_random
from reader_edge.proof.hostile_source import HostileSource
from reader_edge.proof.result import ProofReport, ProofRun, Way
from reader_edge.proof.stress_drafter import StressDrafter
from reader_edge.proof.witness import PlainAnswer, WatchedTarget, digest, run_of
from reader_edge.question import Question
from reader_edge_runtime import DraftConfig, Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.assembly import make_decoder, make_trial_decoder
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.drafting.sources.source import Source
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.errors import DraftError
from reader_edge_runtime.target import Target

WAYS = (
    Way("greedy by top ids", is_sampled=False, reads_logits=False),  # as answers are made: no logits are read
    Way("greedy by logits", is_sampled=False, reads_logits=True),
    Way("sampled", is_sampled=True, reads_logits=True),
)
_ALL = ("history", "datastore", "logits")
SOURCE_SETS = {
    **{" + ".join(("context", *few)): frozenset(few) for num in range(3) for few in combinations(_ALL, num)},
    "all sources": frozenset(_ALL),
    "all sources + hostile": frozenset((*_ALL, "hostile")),
}
DRAFTERS = ("none", *SOURCE_SETS, "stress")
BATCH_SIZES = (1, 4)

ARRIVAL_WAYS = (
    Way("random arrivals by top ids", is_sampled=True, reads_logits=False),
    Way("random arrivals by logits", is_sampled=True, reads_logits=True),
)
ARRIVAL_DRAFTERS = ("none", "all sources + hostile", "stress")
ARRIVAL_BATCH = 3  # fewer than come, so that some wait in line

_REFUSED_TOKENS = 8
_ARRIVING_CHUNK = 32  # tokens of a prompt that are scored between two steps
_LONG_EVERY = 2  # questions of which one is asked behind so much text that its prompt takes several of them
_LONG_PROMPT = 136  # tokens
_SAMPLINGS = (
    SamplingConfig(temperature=0.8, top_p=0.95),
    SamplingConfig(temperature=1.2, top_k=40, repetition_penalty=1.1),
    SamplingConfig(temperature=0.5, min_p=0.05),
)


def prove(
    engine: Engine,
    questions: Sequence[Question],
    max_tokens: int = 144,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    further: Sequence[Source] = (),
) -> ProofReport:
    """Compare drafted with plain decoding on an engine's model; the engine's own cache and drafter are left alone.

    on_progress: told answers done and answers in all. further: sources beside those that every engine has; each
    gets runs of its own, and several get runs together. Raises PromptError or ConfigError.
    """
    encoded = [tuple(engine.encode_prompt(question.prompt)) for question in questions]
    table = SuccessorTable.of_package(engine.package, engine.tokenizer.fingerprint())
    own_answers = OwnAnswers.of_package(engine.package)
    prover = _Prover(engine, encoded, table, own_answers, max_tokens, on_progress, further)
    runs = tuple(run for way in WAYS for run in prover.runs(way)) + tuple(prover.arrival_runs())
    manifest = engine.package.manifest
    provider = engine.decoder.target.provider
    return ProofReport(tuple(questions), runs, prover.refusal(), provider, manifest.attention, manifest.precision)


@dataclass(slots=True)
class _Prover:
    """The runs of one proof."""

    engine: Engine
    prompts: Sequence[tuple[int, ...]]
    table: SuccessorTable | None
    own_answers: OwnAnswers | None
    max_tokens: int
    on_progress: Callable[[int, int], None]
    further: Sequence[Source]
    num_done: int = 0
    plain_answers: dict[bool, list[PlainAnswer]] = field(default_factory=dict)

    @property
    def drafters(self) -> tuple[str, ...]:
        return *DRAFTERS, *self._with_further

    @property
    def arrival_drafters(self) -> tuple[str, ...]:
        return *ARRIVAL_DRAFTERS, *self._with_further

    @property
    def _with_further(self) -> dict[str, Sequence[Source]]:
        """Each further source beside all others, and all of them together."""
        sets = dict.fromkeys((*((source,) for source in self.further), tuple(self.further)))
        return {" + ".join(("all sources", *(source.name for source in few))): few for few in sets if few}

    @property
    def target(self) -> Target:
        return self.engine.decoder.target

    @property
    def num_answers(self) -> int:
        """Answers that are decoded in all, plain ones and those compared with them."""
        num_prompts = len(self.prompts)
        num_compared = num_prompts * len(WAYS) * len(self.drafters) * len(BATCH_SIZES)
        num_arriving = num_at_random(2 * num_prompts) * len(ARRIVAL_WAYS) * len(self.arrival_drafters)
        return 4 * num_prompts + num_compared + num_arriving

    def runs(self, way: Way) -> Iterator[ProofRun]:
        """Every drafter at every batch size against the plain answers."""
        answers = self._plain_answers(way.is_sampled)
        with self._datastore(answers) as datastore:
            for name in self.drafters:
                # One drafter for all batch sizes: with a history, the later ones know the answers by heart.
                drafter = self._drafter(name, answers, datastore)
                arrivals = all_at_once(answers, is_drafted=name != "none")
                for batch_size in BATCH_SIZES:
                    yield self._compare(arrivals, name, drafter, way, batch_size)

    def arrival_runs(self) -> Iterator[ProofRun]:
        """Requests that come and go while others run, greedy and sampled ones, some behind long texts."""
        answers = self._arriving_answers()
        with self._datastore(answers) as datastore:
            for seed, name in enumerate(self.arrival_drafters):
                drafter = self._drafter(name, answers, datastore)
                arrivals = at_random(answers, is_drafted=name != "none", seed=seed)
                for way in ARRIVAL_WAYS:
                    yield self._compare(arrivals, name, drafter, way, ARRIVAL_BATCH, _ARRIVING_CHUNK)

    def refusal(self) -> str | None:
        """See ProofReport."""
        plain = self._plain_answer(0, self.prompts[0][:1], replace(self._config(False, 0), max_tokens=_REFUSED_TOKENS))
        vocab_size = self.target.manifest.vocab_size
        drafter = RetrievalDrafter(DraftConfig(), [HostileSource(range(vocab_size, vocab_size + 100))]).wait()
        decoder = make_trial_decoder(self.target, drafter, self.engine.decoder.config, AnyWidth())
        request = decoder.submit(plain.prompt, plain.config)
        while request.is_running:
            decoder.step()
        emitted, error = request.output_token_ids, request.error
        is_named = isinstance(error, DraftError) and repr(HostileSource.name) in str(error)
        return str(error) if is_named and emitted == plain.token_ids[: len(emitted)] else None

    def _config(self, is_sampled: bool, question: int) -> GenerationConfig:
        sampled = SamplingConfig(temperature=0.8, top_p=0.95, seed=1 + question)
        sampling = sampled if is_sampled else SamplingConfig()
        return GenerationConfig(max_tokens=self.max_tokens, sampling=sampling, ignores_eos=True)

    def _drafter(self, name: str, answers: Sequence[PlainAnswer], datastore: Datastore) -> Drafter:
        vocab_size = self.target.manifest.vocab_size
        if name == "stress":
            return StressDrafter([(answer.prompt, answer.token_ids) for answer in answers], vocab_size)
        own = self._with_further.get(name, ())
        sources = SOURCE_SETS.get("all sources" if own else name, frozenset())
        config = DraftConfig(is_history_used="history" in sources, is_logits_used="logits" in sources)
        further = [HostileSource(range(vocab_size))] if "hostile" in sources else own
        datastores = [datastore] if "datastore" in sources else []
        known = (self.table, self.own_answers)
        return RetrievalDrafter(config, further, datastores, None, *known).wait()

    @contextmanager
    def _datastore(self, answers: Sequence[PlainAnswer]) -> Iterator[Datastore]:
        """A file that holds every second prompt with its answer: some drafts are right all along, some go astray."""
        fingerprint, vocab_size = self.engine.tokenizer.fingerprint(), self.target.manifest.vocab_size
        builder = DatastoreBuilder(fingerprint, vocab_size)
        for answer in answers[::2]:
            builder.add([*answer.prompt, *answer.token_ids])
            builder.end_document()
        with tempfile.TemporaryDirectory(prefix="reader-edge-verify-") as folder:
            path = Path(folder) / "answers.ds"
            builder.write(path, DatastoreFacts(("answers",), 0), lambda stage: None)
            yield Datastore.open(path, fingerprint, vocab_size)

    def _plain_answers(self, is_sampled: bool) -> list[PlainAnswer]:
        """Of all questions, decoded once."""
        if is_sampled not in self.plain_answers:
            self.plain_answers[is_sampled] = []
            for i, prompt in enumerate(self.prompts):
                self.plain_answers[is_sampled].append(self._plain_answer(i, prompt, self._config(is_sampled, i)))
                self._tell_progress()
        return self.plain_answers[is_sampled]

    def _arriving_answers(self) -> list[PlainAnswer]:
        """Plain ones to all questions, greedy and sampled in several ways, some asked behind the texts of others."""
        length = min(_LONG_PROMPT, self.target.manifest.max_context - self.max_tokens)
        answers = []
        for i, prompt in enumerate(self.prompts):
            if i % _LONG_EVERY == 0 and len(prompt) < length:
                before = cycle(chain(*self.prompts[i:], *self.prompts[:i]))
                prompt = (*islice(before, length - len(prompt)), *prompt)
            sampled = replace(_SAMPLINGS[i % len(_SAMPLINGS)], seed=1 + i)
            for sampling in (SamplingConfig(), sampled):
                config = replace(self._config(False, i), sampling=sampling)
                answers.append(self._plain_answer(i, prompt, config, _ARRIVING_CHUNK))
                self._tell_progress()
        return answers

    def _plain_answer(
        self, question: int, prompt: tuple[int, ...], config: GenerationConfig, chunk: int = 0
    ) -> PlainAnswer:
        alone = self._engine_config(1, chunk)
        decoder = make_decoder(self.target, RetrievalDrafter(DraftConfig()).wait(), alone)
        digests: list[bytes] = []
        decoder.on_logits = lambda _, row: digests.append(digest(row))
        request = decoder.submit(prompt, replace(config, is_drafted=False))
        decoder.finish(request)
        return PlainAnswer(question, prompt, config, request.output_token_ids, digests)

    def _compare(
        self,
        arrivals: Sequence[Arrival],
        name: str,
        drafter: Drafter,
        way: Way,
        batch_size: int,
        chunk: int = 0,
    ) -> ProofRun:
        target = WatchedTarget(self.target)
        config = self._engine_config(batch_size, chunk)
        planner = AnyWidth(seed=batch_size)
        decoder = make_trial_decoder(target, drafter, config, planner, self.engine.width_report)
        decoder.prompt_pace.budget = chunk or None
        witnesses = decode(decoder, arrivals, way.reads_logits, self._tell_progress)
        return run_of(name, way, batch_size, witnesses, target)

    def _engine_config(self, batch_size: int, chunk: int) -> EngineConfig:
        """The engine's own but for these. chunk: of prompts; 0 for its own."""
        own = self.engine.decoder.config
        return replace(own, max_batch=batch_size, prefill_chunk=chunk or own.prefill_chunk)

    def _tell_progress(self) -> None:
        self.num_done += 1
        self.on_progress(self.num_done, self.num_answers)
