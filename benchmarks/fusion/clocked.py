"""By the clock: recorded answers of one package, drafted with its speculator, on the passes of a larger shape.

    python -m benchmarks.fusion.clocked RECORDING PACKAGE LARGER [--past 256] [--rounds 3] [--waits]

LARGER: a package of random weights with a speculator (`scripts/random_model`). The recorded token decides what is
accepted. PACKAGE's speculator says what comes next, and for every pass of it one of LARGER's is made, too, so that
drafting takes what it would there and a little more. Drafting, passes and learning are timed, prompts are not. Each
answer is drafted afresh, in turn without the speculator and with it, asked where that pays; the median of each
answer's rounds counts. With --waits a pass is waited for as long as it was measured to take, and not made: where a
machine is shared, passes over the same weights take up to twice as long from one second to the next.
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

import numpy as np

from benchmarks.fusion.recorded_package import RecordedPackage
from benchmarks.peers.tables import table
from reader_edge.bench.decode.fixed_budget import budget_config
from reader_edge.bench.decode.source_sets import SourceStock
from reader_edge.bench.frontier.pass_curve import best_width
from reader_edge.bench.recording import RecordedRequest
from reader_edge.bench.replay.heard_answer import ReplayedAnswer, layer_states
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime import EngineConfig, GenerationStats
from reader_edge_runtime.arrays import Float32Array, Float64Array
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.drafting.sources.speculator.speculator import Speculator, SpeculatorResult, TreeStep
from reader_edge_runtime.drafting.sources.speculator.speculator_source import SpeculatorSource
from reader_edge_runtime.drafting.sources.speculator.step_times import StepTimes
from reader_edge_runtime.execution.providers import open_speculator
from reader_edge_runtime.measuring.cost_cache import load_or_measure
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target

_MAX_NODES = 17  # of a tree, the pending token's among them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("larger", type=Path)
    parser.add_argument("--past", type=int, default=256, help="tokens that LARGER's passes see")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waits", action="store_true", help="wait for passes of LARGER instead of making them")
    arguments = parser.parse_args()
    package, larger = open_package(arguments.package), open_package(arguments.larger)
    recorded = RecordedPackage(arguments.recording, package)
    clock = Clock.open(package, larger, arguments.past, arguments.waits)
    stock = SourceStock((), recorded.table, OwnAnswers.of_package(package), [clock.source])
    print("\n".join(report(clock, stock, recorded.requests, arguments.rounds)))


class SlowerSpeculator:
    """A `Speculator` that says what one says, after a pass of another's over as many nodes behind `past` rows.

    waits: for what that pass was measured to take, in its place.
    """

    def __init__(self, saying: Speculator, slower: Speculator, past: int, waits: bool) -> None:
        self._saying, self._slower = saying, slower
        self._times = StepTimes.measure(slower) if waits else None
        self.part, self.max_context, self.state_size = saying.part, saying.max_context, saying.state_size
        self._cache = slower.new_cache(1, past + 1)
        self._cache.fill(0, past)

    def new_cache(self, num_slots: int, capacity: int) -> Cache:
        return self._saying.new_cache(num_slots, capacity)

    def catch_up(
        self, cache: Cache, first_slot: int, further: Sequence[Sequence[int]], states: Sequence[Float32Array]
    ) -> SpeculatorResult:
        num_nodes = max(map(len, further))
        heard = np.zeros((num_nodes, self._slower.state_size), np.float32)
        with slowed(
            lambda: self._slower.catch_up(self._cache, 0, [[0] * num_nodes], [heard]), self._waited_s(num_nodes)
        ):
            return self._saying.catch_up(cache, first_slot, further, states)

    def step(self, cache: Cache, first_slot: int, steps: Sequence[TreeStep]) -> SpeculatorResult:
        num_nodes = max(len(each.states) for each in steps)
        states = np.zeros((num_nodes, self._slower.part.hidden_size), np.float32)
        slower = TreeStep(DraftTree.chain([0] * (1 + num_nodes)), 1, states)
        with slowed(lambda: self._slower.step(self._cache, 0, [slower]), self._waited_s(num_nodes)):
            return self._saying.step(cache, first_slot, steps)

    def _waited_s(self, num_nodes: int) -> float | None:
        return None if self._times is None else self._times.seconds(num_nodes)


@contextmanager
def slowed(make_pass: Callable[[], object], waited_s: float | None) -> Iterator[None]:
    """Make a pass before what is done; or, with seconds, have that take no less than so long instead."""
    if waited_s is None:
        make_pass()
    ends = time.perf_counter() + (waited_s or 0.0)
    yield
    while time.perf_counter() < ends:
        pass  # a sleep may end late


class Clock:
    """Times decoding of recorded answers.

    target: tells the states that `source` reads, a speculator to draft from beside others. larger: makes the passes,
    behind `past` tokens, or is waited for. times: float64 (n,), seconds of its passes over 1, 2, ... nodes.
    """

    def __init__(
        self, target: Target, larger: Target, source: SpeculatorSource, times: Float64Array, past: int, waits: bool
    ) -> None:
        self.source = source
        self._target, self._larger, self._times, self._waits = target, larger, times, waits
        self._cache = larger.new_cache(1, past + len(times))
        self._cache.fill(0, past)
        self._states: dict[int, Float32Array] = {}

    @classmethod
    def open(cls, package: ModelPackage, larger_package: ModelPackage, past: int, waits: bool) -> "Clock":
        config = EngineConfig(is_probed=False)
        target, larger = settled_target(package, config)[0], settled_target(larger_package, config)[0]
        slower = SlowerSpeculator(
            open_speculator(package, target, config), open_speculator(larger_package, larger, config), past, waits
        )
        source = SpeculatorSource(slower, package.manifest.state_ids, package.manifest.vocab_size, 1)
        seconds = load_or_measure(larger, config.threads, 1).bounded().pass_seconds(past)
        return cls(target, larger, source, seconds[1 : _MAX_NODES + 1], past, waits)

    def decode(
        self, drafter: RetrievalDrafter, request: RecordedRequest, is_asking: bool
    ) -> tuple[float, GenerationStats]:
        """Seconds of decoding an answer, and what was counted."""
        [turn] = request.turns
        if id(turn) not in self._states:
            self._states[id(turn)] = layer_states(self._target, turn)
        states = self._states[id(turn)] if is_asking else None
        drafter.forget()

        def pass_over_draft(answer: ReplayedAnswer, num_left: int) -> DraftTree:
            tree = answer.draft(_MAX_NODES)
            tree = tree.pruned(best_width(tree.values, self._times))
            waited_s = float(self._times[len(tree) - 1]) if self._waits else None
            with slowed(lambda: run_pass(self._larger, self._cache, len(tree), is_asking), waited_s):
                return tree

        token_s = float(self._times[0])
        simulator = Simulator(
            lambda turn: ReplayedAnswer(drafter, turn, layer_states=states, token_s=token_s), pass_over_draft
        )
        simulator.decode(request)
        return simulator.stats.draft_s + simulator.stats.learn_s, simulator.stats


def run_pass(target: Target, cache: Cache, num_nodes: int, wants_layer_states: bool) -> None:
    wanted = Pass(0, [DraftTree.chain([0] * num_nodes)], [range(num_nodes)], wants_layer_states=wants_layer_states)
    target.forward(cache, wanted)


def report(clock: Clock, stock: SourceStock, requests: Sequence[RecordedRequest], num_rounds: int) -> list[str]:
    """A row a category: tokens a pass and a second without the speculator, with it, and how much faster that is."""
    *_, without, names = stock.sets(is_warm=False)
    drafters = [stock.drafter(each, budget_config(_MAX_NODES - 1)) for each in (without, names)]
    seconds = defaultdict[str, list[float]](lambda: [0.0, 0.0])
    stats = defaultdict[str, list[GenerationStats]](lambda: [GenerationStats(), GenerationStats()])
    for request in requests:
        rounds = [[clock.decode(each, request, i == 1) for i, each in enumerate(drafters)] for _ in range(num_rounds)]
        for i, found in enumerate(zip(*rounds, strict=True)):
            taken_s, counted = sorted(found, key=itemgetter(0))[num_rounds // 2]
            for task in (request.task, "all"):
                seconds[task][i] += taken_s
                stats[task][i] = GenerationStats.total([stats[task][i], counted])
    rows = []
    for task in [*sorted(set(seconds) - {"all"}), "all"]:
        rates = [counted.num_decoded_tokens / s for counted, s in zip(stats[task], seconds[task], strict=True)]
        lengths = " / ".join(f"{counted.acceptance_length:.2f}" for counted in stats[task])
        rows.append([task, lengths, f"{rates[0]:.1f}", f"{rates[1]:.1f}", f"{rates[1] / rates[0]:.3f}"])
    return table(["", "tokens a pass", "tokens/s without", "with", "ratio"], rows)


if __name__ == "__main__":
    main()
