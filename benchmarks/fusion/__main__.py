"""Tokens a pass by what is drafted from, and by how it is put together: ours, and RASD's rule with the same evidence.

    python -m benchmarks.fusion RECORDING PACKAGE [--head HEAD] [--nodes 4,8,16,64]

RECORDING: answers with their successors (`reader-edge bench record`) of PACKAGE's model. Every request meets drafters
that know nothing but what ships with them. RASD's settings are tried on these very answers, and those that reach most
over all are told: more than anybody could know before. With a head, the package tells its hidden states of the recorded
texts, and both ways of putting together hear in every step what it guesses, too.
"""

import argparse
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from benchmarks.fusion.headed_model import HeadedModel
from benchmarks.fusion.recorded_package import RecordedPackage
from benchmarks.fusion.rule import FusedRequest, RecordedModel, Rule
from benchmarks.peers.tables import table
from reader_edge.bench.decode.fixed_budget import budget_config
from reader_edge.bench.decode.source_sets import SourceStock
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.replay.heard_answer import ReplayedAnswer, hidden_states
from reader_edge.bench.replay.replayed_request import MAX_DEPTH, ReplayedRequest
from reader_edge.bench.replay.simulator import SimulatedRequest, Simulator
from reader_edge_runtime import DraftConfig, EngineConfig
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import open_head_source, open_package, settled_target
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.sources.head_source import HeadSource
from reader_edge_runtime.drafting.sources.successor_store import SuccessorStore
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable

RULES = [Rule(*each) for each in itertools.product((0.0, 0.01, 0.1), (0.25, 0.5, 0.75))]
MODEL_ALONE = Rule(2.0, 1.0)  # nothing retrieved is as likely

Lengths = dict[str, float]  # tokens a pass by category, and of all


class Request(SimulatedRequest, Protocol):
    """A request that drafts."""

    def draft(self, max_nodes: int, /) -> DraftTree:
        """A tree of so many nodes, the root included."""


Begin = Callable[[RecordedTurn], Request]
Ruled = Callable[[Rule, RecordedTurn], Request]


class Drafters:
    """Ways to draft for a request from nothing but what ships. table: of the package, None where it has none."""

    def __init__(self, table: SuccessorTable | None, max_nodes: int) -> None:
        self._table = table
        self._max_nodes = max_nodes

    def retrieval(self, turn: RecordedTurn) -> ReplayedRequest:
        """From the request's own text."""
        return ReplayedRequest(self._core(is_logits_used=False), turn)

    def with_table(self, turn: RecordedTurn) -> ReplayedRequest:
        """And from the package's table, which learns nothing."""
        core = self._core(is_logits_used=False)
        core.successors = SuccessorStore(1, self._table)
        return ReplayedRequest(core, turn)

    def mixture(self, turn: RecordedTurn) -> ReplayedRequest:
        """And from what the target says of each token: all there is."""
        return ReplayedRequest(self._core(is_logits_used=True), turn)

    def fused(self, rule: Rule, turn: RecordedTurn) -> FusedRequest:
        """From the same as the mixture, by RASD's rule."""
        return FusedRequest(self._core(is_logits_used=False), self._recorded(turn), rule, turn)

    def _recorded(self, turn: RecordedTurn) -> RecordedModel:
        return RecordedModel(self._core(is_logits_used=True), turn)

    def _core(self, is_logits_used: bool) -> DraftingCore:
        config = DraftConfig(
            max_nodes=self._max_nodes + 1, max_depth=MAX_DEPTH, is_history_used=False, is_logits_used=is_logits_used
        )
        return DraftingCore(config, table=self._table)


class HeadedDrafters(Drafters):
    """With a trained head. states: float32 (R, E) of each recorded turn, by its `id`."""

    def __init__(
        self, table: SuccessorTable | None, max_nodes: int, head: HeadSource, states: Mapping[int, Float32Array]
    ) -> None:
        super().__init__(table, max_nodes)
        self._head, self._states = head, states
        names = ("context", "logits", *["table"] * (table is not None), head.name)
        self._drafter = SourceStock((), table, None, [head]).drafter(names, budget_config(max_nodes))

    def mixture_with_head(self, turn: RecordedTurn) -> ReplayedAnswer:
        """From all there is, and the head."""
        self._drafter.forget()
        return ReplayedAnswer(self._drafter, turn, self._states[id(turn)])

    def fused_with_head(self, rule: Rule, turn: RecordedTurn) -> FusedRequest:
        """From the same, by RASD's rule."""
        model = HeadedModel(self._recorded(turn), self._head, turn, self._states[id(turn)])
        return FusedRequest(self._core(is_logits_used=False), model, rule, turn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("--head", type=Path, help="one trained for the package, to draft from as well")
    parser.add_argument("--nodes", default="4,8,16,64")
    arguments = parser.parse_args()
    package = open_package(arguments.package)
    recorded = RecordedPackage(arguments.recording, package)
    budgets = [int(each) for each in arguments.nodes.split(",")]
    drafters = Drafters(recorded.table, max(budgets))
    if arguments.head is not None:
        head = open_head_source(arguments.head, package)
        target, _ = settled_target(package, EngineConfig(is_probed=False))
        turns = [turn for request in recorded.requests for turn in request.turns]
        states = {id(turn): hidden_states(target, turn) for turn in turns}
        drafters = HeadedDrafters(recorded.table, max(budgets), head, states)
    print("\n".join(report(recorded.requests, drafters, budgets)))


def report(requests: Sequence[RecordedRequest], drafters: Drafters, budgets: Sequence[int]) -> list[str]:
    """A table by category, with the best of the settings of RASD's rule at each number of nodes, and one of these."""
    begins: dict[str, Begin] = {
        "retrieval": drafters.retrieval,
        "+ table": drafters.with_table,
        "recorded successors alone": partial(drafters.fused, MODEL_ALONE),
        "our mixture": drafters.mixture,
    }
    ruled: dict[str, Ruled] = {"RASD's rule at its best": drafters.fused}
    if isinstance(drafters, HeadedDrafters):
        begins["our mixture with the head"] = drafters.mixture_with_head
        ruled["RASD's rule with it at its best"] = drafters.fused_with_head
    ways = {name: [lengths(requests, begin, n) for n in budgets] for name, begin in begins.items()}
    tried = {
        name: [[lengths(requests, partial(begin, rule), n) for n in budgets] for rule in RULES]
        for name, begin in ruled.items()
    }
    for name, by_rule in tried.items():
        by_budget = zip(*by_rule, strict=True)
        ways[name] = [max(each, key=lambda found: found["all"]) for each in by_budget]
    rows = [[category, *(_cell(found, category) for found in ways.values())] for category in ways["retrieval"][0]]
    settings = [
        "RASD's threshold",
        "share of the draft model's tree",
        *(f"tokens a pass, all: {name}" for name in ruled),
    ]
    rules = [
        [f"{rule.threshold:g}", f"{rule.share:g}", *(_cell(by_rule[number], "all") for by_rule in tried.values())]
        for number, rule in enumerate(RULES)
    ]
    return [*table(["tokens a pass", *ways], rows), "", *table(settings, rules)]


def _cell(by_budget: Sequence[Lengths], category: str) -> str:
    return " / ".join(f"{found[category]:.2f}" for found in by_budget)


def lengths(requests: Sequence[RecordedRequest], begin: Begin, num_nodes: int) -> Lengths:
    """Of a way to draft, with so many drafted nodes."""
    simulator = Simulator(begin, lambda request, num_left: request.draft(num_nodes + 1))
    for request in requests:
        simulator.decode(request)
    by_task = {task: stats.acceptance_length for task, stats in sorted(simulator.stats_by_task.items())}
    return {**by_task, "all": simulator.stats.acceptance_length}


if __name__ == "__main__":
    main()
