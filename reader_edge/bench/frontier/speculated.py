"""What a package's trained speculator adds to our trees, over recorded answers and the states that it would read."""

import time
from collections.abc import Sequence
from math import inf
from statistics import median

from reader_edge.bench.decode.fixed_budget import budget_config
from reader_edge.bench.decode.source_sets import SourceStock
from reader_edge.bench.frontier.frontier import Reach, Speculated
from reader_edge.bench.frontier.pass_curve import PassCurve
from reader_edge.bench.frontier.rejections import Rejections
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.replay.heard_answer import ReplayedAnswer, layer_states
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import open_speculator_source, settled_target
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.drafting.worth import SourceGain
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target

_TIMED = 3  # of so many drafts one is timed; odd, as every second may be compared with one of other sources


class AlwaysAsked(SourceGain):
    """Asks in every step, whatever that takes; how far a tree then grows is still what pays."""

    def saved_s(self, token_s: float) -> float:
        return inf

    def pays(self, top_probability: float, token_s: float) -> bool:
        return True


class TimedDrafts:
    """Trees of so many nodes, some of them timed behind a pass of the target, as drafts come while decoding: that
    takes the speculator's matrices out of the caches of the processor.
    """

    def __init__(self, target: Target, num_nodes: int, past: int) -> None:
        self.seconds: list[float] = []
        self._target, self._num_nodes = target, num_nodes
        self._cache = target.new_cache(1, past + num_nodes + 1)
        self._cache.fill(0, past)
        self._num_drafts = 0

    def draft(self, answer: ReplayedAnswer, num_left: int) -> DraftTree:
        is_timed = self._num_drafts % _TIMED == 0
        self._num_drafts += 1
        if is_timed:
            chain = DraftTree.chain([0] * (self._num_nodes + 1))
            self._target.forward(self._cache, Pass(0, [chain], [range(len(chain))]))
        began = time.perf_counter()
        tree = answer.draft(self._num_nodes + 1)
        if is_timed:
            self.seconds.append(time.perf_counter() - began)
        return tree


class SpeculatedReplay:
    """Every answer is drafted afresh from its own text, from what the target says, and by the speculator.

    Its passes are made on this machine, so that its time is measured. temperature: that of the recording. Raises
    ConfigError for a package without a speculator, and for a recording of several turns or without successors.
    """

    def __init__(
        self, package: ModelPackage, config: EngineConfig, table: SuccessorTable | None, temperature: float = 0.0
    ) -> None:
        if package.manifest.speculator is None:
            raise ConfigError(f"'{package.folder}' has no speculator: leave --speculator out, or export it with one.")
        self._target, _ = settled_target(package, config)
        source = open_speculator_source(package, self._target, config)
        source.gain = AlwaysAsked()
        self._stock, self._temperature = SourceStock((), table, None, [source]), temperature
        self._states: dict[int, Float32Array] = {}  # of each turn, by its `id`

    def speculated(self, requests: Sequence[RecordedRequest], num_nodes: int, curve: PassCurve) -> Speculated:
        """Of so many drafted nodes, where plain passes take what they do."""
        if any(len(request.turns) != 1 or request.turns[0].successors is None for request in requests):
            raise ConfigError(
                "With --speculator a recording has one turn a request, with successors: `bench record` makes one."
            )
        *_, without, with_it = self._stock.sets(is_warm=False)
        asked, others = (self._reach(requests, names, num_nodes, curve) for names in (with_it, without))
        return Speculated(asked, others)

    def _reach(
        self, requests: Sequence[RecordedRequest], names: Sequence[str], num_nodes: int, curve: PassCurve
    ) -> Reach:
        drafter = self._stock.drafter(names, budget_config(num_nodes))

        def begin(turn: RecordedTurn) -> ReplayedAnswer:
            drafter.forget()
            return ReplayedAnswer(drafter, turn, None, self._heard(turn), curve.plain_s, self._temperature)

        drafts = TimedDrafts(self._target, num_nodes, curve.past)
        simulator = Simulator(begin, drafts.draft)
        for request in requests:
            simulator.decode(request)
        stats = simulator.stats
        beside_s = median(drafts.seconds) + stats.acceptance_length * median(simulator.learn_us) / 1e6
        return Reach(dict(simulator.stats_by_task), Rejections(), curve.passes_s(stats), beside_s, {})

    def _heard(self, turn: RecordedTurn) -> Float32Array:
        if id(turn) not in self._states:
            self._states[id(turn)] = layer_states(self._target, turn)
        return self._states[id(turn)]
