"""What noise that target and speculator share would gain through our mixture, at a larger shape's times (modelled).

    python -m benchmarks.fusion.shared_noise RECORDING PACKAGE [--temperature 0.7] [--draws 2]

RECORDING: answers that were sampled at this temperature, with their successors. Passes take what they take at the shape
of Qwen2.5-3B; trees are as wide as pays, and PACKAGE's speculator is asked where that pays. Each recorded token stays:
noise is drawn as it is when that token has the most of probability and noise together, and the speculator's tokens are
then as likely as their own probabilities with the same noise say.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.fusion.recorded_package import RecordedPackage
from benchmarks.peers.tables import table
from reader_edge.bench.decode.fixed_budget import budget_config
from reader_edge.bench.decode.source_sets import SourceStock
from reader_edge.bench.frontier.pass_curve import best_width
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.replay.heard_answer import ReplayedAnswer, layer_states, passes
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime import EngineConfig, GenerationStats
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.drafting.sources.speculator.growth import Growth
from reader_edge_runtime.drafting.sources.speculator.speculated_tree import tempered
from reader_edge_runtime.drafting.sources.speculator.speculator import Speculator, SpeculatorResult, TreeStep
from reader_edge_runtime.drafting.sources.speculator.speculator_source import SpeculatorSource
from reader_edge_runtime.drafting.sources.speculator.step_times import StepTimes
from reader_edge_runtime.drafting.worth import SourceGain
from reader_edge_runtime.execution.providers import open_speculator
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target

# Quiet, of two cores: docs/explanation/measured/drafts/speculator-times.md; those between are on lines.
_PASS_S = np.interp(range(1, 18), [1, 2, 4, 8, 16], [0.0323, 0.0346, 0.0432, 0.0644, 0.11])
_SPECULATOR_S = [1.99e-3, 2.05e-3, 2.26e-3, 3.0e-3, 4.2e-3, 12e-3]  # of StepTimes' widths
_BESIDE_S = 5e-4  # of drafting again
_FIRST_GAINS = (0.4, 0.36, 0.24, 0.06)
_MEAN_GUMBEL = 0.5772

Noise = dict[int, Float32Array]  # (V,), by position


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--draws", type=int, default=2)
    arguments = parser.parse_args()
    package = open_package(arguments.package)
    recorded = RecordedPackage(arguments.recording, package)
    replay = Replay(package, recorded, arguments.temperature)
    rows = [["without a speculator", *replay.figures(0.0, is_asking=False)]]
    rows += [["its probabilities as they are", *replay.figures(0.0)]]
    rows += [["at the answer's temperature", *replay.figures(arguments.temperature)]]
    for draw in range(arguments.draws):
        replay.draw_noise(np.random.default_rng(draw))
        rows += [["and the same noise", *replay.figures(0.0, has_noise=True)]]
    print("\n".join(table(["", "tokens a pass", "steps in which it is asked", "step, ms", "tokens/s"], rows)))


class FixedTimes(StepTimes):
    def learn(self, num_nodes: int, seconds: float) -> None:
        """They are given."""


class FixedGain(SourceGain):
    """Learns tokens, but no times."""

    def __init__(self) -> None:
        super().__init__(_FIRST_GAINS)
        self.seconds = _BESIDE_S + _SPECULATOR_S[0] + _SPECULATOR_S[2]

    def learn(self, top_probability: float, num_gained: int, seconds: float) -> None:
        super().learn(top_probability, num_gained, self.seconds)


class NoisySpeculator:
    """A `Speculator` of one text, whose tokens are as likely as with the noise of their positions; {} for none.

    seconds: that its passes would take.
    """

    def __init__(self, saying: Speculator, temperature: float) -> None:
        self._saying, self._temperature = saying, temperature
        self.part, self.max_context, self.state_size = saying.part, saying.max_context, saying.state_size
        self.noise: Noise = {}
        self.seconds, self._times = 0.0, FixedTimes(_SPECULATOR_S)

    def new_cache(self, num_slots: int, capacity: int) -> Cache:
        return self._saying.new_cache(num_slots, capacity)

    def catch_up(
        self, cache: Cache, first_slot: int, further: Sequence[Sequence[int]], states: Sequence[Float32Array]
    ) -> SpeculatorResult:
        said = self._saying.catch_up(cache, first_slot, further, states)
        [tokens] = further
        self.seconds += self._times.seconds(len(tokens))
        return self._heard(said, [1 + cache.lengths[first_slot] + len(tokens)])  # the first token has no row

    def step(self, cache: Cache, first_slot: int, steps: Sequence[TreeStep]) -> SpeculatorResult:
        said = self._saying.step(cache, first_slot, steps)
        [step] = steps
        _, depths = step.tree.ancestors_and_depths()
        num_nodes = len(step.states)
        self.seconds += self._times.seconds(num_nodes)
        return self._heard(said, [1 + cache.lengths[first_slot] + int(depth) for depth in depths[-num_nodes:]])

    def _heard(self, said: SpeculatorResult, positions: Sequence[int]) -> SpeculatorResult:
        if not self.noise:
            return said
        top_ids, probabilities = said.top_ids.copy(), said.probabilities.copy()
        for row, position in enumerate(positions):
            if (noise := self.noise.get(position)) is None:
                continue  # behind the answer's end
            shares = tempered(probabilities[0, row], self._temperature).astype(np.float64)
            scores = np.log(np.maximum(shares, 1e-12)) + noise[top_ids[0, row]]
            others = np.log(max(1 - shares.sum(), 1e-6)) + _MEAN_GUMBEL
            weights = np.exp(scores - max(scores.max(), others))
            weights /= weights.sum() + np.exp(others - max(scores.max(), others))
            order = np.argsort(-weights, kind="stable")
            top_ids[0, row], probabilities[0, row] = top_ids[0, row][order], weights[order]
        return said._replace(top_ids=top_ids, probabilities=probabilities)


class Replay:
    """All answers of a recording, each drafted afresh."""

    def __init__(self, package: ModelPackage, recorded: RecordedPackage, temperature: float) -> None:
        config = EngineConfig(is_probed=False)
        self._target, _ = settled_target(package, config)
        self._speculator = NoisySpeculator(open_speculator(package, self._target, config), temperature)
        manifest = package.manifest
        self._source = SpeculatorSource(self._speculator, manifest.state_ids, manifest.vocab_size, 1)
        self._stock = SourceStock((), recorded.table, OwnAnswers.of_package(package), [self._source])
        self._requests: Sequence[RecordedRequest] = recorded.requests
        self._temperature = temperature
        self._states = {id(turn): layer_states(self._target, turn) for turn in self._turns()}
        self._noise: dict[int, Noise] = {}

    def _turns(self) -> Iterator[RecordedTurn]:
        return (turn for request in self._requests for turn in request.turns)

    def draw_noise(self, random: np.random.Generator) -> None:
        self._noise = {id(turn): _noise(self._target, turn, self._temperature, random) for turn in self._turns()}

    def figures(self, temperature: float, is_asking: bool = True, has_noise: bool = False) -> list[str]:
        """Tokens a pass, the share of steps in which it is asked, and what a step takes."""
        *_, without, names = self._stock.sets(is_warm=False)
        drafter = self._stock.drafter(names if is_asking else without, budget_config(len(_PASS_S) - 1))
        self._source.times, self._source.gain, self._source.growth = FixedTimes(_SPECULATOR_S), FixedGain(), Growth()
        self._speculator.seconds, num_asked, taken_s = 0.0, 0, 0.0

        def begin(turn: RecordedTurn) -> ReplayedAnswer:
            drafter.forget()
            self._speculator.noise = self._noise[id(turn)] if has_noise else {}
            states = self._states[id(turn)] if is_asking else None
            return ReplayedAnswer(drafter, turn, None, states, float(_PASS_S[0]), temperature)

        def draft(answer: ReplayedAnswer, num_left: int) -> DraftTree:
            nonlocal num_asked, taken_s
            before_s = self._speculator.seconds
            tree = answer.draft(len(_PASS_S))
            num_asked += self._speculator.seconds > before_s
            tree = tree.pruned(best_width(tree.values, _PASS_S))
            taken_s += float(_PASS_S[len(tree) - 1])
            return tree

        simulator = Simulator(begin, draft)
        for request in self._requests:
            simulator.decode(request)
        return _cells(simulator.stats, num_asked, taken_s + self._speculator.seconds + num_asked * _BESIDE_S)


def _cells(stats: GenerationStats, num_asked: int, taken_s: float) -> list[str]:
    step_s = taken_s / stats.num_steps
    shares = f"{stats.acceptance_length:.3f}", f"{num_asked / stats.num_steps:.2f}"
    return [*shares, f"{1e3 * step_s:.1f}", f"{stats.acceptance_length / step_s:.2f}"]


def _noise(target: Target, turn: RecordedTurn, temperature: float, random: np.random.Generator) -> Noise:
    """Of every token of an answer: Gumbel noise under which it is the one that is chosen."""
    text, found, position = [*turn.prompt, *turn.output], {}, 0
    for said in passes(target, text, Pass(0, [], [], wants_logits=True)):
        for logits in said.wanted_logits[0]:
            position += 1  # of the token behind this row
            if len(turn.prompt) <= position < len(text):
                shares = logits.astype(np.float64) / temperature
                shares -= np.logaddexp.reduce(shares)
                most = random.gumbel()
                # Others are Gumbel, too, cut off where the chosen one lies (Maddison et al., arXiv 1411.0030).
                noise = -np.logaddexp(-most, -shares - random.gumbel(size=len(shares))) - shares
                noise[text[position]] = most - shares[text[position]]
                found[position] = noise.astype(np.float32)
    return found


if __name__ == "__main__":
    main()
