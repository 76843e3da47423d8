"""Tokens a pass by source set of recorded answers, trained heads among the sources, each answer drafted afresh.

    reader-edge bench record PACKAGE --prompts PROMPTS -n 128 -o RECORDING.jsonl
    python -m benchmarks.replay_head RECORDING PACKAGE HEAD [HEAD ...]

The package that was recorded tells its hidden states of the recorded texts; heads are asked in every step, and hear of
accepted drafts only, as in all replays. Behind each set with a head: the share of passes that it saves, with its
standard error by the jackknife over answers.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks.recorded_package import RecordedPackage
from benchmarks.replayed_states import hidden_states, passes_saved, replayed
from reader_edge.bench.fixed_budget import budget_config
from reader_edge.bench.source_sets import SourceStock
from reader_edge_runtime import EngineConfig, GenerationStats
from reader_edge_runtime.assembly import open_head_source, open_package, settled_target
from reader_edge_runtime.drafting.sources.head_source import HeadSource
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers

Replayed = list[list[GenerationStats]]  # by number of nodes, then by answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("heads", type=Path, nargs="+")
    parser.add_argument("--nodes", default="4,8,16,64")
    arguments = parser.parse_args()
    package = open_package(arguments.package)
    recorded = RecordedPackage(arguments.recording, package)
    requests, table, own = recorded.requests, recorded.table, OwnAnswers.of_package(package)
    target, _ = settled_target(package, EngineConfig(is_probed=False))
    states = [hidden_states(target, turn) for request in requests for turn in request.turns]
    budgets = [int(each) for each in arguments.nodes.split(",")]

    def replay(names: Sequence[str], further: Sequence[HeadSource] = ()) -> Replayed:
        found = []
        for num_nodes in budgets:
            drafter = SourceStock((), table, own, further).drafter(("context", *names), budget_config(num_nodes))
            found.append([replayed(drafter, *each, num_nodes) for each in zip(requests, states, strict=True)])
        return found

    categories = sorted({request.task for request in requests})
    num_tokens = sum(len(turn.output) for request in requests for turn in request.turns)
    print(f"{len(requests)} answers, {num_tokens} tokens\n")
    print(f"| sources | {' | '.join(['all', *categories, 'passes saved, %'])} |\n|{'---|' * (3 + len(categories))}")

    def tell(name: str, found: Replayed, without: Replayed | None = None) -> None:
        chosen = [[r for r, each in enumerate(requests) if task in ("", each.task)] for task in ("", *categories)]
        cells = [" / ".join(f"{acceptance(of, numbers):.2f}" for of in found) for numbers in chosen]
        gains = [] if without is None else [passes_saved(*pair) for pair in zip(without, found, strict=True)]
        print(f"| {name} | {' | '.join([*cells, ' / '.join(gains)])} |", flush=True)

    tell("context", replay(()))
    floors = {"table": replay(("logits", "table"))}
    if own is not None:
        floors["table + own answers"] = replay(("logits", "table", "own answers"))
    for name, floor in floors.items():
        tell(f"context + logits + {name}", floor)
    for path in arguments.heads:
        head = open_head_source(path, package)
        for name, floor in floors.items():
            found = replay(("logits", *name.split(" + "), "head"), [head])
            tell(f"context + logits + {name} + {path.stem}", found, floor)


def acceptance(stats: Sequence[GenerationStats], chosen: Sequence[int]) -> float:
    return GenerationStats.total(stats[number] for number in chosen).acceptance_length


if __name__ == "__main__":
    main()
