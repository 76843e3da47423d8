"""What a second pass would bring that is sent directly behind a step's first, over the next best nodes of its draft.

    python -m benchmarks.pipeline.second_pass PACKAGE [--prompts FILE.jsonl] [--num-prompts 20] [--tokens 128]
                                              [--latencies 20,50] [--stages 2,3] [--threads 1] --out NAME.json

Stages work on the second pass while later ones have the first. It is waited for where the target goes on from the first
into it, and dropped else. Answers are decoded on one box, once with ordinary steps and once with either kind, whichever
promises more tokens a second: a pass takes what was measured here, stages take equal parts, and no link is waited for.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean

from benchmarks.pipeline.number_list import number_list
from benchmarks.pipeline.pass_split import Split, best_split, cut, num_taken, second_wait
from reader_edge.prompt_file import VERIFY_PROMPTS, read_prompts
from reader_edge_runtime import DraftConfig, Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.assembly import make_trial_decoder
from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.decoding.planning.planner import Draft, Planner, StepPlan
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.measuring.cost_cache import load_or_measure
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.stats import StepTimes

_MOST_DRAFTED = 128  # nodes of both passes


@dataclass(frozen=True, slots=True)
class Step:
    """first, second: nodes. is_used: whether the second pass was waited for."""

    first: int
    second: int
    is_used: bool
    seconds: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SecondRow:
    """tokens, nodes: of an ordinary step. The others are those of either kind: first, second: mean nodes.

    sent: share of steps with a second pass; used: share of those that waited for it. gain: tokens a second, share more.
    """

    num_stages: int
    latency_ms: float
    where: str
    tokens: float
    nodes: float
    either_tokens: float
    first: float
    second: float
    sent: float
    used: float
    gain: float


class SplitPlanner(Planner):
    """Plans steps of one or two passes over links. A second pass that the text does not go into is not scored.

    text: the whole answer that is coming, its prompt included.
    """

    def __init__(self, cost: PassCost, trip_s: float, num_stages: int, where: str) -> None:
        super().__init__(_MOST_DRAFTED)
        self.add(replace(cost, seconds=cost.seconds + trip_s))
        self.cost, self.trip_s, self.num_stages, self.where = cost.bounded(), trip_s, num_stages, where
        self.max_drafted = _MOST_DRAFTED
        self.text: list[int] = []
        self.steps: list[Step] = []
        self._split = Split([0], [], 0.0)

    def plan(
        self, requests: Sequence[Request], past: int, room: int, draft: Draft, given_room: int | None = None
    ) -> StepPlan:
        plan = super().plan(requests, past, room, draft, given_room)
        self.max_drafted, self._split = _MOST_DRAFTED, Split([0], [], 0.0)
        if not plan.drafts:
            return plan
        [whole], [request] = plan.drafts.values(), requests
        times, factor = self.cost.pass_seconds(past), request.trust.factor
        split = self._split = best_split(whole, factor, times, self.trip_s, self.num_stages, self.where)
        text = self.text[len(request.token_ids) :]
        first, both = cut(whole, split.first), cut(whole, split.first + split.second)
        tree = both if num_taken(both, text) > num_taken(first, text) else first
        return plan._replace(trees=[tree], width=len(tree))

    def settle(
        self,
        plan: StepPlan,
        requests: Sequence[Request],
        times: StepTimes,
        accepted: Sequence[Verification | None],
        asked_s: float = 0.0,
    ) -> None:
        assert accepted[0] is not None
        own, first, second = self.cost.pass_seconds(plan.past), len(self._split.first), len(self._split.second)
        is_used = plan.width > first
        seconds = float(own[first]) + self.trip_s
        if is_used:
            seconds += float(second_wait(float(own[first]), own[[second]], self.num_stages)[0])
        self.steps.append(Step(first, second, is_used, seconds, len(accepted[0].token_ids)))
        as_planned = self.times.seconds(1, plan.past)
        forward_s = as_planned[min(plan.width, len(as_planned) - 1)]
        super().settle(plan, requests, replace(times, forward_s=forward_s), accepted, asked_s)


def main() -> None:
    options = _options()
    limits = DraftConfig(max_nodes=_MOST_DRAFTED, max_depth=_MOST_DRAFTED - 1)
    engine = Engine.load(options.package, EngineConfig(threads=options.threads, max_batch=1), limits)
    cost = load_or_measure(engine.decoder.target, options.threads, 1)
    prompts = [engine.encode_prompt(each.turns[0]) for each in read_prompts(options.prompts)[: options.num_prompts]]
    texts = _decode(engine, Planner(), prompts, prompts, options.tokens, False)
    rows = list[SecondRow]()
    for num_stages, latency_ms in product(options.stages, options.latencies):
        steps = dict[str, list[Step]]()
        for where in ("nowhere", "leaf", "anywhere"):
            planner = SplitPlanner(cost, num_stages * latency_ms / 1000, num_stages, where)
            assert _decode(engine, planner, prompts, texts, options.tokens) == texts, "the text changed"
            steps[where] = planner.steps
        rows += [row_of(num_stages, latency_ms, where, steps["nowhere"], steps[where]) for where in list(steps)[1:]]
        print(*rows[-2:], sep="\n", flush=True)
    write_file(options.out, json.dumps([*map(asdict, rows)]).encode())


def _decode(
    engine: Engine, planner: Planner, prompts: list[list[int]], texts: list[list[int]], tokens: int, drafts: bool = True
) -> list[list[int]]:
    own = engine.decoder
    decoder = make_trial_decoder(own.target, own.drafter, own.config, planner, engine.width_report)
    engine.forget()
    decoded = list[list[int]]()
    for prompt, text in zip(prompts, texts, strict=True):
        if isinstance(planner, SplitPlanner):
            planner.text = text
        request = decoder.submit(prompt, GenerationConfig(max_tokens=tokens, ignores_eos=True, is_drafted=drafts))
        decoder.finish(request)
        decoded.append(list(request.token_ids))
    return decoded


def row_of(
    num_stages: int, latency_ms: float, where: str, ordinary: Sequence[Step], either: Sequence[Step]
) -> SecondRow:
    """Compare ordinary steps with those of either kind, which made the same texts."""
    sent = [step for step in either if step.second]
    return SecondRow(
        num_stages,
        latency_ms,
        where,
        fmean(step.num_tokens for step in ordinary),
        fmean(step.first for step in ordinary),
        fmean(step.num_tokens for step in either),
        fmean(step.first for step in either),
        sum(step.second for step in sent) / max(len(sent), 1),
        len(sent) / len(either),
        sum(step.is_used for step in sent) / max(len(sent), 1),
        sum(step.seconds for step in ordinary) / sum(step.seconds for step in either) - 1,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--prompts", type=Path, default=VERIFY_PROMPTS)
    parser.add_argument("--num-prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--latencies", type=number_list, default=[20, 50], help="of a link one way, in ms")
    parser.add_argument("--stages", type=number_list, default=[2, 3])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
