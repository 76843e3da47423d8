"""The proof that drafting changes nothing: every token, and the bits of every logit row a token was chosen from.

The reference decodes plainly, one request alone, one token per pass, and reads every logit row. Against it runs every
drafter in every way, one request alone and several ragged ones together: no drafts, every combination of sources, all
of them beside a hostile one, and a drafter that knows the answers. Trees are verified whether they pay or not, in
widths drawn at random.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from reader_edge.proof.hostile_source import HostileSource
from reader_edge.proof.result import ProofReport, ProofRun, Way
from reader_edge.proof.stress_drafter import StressDrafter
from reader_edge.proof.witness import PlainAnswer, WatchedTarget, Witness, digest, run_of
from reader_edge.question import Question
from reader_edge_runtime import DraftConfig, Engine, GenerationConfig, SamplingConfig
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
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

_REFUSED_TOKENS = 8


def prove(
    engine: Engine,
    questions: Sequence[Question],
    max_tokens: int = 144,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    further: Sequence[Source] = (),
) -> ProofReport:
    """Compare drafted with plain decoding on an engine's model; the engine's own cache and drafter are left alone.

    on_progress: told answers done and answers in all. further: sources beside those that every engine has; each
    gets runs of its own. Raises PromptError or ConfigError.
    """
    encoded = [tuple(engine.encode_prompt(question.prompt)) for question in questions]
    table = SuccessorTable.of_package(engine.package, engine.tokenizer.fingerprint())
    own_answers = OwnAnswers.of_package(engine.package)
    prover = _Prover(engine, encoded, table, own_answers, max_tokens, on_progress, further)
    runs = tuple(run for way in WAYS for run in prover.runs(way))
    manifest = engine.package.manifest
    provider = engine.decoder.target.provider
    return ProofReport(tuple(questions), runs, prover.refusal(), provider, manifest.attention, manifest.precision)


class AnyWidth(Planner):
    """Verifies what would not pay, so that a proof sees every source's drafts; nothing rests, no plain step is due.

    Draws the width of each tree at random, 2 to as many nodes as were drafted; the same seed gives the same widths.
    """

    is_plain_due = False

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.max_drafted = self.times.max_width
        self._random = np.random.Generator(np.random.Philox(seed))

    def choose(
        self, requests: Sequence[Request], drafts: Sequence[DraftTree | None], past: int
    ) -> tuple[list[int], list[float]]:
        """Nodes of each tree; every draft counts as worth its time."""
        most = [1 if draft is None else len(draft) for draft in drafts]
        return [int(self._random.integers(2, each + 1)) if each > 1 else 1 for each in most], [math.inf] * len(drafts)


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

    @property
    def drafters(self) -> tuple[str, ...]:
        return *DRAFTERS, *self._with_further

    @property
    def _with_further(self) -> dict[str, Source]:
        return {f"all sources + {source.name}": source for source in self.further}

    @property
    def target(self) -> Target:
        return self.engine.decoder.target

    def runs(self, way: Way) -> list[ProofRun]:
        """Plain answers first, then every drafter at every batch size against them."""
        answers = []
        for i, prompt in enumerate(self.prompts):
            answers.append(self._plain_answer(prompt, self._config(way.is_sampled, i)))
            self._tell_progress()
        runs = []
        with tempfile.TemporaryDirectory(prefix="reader-edge-verify-") as folder:
            datastore = self._datastore(Path(folder) / "answers.ds", answers)
            for name in self.drafters:
                # One drafter for all batch sizes: with a history, the later ones know the answers by heart.
                drafter = self._drafter(name, answers, datastore)
                runs += [self._compare(answers, name, drafter, way, batch_size) for batch_size in BATCH_SIZES]
        return runs

    def refusal(self) -> str | None:
        """See ProofReport."""
        plain = self._plain_answer(self.prompts[0][:1], replace(self._config(False, 0), max_tokens=_REFUSED_TOKENS))
        vocab_size = self.target.manifest.vocab_size
        drafter = RetrievalDrafter(DraftConfig(), [HostileSource(range(vocab_size, vocab_size + 100))]).wait()
        decoder = make_decoder(self.target, drafter, self.engine.decoder.config, planner=AnyWidth())
        request = decoder.submit(plain.prompt, plain.config)
        while request.is_running:
            decoder.step()
        emitted, error = request.output_token_ids, request.error
        is_named = isinstance(error, DraftError) and repr(HostileSource.name) in str(error)
        return str(error) if is_named and emitted == plain.token_ids[: len(emitted)] else None

    def _config(self, is_sampled: bool, prompt: int) -> GenerationConfig:
        sampled = SamplingConfig(temperature=0.8, top_p=0.95, seed=1 + prompt)
        sampling = sampled if is_sampled else SamplingConfig()
        return GenerationConfig(max_tokens=self.max_tokens, sampling=sampling, ignores_eos=True)

    def _drafter(self, name: str, answers: Sequence[PlainAnswer], datastore: Datastore) -> Drafter:
        vocab_size = self.target.manifest.vocab_size
        if name == "stress":
            return StressDrafter({answer.prompt: answer.token_ids for answer in answers}, vocab_size)
        own = self._with_further.get(name)
        sources = SOURCE_SETS.get(name if own is None else "all sources", frozenset())
        config = DraftConfig(is_history_used="history" in sources, is_logits_used="logits" in sources)
        further: list[Source] = [HostileSource(range(vocab_size))] if "hostile" in sources else []
        if own is not None:
            further.append(own)
        datastores = [datastore] if "datastore" in sources else []
        known = (self.table, self.own_answers)
        return RetrievalDrafter(config, further, datastores, None, *known).wait()

    def _datastore(self, path: Path, answers: Sequence[PlainAnswer]) -> Datastore:
        """A file that holds every second prompt with its answer: some drafts are right all along, some go astray."""
        fingerprint, vocab_size = self.engine.tokenizer.fingerprint(), self.target.manifest.vocab_size
        builder = DatastoreBuilder(fingerprint, vocab_size)
        for answer in answers[::2]:
            builder.add([*answer.prompt, *answer.token_ids])
            builder.end_document()
        builder.write(path, DatastoreFacts(("answers",), 0), lambda stage: None)
        return Datastore.open(path, fingerprint, vocab_size)

    def _plain_answer(self, prompt: tuple[int, ...], config: GenerationConfig) -> PlainAnswer:
        alone = replace(self.engine.decoder.config, max_batch=1)
        decoder = make_decoder(self.target, RetrievalDrafter(DraftConfig()).wait(), alone)
        digests: list[bytes] = []
        decoder.on_logits = lambda _, row: digests.append(digest(row))
        request = decoder.submit(prompt, replace(config, is_drafted=False))
        decoder.finish(request)
        return PlainAnswer(prompt, config, request.output_token_ids, digests)

    def _compare(
        self, answers: Sequence[PlainAnswer], name: str, drafter: Drafter, way: Way, batch_size: int
    ) -> ProofRun:
        target = WatchedTarget(self.target)
        config = replace(self.engine.decoder.config, max_batch=batch_size)
        planner = AnyWidth(seed=batch_size)
        decoder = make_decoder(target, drafter, config, report=self.engine.width_report, planner=planner)
        decoder.is_drafting = True  # where an engine leaves drafts out, a proof shows what they would change
        witnesses = {
            decoder.submit(answer.prompt, replace(answer.config, is_drafted=name != "none")): Witness(prompt, answer)
            for prompt, answer in enumerate(answers)
        }
        if way.reads_logits:
            decoder.on_logits = lambda request, row: witnesses[request].see_row(request, row)
        running = dict(witnesses)
        while running:
            decoder.step()
            for request in [each for each in running if not each.is_running]:
                if request.error is not None:
                    raise request.error
                running.pop(request).finish(request)
                self._tell_progress()
        return run_of(name, way, batch_size, witnesses, target)

    def _tell_progress(self) -> None:
        self.num_done += 1
        num_answers = len(self.prompts) * len(WAYS) * (1 + len(self.drafters) * len(BATCH_SIZES))
        self.on_progress(self.num_done, num_answers)
