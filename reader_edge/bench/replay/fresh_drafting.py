"""Recorded answers replayed one by one, each from nothing but what ships with a package."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from reader_edge.bench.recording import RecordedRequest
from reader_edge.bench.replay.replay import LEARNING_NODES, core_simulator
from reader_edge.bench.replay.replayed_request import MAX_DEPTH, ReplayedRequest
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime.arrays import Float32Array, Int32Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.text.tokenizer import Tokenizer

Cut = Callable[[DraftTree], DraftTree]


@dataclass(frozen=True, slots=True)
class FreshDrafting:
    """Drafters that know the request's own text, what the target says meanwhile, and what a package has of its model.

    own_texts: token ids of the model's own answers.
    """

    table: SuccessorTable | None
    own_texts: Sequence[Int32Array]

    @classmethod
    def of_package(cls, package: ModelPackage, tokenizer: Tokenizer) -> "FreshDrafting":
        """Raises PackageError for files beside the package that cannot be read."""
        own = OwnAnswers.of_package(package)
        return cls(SuccessorTable.of_package(package, tokenizer.fingerprint()), own.texts if own is not None else ())

    def stats(
        self, request: RecordedRequest, parameters: Float32Array, num_nodes: int, cut: Cut | None = None
    ) -> GenerationStats:
        """What a replay with trees of up to num_nodes drafted nodes gave. cut: makes them smaller."""
        simulator, _ = self._replayed(request, parameters, num_nodes, cut)
        return simulator.stats

    def taught(self, requests: Iterable[RecordedRequest], parameters: Float32Array) -> Float32Array:
        """What the mixture knows that began with these parameters, after each of these requests was answered."""
        for request in requests:
            _, core = self._replayed(request, parameters, LEARNING_NODES)
            parameters = core.parameters
        return parameters

    def _replayed(
        self, request: RecordedRequest, parameters: Float32Array, num_nodes: int, cut: Cut | None = None
    ) -> tuple[Simulator[ReplayedRequest], DraftingCore]:
        core = DraftingCore(DraftConfig(max_nodes=num_nodes + 1, max_depth=MAX_DEPTH), parameters, table=self.table)
        for text in self.own_texts:
            core.history.add(text)
        simulator = core_simulator(core, num_nodes, cut)
        simulator.decode(request)
        return simulator, core


def by_task(requests: Iterable[RecordedRequest]) -> dict[str, list[RecordedRequest]]:
    """Requests of each task, in the order of their first ones."""
    tasks: dict[str, list[RecordedRequest]] = {}
    for request in requests:
        tasks.setdefault(request.task, []).append(request)
    return tasks


def in_turn(groups: Iterable[Sequence[RecordedRequest]]) -> Iterator[RecordedRequest]:
    """One of each group by turns, so that none is learned last."""
    for some in zip_longest(*groups):
        yield from (request for request in some if request is not None)
