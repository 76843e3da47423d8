"""What a package's trained speculator adds to our trees, over recorded answers and the states that it would read."""

from collections.abc import Sequence
from statistics import median

from reader_edge.bench.decode.fixed_budget import budget_config
from reader_edge.bench.decode.source_sets import SourceStock
from reader_edge.bench.frontier.frontier import Reach
from reader_edge.bench.frontier.pass_curve import PassCurve
from reader_edge.bench.frontier.rejections import Rejections
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.replay.heard_answer import ReplayedAnswer, layer_states
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import open_speculator_source, settled_target
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.model_package import ModelPackage


class SpeculatedReplay:
    """Every answer is drafted afresh from its own text, from what the target says, and by the speculator.

    Its passes are made on this machine, so that its time is measured. Raises ConfigError for a package without a
    speculator, and for a recording of several turns or without successors.
    """

    def __init__(self, package: ModelPackage, config: EngineConfig, table: SuccessorTable | None) -> None:
        if package.manifest.speculator is None:
            raise ConfigError(f"'{package.folder}' has no speculator: leave --speculator out, or export it with one.")
        self._target, _ = settled_target(package, config)
        self._stock = SourceStock((), table, None, [open_speculator_source(package, self._target, config)])
        self._states: dict[int, Float32Array] = {}  # of each turn, by its `id`

    def reach(self, requests: Sequence[RecordedRequest], num_nodes: int, curve: PassCurve) -> Reach:
        """Of so many drafted nodes, as many passes of the speculator as pay where plain passes take what they do."""
        drafter = self._stock.drafter(self._stock.sets(is_warm=False)[-1], budget_config(num_nodes))

        def begin(turn: RecordedTurn) -> ReplayedAnswer:
            drafter.forget()
            return self._answer(drafter, turn, curve.plain_s)

        simulator = Simulator(begin, lambda answer, num_left: answer.draft(num_nodes + 1))
        for request in requests:
            if len(request.turns) != 1 or request.turns[0].successors is None:
                raise ConfigError(
                    "With --speculator a recording has one turn a request, with successors: `bench record` makes one."
                )
            simulator.decode(request)
        stats = simulator.stats
        beside_s = (median(simulator.draft_us) + stats.acceptance_length * median(simulator.learn_us)) / 1e6
        return Reach(dict(simulator.stats_by_task), Rejections(), curve.passes_s(stats), beside_s, {})

    def _answer(self, drafter: RetrievalDrafter, turn: RecordedTurn, token_s: float) -> ReplayedAnswer:
        if id(turn) not in self._states:
            self._states[id(turn)] = layer_states(self._target, turn)
        return ReplayedAnswer(drafter, turn, layer_states=self._states[id(turn)], token_s=token_s)
