"""What a drafter's probabilities are worth to sampled answers: rules of acceptance at one node, in expectation.

    python -m benchmarks.fusion.sampled RECORDING PACKAGE [--head HEAD] [--temperature 0.7]

RECORDING: answers that were sampled at this temperature. At every place of them the target's distribution p and the
proposer's q are both known, and with them how likely each lossless rule accepts one of k children:

- best children: the k that q likes best; the target draws without regard to them. This is the rule of this project.
- residual: k draws from q without replacement, each accepted with min(1, p / q), else what q left of p is gone on with
  (SpecInfer, arXiv 2305.09781). Exact: summed over all that may be drawn.
- shared noise: target and proposer add the same Gumbel noise to their logarithms; the children are the proposer's k
  best. What is said depends on the seed alone, drafted or not. Over draws of noise.
- known draw: the random number of a seed and a position is known beforehand. The target takes the token at that share
  of p, tokens in the order of their ids; the children are those around the same share of q. Texts stay as they are.
- best of p: the k that the target itself likes best, the most for children chosen without its draws.

q is what the proposer named (a head 6 tokens, a speculator 16), at the same temperature, as if there were no others.
"""

import argparse
import heapq
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.fusion.proposer import Guesses, Proposer
from benchmarks.fusion.recorded_package import RecordedPackage
from benchmarks.fusion.trained_proposer import TrainedProposer
from benchmarks.peers.tables import table
from reader_edge.bench.recording import RecordedTurn
from reader_edge.bench.replay.heard_answer import passes
from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.assembly import open_package
from reader_edge_runtime.target import Pass, Target

_CHILDREN = 1, 2, 3, 4
_DRAWS = 64  # of noise at a place
_SPREAD = 0.2  # of shares; the best of 0.01 to 0.5 for a head
_NODES = 4, 8, 16  # of trees
_STRIDE = 4  # of places, whose neighbours tell much the same


class Place(NamedTuple):
    """p: float64 (V,), the target's. token_ids, q: of K tokens, int64 and float64 (K,)."""

    p: Float64Array
    token_ids: list[int]
    q: Float64Array


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", type=Path)
    parser.add_argument("package", type=Path)
    parser.add_argument("--head", type=Path, help="what proposes in the speculator's place")
    parser.add_argument("--temperature", type=float, default=0.7)
    arguments = parser.parse_args()
    package = open_package(arguments.package)
    target, proposer, *_ = TrainedProposer.open(package, arguments.head)
    random = np.random.default_rng(0)
    shares: list[Float64Array] = []  # of each answer, (rules, numbers of children), means of its places
    num_places = 0
    for request in RecordedPackage(arguments.recording, package).requests:
        for turn in request.turns:
            found = [accepted(place, random) for place in places(target, proposer, turn, arguments.temperature)]
            shares.append(np.mean(found, 0))
            num_places += len(found)
    print(f"{num_places} places of {len(shares)} answers; shares accepted, ± standard error over answers\n")
    print("\n".join(report(np.array(shares))))


def places(target: Target, proposer: Proposer, turn: RecordedTurn, temperature: float) -> list[Place]:
    """Every few tokens of an answer."""
    text, followed = [*turn.prompt, *turn.output], proposer.begin(turn)
    heard = passes(target, text, Pass(0, [], [], wants_logits=True))
    start, found = 0, []
    for said in heard:
        logits = said.wanted_logits[0]
        for length in range(max(start + 1, len(turn.prompt) + 1), min(start + len(logits), len(text) - 1) + 1):
            if length % _STRIDE == 0:
                p = _softmax(logits[length - 1 - start].astype(np.float64) / temperature)
                found.append(_place(p, followed.go_on(length), temperature))
        start += len(logits)
    return [place for place in found if len(place.token_ids)]


def _place(p: Float64Array, guesses: Guesses, temperature: float) -> Place:
    logarithms = np.log(np.maximum(guesses.probabilities, 1e-30))
    return Place(p, guesses.token_ids, _softmax(logarithms / temperature) if len(logarithms) else logarithms)


def _softmax(logits: Float64Array) -> Float64Array:
    weights: Float64Array = np.exp(logits - logits.max())
    shares: Float64Array = weights / weights.sum()
    return shares


RULES = "best children", "residual", "shared noise", "known draw", "best of p"


def accepted(place: Place, random: np.random.Generator) -> Float64Array:
    """Probabilities (rules, numbers of children) with which a child is accepted."""
    p = place.p[place.token_ids]
    best_of_p = np.sort(place.p)[::-1]
    noisy, known = shared_noise(place, random), known_draw(place)
    return np.array(
        [
            [p[:k].sum() for k in _CHILDREN],
            [residual(p, place.q, k) for k in _CHILDREN],
            [noisy[:k].sum() for k in _CHILDREN],
            [known[:k].sum() for k in _CHILDREN],
            [best_of_p[:k].sum() for k in _CHILDREN],
        ]
    )


def residual(p: Float64Array, q: Float64Array, num_children: int) -> float:
    """How likely one of so many draws from q, without replacement, is accepted.

    p: of the same tokens; what it lacks to one is of others. What is left of p after a rejection hangs on q alone, not
    on what was drawn.
    """
    taken = float(np.minimum(p, q).sum())
    if num_children == 1 or taken > 1 - 1e-12:
        return taken
    left = np.maximum(p - q, 0) / (1 - taken)
    for token in np.flatnonzero(q > p):
        others = np.where(np.arange(len(q)) == token, 0.0, q)
        if others.sum() > 1e-12:
            taken += float(q[token] - p[token]) * residual(left, others / others.sum(), num_children - 1)
    return taken


def shared_noise(place: Place, random: np.random.Generator) -> Float64Array:
    """How often the target's choice is the proposer's best, second and so on, (K,)."""
    hits = np.zeros(max(len(place.token_ids), max(_CHILDREN)))
    with np.errstate(divide="ignore"):
        target_logs, own_logs = np.log(place.p), np.log(place.q)
    for _ in range(_DRAWS):
        noise = random.gumbel(size=len(place.p))
        chosen = int(np.argmax(target_logs + noise))
        order = np.argsort(-(own_logs + noise[place.token_ids]))
        hits[: len(order)] += np.array(place.token_ids)[order] == chosen
    return hits / _DRAWS


def known_draw(place: Place) -> Float64Array:
    """How often the target's choice is the first, second and so on of the tokens around a draw's share of q, (K,)."""
    order = np.argsort(place.token_ids)
    token_ids, highest = np.array(place.token_ids)[order], np.cumsum(place.q[order])
    draws = (np.arange(_DRAWS) + 0.5) / _DRAWS
    # A token's share is taken to lie as far from where q has it as a logistic distribution says.
    below = 1 / (1 + np.exp((draws[:, None] - np.concatenate([[0], highest])) / _SPREAD))
    ranked = np.argsort(below[:, :-1] - below[:, 1:], 1)
    chosen = np.searchsorted(np.cumsum(place.p), draws, side="right")
    hits = np.zeros(max(len(token_ids), max(_CHILDREN)))
    hits[: len(token_ids)] = (token_ids[ranked] == chosen[:, None]).mean(0)
    return hits


def tree_of(shares: Float64Array, num_nodes: int) -> float:
    """Accepted tokens of the best tree of so many nodes, were every node's children accepted as these. shares: (k,)."""
    steps = np.diff(shares, prepend=0.0)
    nodes = [-float(step) for step in steps]
    heapq.heapify(nodes)
    accepted_tokens = 0.0
    for _ in range(num_nodes):
        value = -heapq.heappop(nodes)
        accepted_tokens += value
        for step in steps:
            heapq.heappush(nodes, -value * float(step))
    return accepted_tokens


def report(shares: Float64Array) -> list[str]:
    """shares: (answers, rules, numbers of children)."""
    errors, means = shares.std(0) / len(shares) ** 0.5, shares.mean(0)
    rows = [
        [name, *(f"{mean:.3f} ± {error:.3f}" for mean, error in zip(*each, strict=True))]
        for name, *each in zip(RULES, means, errors, strict=True)
    ]
    gains = [
        [f"{name}: gain, %", *(f"{100 * gain:+.1f}" for gain in means[rule] / means[0] - 1)]
        for rule, name in enumerate(RULES)
        if rule
    ]
    trees = [[tree_of(share, n) for n in _NODES] for share in means]
    modelled = [
        [
            name,
            *(f"{1 + tree:.2f}" for tree in each),
            *(f"{100 * (tree / first - 1):+.1f}" for tree, first in zip(each, trees[0], strict=True)),
            *(f"{100 * ((1 + tree) / (1 + first) - 1):+.1f}" for tree, first in zip(each, trees[0], strict=True)),
        ]
        for name, each in zip(RULES, trees, strict=True)
    ]
    header = [f"{what}, {n} nodes" for what in ("tokens a pass", "more accepted, %", "more a pass, %") for n in _NODES]
    return [
        *table(["children of a node", *map(str, _CHILDREN)], [*rows, *gains]),
        "",
        "Trees whose every node is accepted as these are (modelled):",
        "",
        *table(["", *header], modelled),
    ]


if __name__ == "__main__":
    main()
