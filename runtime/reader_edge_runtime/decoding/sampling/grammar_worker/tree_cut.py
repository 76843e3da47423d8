"""Draft trees under a grammar: nodes that it forbids are removed, tokens that it forces are added."""

from collections.abc import Sequence
from typing import Protocol

FORCED = -1  # in place of a node's number in the tree before


class Matcher(Protocol):
    """What `cut` uses of llguidance's LLMatcher."""

    def validate_tokens(self, tokens: list[int]) -> int: ...

    def try_consume_tokens(self, tokens: list[int]) -> int: ...

    def deep_copy(self) -> "Matcher": ...

    def compute_ff_tokens(self) -> list[int]: ...


def cut(
    matcher: Matcher, token_ids: Sequence[int], parents: Sequence[int], max_forced: int
) -> tuple[list[int], list[int], list[int]]:
    """What a grammar leaves of a tree below a matcher's place, with up to max_forced tokens that it forces.

    Those come below the root, and again where the first chain of the tree ends. Returns tokens, parents, and each
    node's number before, or FORCED.
    """
    kept = _Tree(token_ids[0])
    kept.force(0, matcher.compute_ff_tokens()[:max_forced])
    numbers = {0: 0}
    for old in range(1, len(token_ids)):
        above, token_id = numbers.get(parents[old]), token_ids[old]
        if above is None:
            continue
        path = [*kept.path(above), token_id]
        if (above, token_id) in kept.numbers or matcher.validate_tokens(path) == len(path):
            numbers[old] = kept.add(above, token_id, old)
    end, node = 0, 1
    while node < len(token_ids) and parents[node] == node - 1 and node in numbers:
        end, node = numbers[node], node + 1
    path = kept.path(end)
    if path:
        ahead = matcher.deep_copy()  # a rollback loses its place behind tokens that a grammar names by their ids
        if ahead.try_consume_tokens(path) == len(path):  # without an end token behind the grammar's last one
            kept.force(end, ahead.compute_ff_tokens()[:max_forced])
    return kept.token_ids, kept.parents, kept.origins


class _Tree:
    """numbers: of nodes, by parent and token."""

    def __init__(self, token_id: int) -> None:
        self.token_ids, self.parents, self.origins = [token_id], [-1], [0]
        self.numbers: dict[tuple[int, int], int] = {}

    def add(self, parent: int, token_id: int, origin: int) -> int:
        """The number of a node, which may be there already."""
        number = self.numbers.setdefault((parent, token_id), len(self.token_ids))
        if number == len(self.token_ids):
            self.token_ids.append(token_id)
            self.parents.append(parent)
            self.origins.append(origin)
        return number

    def force(self, node: int, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            node = self.add(node, token_id, FORCED)

    def path(self, node: int) -> list[int]:
        """Tokens from below the root to a node."""
        path = []
        while node:
            path.append(self.token_ids[node])
            node = self.parents[node]
        return path[::-1]
