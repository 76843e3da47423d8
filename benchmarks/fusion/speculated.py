"""Tokens a pass of a trained speculator, alone and beside retrieval, by three ways of putting trees together.

    python -m benchmarks.fusion.speculated RECORDING PACKAGE [--head HEAD] [--nodes 4,8,16]
        [--all [DATASTORE ...] [--beside HEAD]]

RECORDING: answers with their successors (`reader-edge bench record PACKAGE`), one turn each. What proposes is
PACKAGE's own speculator, or a head of `train-drafter`. Every request meets drafters that know nothing but what ships:

- retrieval: all that the engine drafts from by default;
- alone: the proposer's tree by EAGLE-2's rule (arXiv 2406.16858);
- RASD's rule (arXiv 2503.03434): both trees joined, by the best of nine settings over these very answers at each number
  of nodes: more than anybody could know before;
- mixture: the proposer as one more source of ours; a speculator then goes on behind what was retrieved, too;
- with --all: all that an engine can have (`all_sources.py`), without the proposer and with it: also past answers to the
  recording's other prompts, PACKAGE's own answers (`reader-edge warm`), DATASTOREs, and a HEAD beside a speculator.

Behind the table: what is drafted with the proposer over the proposer alone, and over the same without it, with standard
errors by the jackknife over answers.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.fusion.__main__ import RULES, Begin
from benchmarks.fusion.all_sources import AllSources
from benchmarks.fusion.proposed_requests import EagleRequest, RasdRequest, Record
from benchmarks.fusion.proposer import Proposer, proposed
from benchmarks.fusion.recorded_package import RecordedPackage
from benchmarks.fusion.rule import Rule
from benchmarks.fusion.trained_proposer import Begin as BeginTrained
from benchmarks.fusion.trained_proposer import TrainedProposer
from benchmarks.peers.tables import table
from reader_edge.bench.decode.fixed_budget import budget_config
from reader_edge.bench.decode.source_sets import SourceStock
from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.replay.heard_answer import ReplayedAnswer
from reader_edge.bench.replay.simulator import Simulator
from reader_edge_runtime.arrays import BoolArray, Float64Array
from reader_edge_runtime.assembly import open_head_source, open_package
from reader_edge_runtime.drafting.sources.datastore.datastore import open_datastores
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers

SHARE_OF_READER = 1.4  # all over the speculator alone, by READER's abstract (arXiv 2508.09072)


class Lengths(NamedTuple):
    """Of answers: tokens that steps emitted, and these steps, float64 (R,)."""

    tokens: Float64Array
    steps: Float64Array

    def mean(self) -> tuple[float, float]:
        """Tokens a pass, and the standard error."""
        return jackknifed(self.tokens, self.steps)


def jackknifed(upper: Float64Array, lower: Float64Array) -> tuple[float, float]:
    """A ratio of sums over answers, and its standard error."""
    without = (upper.sum() - upper) / (lower.sum() - lower) if len(upper) > 1 else np.full(1, np.nan)
    return float(upper.sum() / lower.sum()), float(without.std() * (len(upper) - 1) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("--head", type=Path, help="what proposes in the speculator's place")
    parser.add_argument("--nodes", default="4,8,16")
    parser.add_argument("--all", type=Path, nargs="*", metavar="DATASTORE", help="two more columns, of all sources")
    parser.add_argument("--beside", type=Path, metavar="HEAD", help="with --all: one beside the package's speculator")
    arguments = parser.parse_args()
    if arguments.beside is not None and (arguments.all is None or arguments.head is not None):
        parser.error("--beside needs --all, and stands beside a speculator: leave --head out")
    package = open_package(arguments.package)
    recorded = RecordedPackage(arguments.recording, package)
    trained = TrainedProposer.open(package, arguments.head, arguments.beside is not None)
    records = propose_all(trained.proposer, recorded.requests)
    stock = SourceStock((), recorded.table, None, [trained.source])
    budgets = [int(each) for each in arguments.nodes.split(",")]
    every = None
    if arguments.all is not None:
        opened = open_datastores(arguments.all, recorded.fingerprint, package.manifest.vocab_size)
        beside = [] if arguments.beside is None else [open_head_source(arguments.beside, package)]
        whole = SourceStock(opened, recorded.table, OwnAnswers.of_package(package), [*beside, trained.source])
        every = AllSources(whole, trained.begin, recorded.requests, max(budgets))
    ways = Ways(stock, trained.begin, records, max(budgets))
    print("\n".join(report(recorded.requests, ways, budgets, every)))


def propose_all(proposer: Proposer, requests: Sequence[RecordedRequest]) -> dict[int, Record]:
    """Of each recorded turn, by its `id`."""
    return {id(turn): proposed(proposer, turn) for request in requests for turn in request.turns}


class Ways:
    """To draft for a request. stock: its one further source is what proposed `records`, and hears by `begin`."""

    def __init__(self, stock: SourceStock, begin: BeginTrained, records: Mapping[int, Record], max_nodes: int) -> None:
        *_, before, names = stock.sets(is_warm=False)
        config = budget_config(max_nodes)
        self._retrieval, self._mixture = stock.drafter(before, config), stock.drafter(names, config)
        self._begin, self._records = begin, records

    def retrieval(self, turn: RecordedTurn) -> ReplayedAnswer:
        self._retrieval.forget()
        return ReplayedAnswer(self._retrieval, turn)

    def alone(self, turn: RecordedTurn) -> EagleRequest:
        return EagleRequest(self._records[id(turn)], turn)

    def rasd(self, rule: Rule, turn: RecordedTurn) -> RasdRequest:
        self._retrieval.forget()
        return RasdRequest(self._records[id(turn)], self._retrieval, rule, turn)

    def mixture(self, turn: RecordedTurn) -> ReplayedAnswer:
        self._mixture.forget()
        return self._begin(self._mixture, turn)


def report(
    requests: Sequence[RecordedRequest], ways: Ways, budgets: Sequence[int], every: AllSources | None = None
) -> list[str]:
    """A table by category, one of all with standard errors, and what retrieval and the proposer add to each other."""
    begins: dict[str, Begin] = {"retrieval": ways.retrieval, "alone": ways.alone, "mixture": ways.mixture}
    found = {name: [replayed(requests, begin, n) for n in budgets] for name, begin in begins.items()}
    found["RASD's rule"] = [
        max((replayed(requests, partial(ways.rasd, rule), n) for rule in RULES), key=lambda each: each.mean())
        for n in budgets
    ]
    if every is not None:
        found |= {name: [replayed(requests, begin, n) for n in budgets] for name, begin in every.begins.items()}
    tasks = np.array([request.task for request in requests])
    rows = []
    for task in [*sorted(set(tasks)), "all"]:
        chosen = tasks == task if task != "all" else np.ones(len(tasks), np.bool_)
        rows.append([task, *(_cell(by_budget, chosen, task == "all") for by_budget in found.values())])
    told = [
        f"{name} over {below}: {_ratio(found[name], found[below])}{said}."
        for name, without in (("mixture", "retrieval"), ("all, with it", "all, without"))
        if name in found
        for below, said in (("alone", f"; READER's abstract says {SHARE_OF_READER}"), (without, ""))
    ]
    return [*table(["tokens a pass", *found], rows), "", *told]


def _ratio(upper: Sequence[Lengths], lower: Sequence[Lengths]) -> str:
    """Of tokens a pass, which are of the same tokens."""
    ratios = [jackknifed(below.steps, above.steps) for above, below in zip(upper, lower, strict=True)]
    return " / ".join(f"{ratio:.3f} ± {error:.3f}" for ratio, error in ratios)


def replayed(requests: Sequence[RecordedRequest], begin: Begin, num_nodes: int) -> Lengths:
    """Of a way to draft, with so many drafted nodes."""
    tokens, steps = [], []
    for request in requests:
        simulator = Simulator(begin, lambda answer, num_left: answer.draft(num_nodes + 1))
        simulator.decode(request)
        steps.append(simulator.stats.num_steps)
        tokens.append(simulator.stats.acceptance_length * steps[-1])
    return Lengths(np.array(tokens, float), np.array(steps, float))


def _cell(by_budget: Sequence[Lengths], chosen: BoolArray, has_errors: bool) -> str:
    means = [Lengths(each.tokens[chosen], each.steps[chosen]).mean() for each in by_budget]
    return " / ".join(f"{mean:.2f} ± {error:.2f}" if has_errors else f"{mean:.2f}" for mean, error in means)


if __name__ == "__main__":
    main()
