"""What proposes trees in a replay, as trained speculators and heads do; and all that one says of a recorded answer."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from reader_edge.bench.recording import RecordedTurn
from reader_edge_runtime.draft_tree import DraftTree

Path = tuple[int, ...]  # tokens drafted behind a text

NAME = "speculator"  # of the source, whatever proposes


class Guesses(NamedTuple):
    """Tokens that may follow, best first, and their probabilities."""

    token_ids: list[int]
    probabilities: list[float]


class ProposedText(Protocol):
    """A recorded text that a proposer follows."""

    def go_on(self, num_tokens: int) -> Guesses:
        """What may follow so many tokens of it, the last of them pending. Numbers ascend from call to call."""

    def expand(self, paths: Sequence[Path]) -> list[Guesses]:
        """What may follow drafted tokens behind these; no guesses where it knows nothing of that.

        What each path begins with was expanded before, since the last `go_on`.
        """


class Proposer(Protocol):
    """Follows texts, one at a time."""

    def begin(self, turn: RecordedTurn) -> ProposedText: ...


# EAGLE-2's (arXiv 2406.16858): nodes that are expanded at each level, and levels; the paper's code has 5 to 7.
TOP_K, DEPTH = 10, 8
MOST_NODES = 64  # that are kept of what was grown


class Proposed(NamedTuple):
    """What was proposed behind a text. first: guesses of the next token. tree: the best nodes, the likeliest first."""

    first: Guesses
    tree: DraftTree

    def best(self, num_nodes: int) -> DraftTree:
        """EAGLE-2's tree of so many drafted nodes."""
        return self.tree.pruned(num_nodes + 1)


def proposed(proposer: Proposer, turn: RecordedTurn) -> dict[int, Proposed]:
    """By length of the text, for each that ends with a token of the answer: whatever was drafted, it says the same."""
    text, start = [*turn.prompt, *turn.output], len(turn.prompt) + 1
    followed = proposer.begin(turn)
    return {length: _grown(followed, length, text[length - 1]) for length in range(start, len(text) + 1)}


def _grown(text: ProposedText, length: int, pending: int) -> Proposed:
    """By EAGLE-2's rule: the likeliest paths of a level are expanded, then the best of all nodes are kept."""
    first = text.go_on(length)
    guessed: dict[Path, Guesses] = {(): first}
    reached: dict[Path, float] = {(): 1.0}
    level: list[Path] = [()]
    for depth in range(1, DEPTH + 1):
        below: list[Path] = []
        for path in level:
            token_ids, probabilities = guessed[path]
            for token_id, probability in zip(token_ids[:TOP_K], probabilities, strict=False):
                below.append((*path, token_id))
                reached[below[-1]] = reached[path] * min(probability, 1.0)
        level = sorted(below, key=reached.__getitem__, reverse=True)[:TOP_K]
        if depth < DEPTH and level:
            said = text.expand(level)
            guessed |= dict(zip(level, said, strict=True))
    return Proposed(first, _tree(reached, pending))


def _tree(reached: dict[Path, float], pending: int) -> DraftTree:
    tree = DraftTree.root(pending)
    nodes: dict[Path, int] = {(): 0}
    best = sorted(reached, key=lambda path: (-reached[path], len(path)))  # a parent before its children
    for path in best[1 : MOST_NODES + 1]:
        nodes[path] = tree.add(path[-1], nodes[path[:-1]], NAME, reached[path])
    return tree
