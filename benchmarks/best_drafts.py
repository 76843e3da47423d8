"""How far any drafts could get where answers are sampled: those of a drafter that knew the target's own probabilities.

    reader-edge bench record PACKAGE --prompts PROMPTS -n 128 --temperature 0.7 -o RECORDING.jsonl
    reader-edge bench cost PACKAGE --json > cost.json
    python -m benchmarks.best_drafts RECORDING PACKAGE cost.json --temperature 0.7

At every 16th token of each answer the target itself grows the tree of its likeliest paths, a level a pass. No tree of
as many nodes that is made without knowing the draws has more tokens to expect (top-k and top-p left aside, and of each
node the eight best successors). The speed-up is modelled: trees as wide as pass times pay for, drafting for nothing.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.recorded_package import RecordedPackage
from benchmarks.tables import table
from reader_edge.bench.pass_curve import PassCurve, read_cost
from reader_edge.bench.recording import RecordedTurn
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import Cache, ForwardResult, Pass, Target

_CHUNK = 128  # tokens of a pass over text
_APART = 16  # tokens between two places
_BUDGETS = (4, 8, 16)
_PAST = 512  # tokens before the mean place, for pass times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("cost", type=Path)
    parser.add_argument("--temperature", type=float, default=0.7)
    arguments = parser.parse_args()
    package = open_package(arguments.package)
    curve = PassCurve.of_cost(read_cost(arguments.cost), _PAST)
    target, _ = settled_target(package, EngineConfig(is_probed=False))
    trees: dict[str, list[DraftTree]] = {}
    for request in RecordedPackage(arguments.recording, package).requests:
        for turn in request.turns:
            found = best_trees(target, turn, 1 + max(_BUDGETS), arguments.temperature)
            trees.setdefault(request.task, []).extend(found)
    trees = {"all": [tree for each in trees.values() for tree in each], **trees}
    header = ["", "places", *(f"tokens a pass, {budget} nodes" for budget in _BUDGETS), "speed-up, modelled"]
    print("\n".join(table(header, [[name, *figures(each, curve)] for name, each in trees.items()])))


def figures(trees: list[DraftTree], curve: PassCurve) -> list[str]:
    """How many there are, tokens to expect of a pass at each budget, and the modelled speed-up."""
    expected = [np.cumsum(np.sort(tree.values)[::-1]) for tree in trees]
    means = [np.mean([each[: 1 + budget][-1] for each in expected]) for budget in _BUDGETS]
    widths = [curve.best_width(tree.values) for tree in trees]
    num_tokens = sum(each[width - 1] for each, width in zip(expected, widths, strict=True))
    speed_up = num_tokens * curve.plain_s / sum(curve.seconds[width] for width in widths)
    return [str(len(trees)), *(f"{mean:.2f}" for mean in means), f"{speed_up:.2f}"]


def best_trees(target: Target, turn: RecordedTurn, num_nodes: int, temperature: float) -> Iterator[DraftTree]:
    """At places of an answer that lie evenly apart, from its first token on."""
    text = [*turn.prompt, *turn.output]
    cache = target.new_cache(1, len(text) + num_nodes)
    for place in range(len(turn.prompt), len(text), _APART):
        while cache.lengths[0] < place:
            chunk = DraftTree.chain(text[cache.lengths[0] : min(place, cache.lengths[0] + _CHUNK)])
            target.forward(cache, Pass(0, [chunk], [[0]]))
            cache.commit(0, range(len(chunk)))
        yield best_tree(target, cache, text[place], num_nodes, temperature)


def best_tree(target: Target, cache: Cache, pending: int, num_nodes: int, temperature: float) -> DraftTree:
    """The tree of so many likeliest paths behind a pending token, values as a sampler of this temperature has them."""
    tree = DraftTree.root(pending)
    for _ in range(num_nodes):  # a pass may bring a level
        said = target.forward(cache, Pass(0, [tree], [range(len(tree))], wants_logits=True))
        grown = _grown(tree, said, num_nodes, temperature)
        if grown == tree:
            break
        tree = grown
    return tree


def _grown(tree: DraftTree, said: ForwardResult, num_nodes: int, temperature: float) -> DraftTree:
    """The likeliest of all that a scored tree's nodes have below them."""
    logits = said.wanted_logits[0].astype(np.float64) / temperature
    shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    children = [
        (-value * float(shares[node, token_id]), node, int(token_id))
        for node, value in enumerate(tree.values)
        for token_id in said.top_ids[0, node]
    ]
    found, places = DraftTree.root(tree.token_ids[0]), {0: 0}
    for value, node, token_id in sorted(children):
        if len(found) < num_nodes and node in places:
            place = found.add(token_id, places[node], "", -value)
            if (known := tree.child(node, token_id)) > 0:
                places[known] = place
    return found


if __name__ == "__main__":
    main()
