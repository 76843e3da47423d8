"""How often a pass would be of use that is sent below the likeliest leaf while the pass before is under way.

    python -m benchmarks.pipeline.sent_ahead PACKAGE [--prompts FILE.jsonl] [--num-prompts 20] [--tokens 128]
                                             [--latencies 20,50,100] [--stages 2] [--ahead 16] [--threads 1]
                                             [--least 5,10,20,30,50] --out NAME.json

It is of use where the target takes the whole path to that leaf, and then a token that the draft has below it: the next
step is then answered already. Answers are decoded on one box, planned as over links: a pass takes what was measured
here, and what all links of the ring take. No link is waited for.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.pipeline.number_list import number_list
from reader_edge.prompt_file import VERIFY_PROMPTS, read_prompts
from reader_edge_runtime import DraftConfig, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.assembly import make_trial_decoder
from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.decoding.planning.planner import Planner, StepPlan
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.measuring.cost_cache import load_or_measure
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.stats import GenerationStats, StepTimes

_MOST_DRAFTED = 128  # nodes, of which a pass gets 64 at most: the others might be sent ahead
_LIKELY = 0.5  # value of a path from which on a pass below it was thought to pay


@dataclass(frozen=True, slots=True)
class AheadRow:
    """tokens, nodes: of a step. The others are shares of all steps.

    likely: those whose likeliest leaf has a value of 0.5 or more. taken: those whose whole path to that leaf is taken.
    of_use: those of them whose next token the draft has below the leaf. gain: tokens a second at most, as a share more,
    of a pass of so many nodes below the leaf in every step, had it cost nothing; likely_gain: where the leaf is likely.
    """

    latency_ms: float
    tokens: float
    nodes: float
    likely: float
    taken: float
    of_use: float
    gain: float
    likely_gain: float


@dataclass(frozen=True, slots=True)
class LeastRow:
    """Passes that are sent only where the leaf's value is `least` or more.

    sent: share of steps. of_use: share of those sent. gain: as above. wait: share more of the time, were each that is
    of no use to keep the next pass waiting while a stage works on it. net: what of the gain is left.
    """

    latency_ms: float
    least: float
    sent: float
    of_use: float
    gain: float
    wait: float
    net: float


@dataclass(slots=True)
class _Step:
    """value: of the likeliest leaf, 0 where nothing was drafted. gain: tokens that a pass below it had."""

    value: float
    seconds: float
    gain: int = 0


class LinkedPlanner(Planner):
    """Plans as over links that take so long, and notes what became of each step's likeliest leaf."""

    def __init__(self, cost: PassCost, trip_s: float, num_ahead: int) -> None:
        super().__init__(cost.widths[-1])
        self.add(replace(cost, seconds=cost.seconds + trip_s))
        self.max_drafted = _MOST_DRAFTED
        self.num_ahead = num_ahead
        self.likely: list[bool] = []
        self.taken: list[bool] = []
        self.of_use: list[bool] = []
        self.ahead = [0, 0]  # tokens of passes ahead in all, below leaves that are unlikely and likely
        self.trip_s = trip_s
        self.num_tokens = 0
        self.steps: list[_Step] = []
        self._sender: _Step | None = None  # of the last pass of use
        self._below: tuple[DraftTree, int] | None = None  # where a pass of use has come to

    def choose(
        self, requests: Sequence[Request], drafts: Sequence[DraftTree | None], past: int
    ) -> tuple[list[int], list[float]]:
        chosen = super().choose(requests, drafts, past)
        self.max_drafted = _MOST_DRAFTED
        return chosen

    def settle(
        self,
        plan: StepPlan,
        requests: Sequence[Request],
        times: StepTimes,
        accepted: Sequence[Verification | None],
        asked_s: float = 0.0,
    ) -> None:
        tree, verification = plan.trees[0], accepted[0]
        assert verification is not None
        leaf = max(set(range(len(tree))) - set(tree.parents), key=tree.values.__getitem__)
        self._follow(verification.token_ids)
        seconds = self.times.seconds(1, plan.past)[len(tree)]
        self.steps.append(_Step(tree.values[leaf] if leaf else 0.0, float(seconds)))
        self.num_tokens += len(verification.token_ids)
        self.taken.append(leaf > 0 and verification.path[-1] == leaf)
        self.likely.append(leaf > 0 and tree.values[leaf] >= _LIKELY)
        if self.taken[-1]:
            self._send(plan.drafts[0], verification.token_ids)
        self.of_use.append(self._below is not None)
        super().settle(plan, requests, replace(times, forward_s=seconds), accepted, asked_s)

    def _send(self, draft: DraftTree, token_ids: Sequence[int]) -> None:
        """A pass over the best nodes below a taken leaf of a whole draft; of use where the last token is among them."""
        leaf = 0
        for token_id in token_ids[:-1]:
            leaf = draft.child(leaf, token_id)
        below = draft.below(leaf, 1 + self.num_ahead)
        self._below = below, 0
        self._sender = self.steps[-1]
        self._follow(token_ids[-1:])

    def _follow(self, token_ids: Sequence[int]) -> None:
        """Count those of a step's tokens that the pass ahead of it had."""
        for token_id in token_ids:
            if self._below is None:
                return
            draft, node = self._below
            child = draft.child(node, token_id)
            self._below = None if child < 0 else (draft, child)
            self.ahead[self.likely[-1]] += child >= 0
            if self._sender is not None:
                self._sender.gain += child >= 0


def main() -> None:
    options = _options()
    limits = DraftConfig(max_nodes=_MOST_DRAFTED, max_depth=_MOST_DRAFTED - 1)
    engine = Engine.load(options.package, EngineConfig(threads=options.threads, max_batch=1), limits)
    cost = load_or_measure(engine.decoder.target, options.threads, 1)
    prompts = [engine.encode_prompt(each.turns[0]) for each in read_prompts(options.prompts)[: options.num_prompts]]
    rows, leasts = list[AheadRow](), list[LeastRow]()
    for latency_ms in options.latencies:
        planner = LinkedPlanner(cost, options.stages * latency_ms / 1000, options.ahead)
        rows.append(_row(engine, planner, prompts, options.tokens, latency_ms))
        leasts += [_least_row(planner, latency_ms, percent / 100, options.stages) for percent in options.least]
        print(rows[-1], *leasts[-len(options.least) :], sep="\n", flush=True)
    write_file(options.out, json.dumps([*map(asdict, rows), *map(asdict, leasts)]).encode())


def _row(engine: Engine, planner: LinkedPlanner, prompts: list[list[int]], tokens: int, latency_ms: float) -> AheadRow:
    own = engine.decoder
    decoder = make_trial_decoder(own.target, own.drafter, own.config, planner, engine.width_report)
    config, requests = GenerationConfig(max_tokens=tokens, ignores_eos=True), list[Request]()
    engine.forget()
    for prompt in prompts:
        requests.append(decoder.submit(prompt, config))
        decoder.finish(requests[-1])
    stats = GenerationStats.total([request.stats for request in requests])
    likely, taken, of_use = (sum(each) / len(each) for each in (planner.likely, planner.taken, planner.of_use))
    gain, likely_gain = (num_tokens / stats.num_decoded_tokens for num_tokens in (sum(planner.ahead), planner.ahead[1]))
    nodes = 1 + stats.num_drafted_tokens / stats.num_steps
    return AheadRow(latency_ms, stats.acceptance_length, nodes, likely, taken, of_use, gain, likely_gain)


def _least_row(planner: LinkedPlanner, latency_ms: float, least: float, num_stages: int) -> LeastRow:
    sent = [step for step in planner.steps if step.value >= least]
    num_tokens, all_s = planner.num_tokens, sum(step.seconds for step in planner.steps)
    gain = sum(step.gain for step in sent) / num_tokens
    wait = sum((step.seconds - planner.trip_s) / num_stages for step in sent if not step.gain) / all_s
    of_use = sum(step.gain > 0 for step in sent) / max(len(sent), 1)
    net = (1 + gain) / (1 + wait) - 1
    return LeastRow(latency_ms, least, len(sent) / len(planner.steps), of_use, gain, wait, net)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--prompts", type=Path, default=VERIFY_PROMPTS)
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--latencies", type=number_list, default=[20, 50, 100], help="of a link one way, in ms")
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=16, help="nodes of a pass that is sent ahead")
    parser.add_argument("--threads", type=int, default=1)
    least = "values of a leaf, in percent, from which on a pass below it is sent"
    parser.add_argument("--least", type=number_list, default=[5, 10, 20, 30, 50], help=least)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
