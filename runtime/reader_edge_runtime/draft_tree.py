"""The draft tree: what one forward pass of the target model scores at once, and what the target scored for it."""

import struct
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, field

import numpy as np

from reader_edge_runtime.arrays import BoolArray, Float32Array, Int64Array
from reader_edge_runtime.errors import DraftError

FORCED_SOURCE = "constraint"  # the source of drafted tokens that had to come

_BITS = tuple(1 << node for node in range(256))
_ROOT_ALONE = np.ones((1, 1), np.bool_), np.zeros(1, np.int64)


@dataclass(slots=True)
class DraftTree:
    """Tokens that may follow, as parallel lists over N nodes; node 0 is the root.

    token_ids: N token ids; the root is the pending token (emitted, its KV not yet written).
    parents: N node numbers; parents[0] is -1 and parents[i] < i.
    sources: N names of who proposed the node; the root's is "".
    values: N estimated probabilities that the node will be reached, 1 for the root; no child's is above its parent's.
        Left out, all are 1: every node is worth a place in the pass.
    """

    token_ids: list[int]
    parents: list[int]
    sources: list[str]
    values: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.values:
            self.values.extend([1.0] * len(self.token_ids))

    @classmethod
    def chain(cls, token_ids: list[int]) -> "DraftTree":
        """The tree in which each token follows the one before: a prompt chunk, or one pending token."""
        return cls(token_ids, list(range(-1, len(token_ids) - 1)), [""] * len(token_ids))

    @classmethod
    def root(cls, token_id: int) -> "DraftTree":
        """The tree of one node, for others to `add` to."""
        return cls([token_id], [-1], [""], [1.0])

    def add(self, token_id: int, parent: int, source: str, value: float = 1.0) -> int:
        """Add a node below `parent` and return its number."""
        self.token_ids.append(token_id)
        self.parents.append(parent)
        self.sources.append(source)
        self.values.append(value)
        return len(self.token_ids) - 1

    def __len__(self) -> int:
        return len(self.token_ids)

    def check(self, root_token_id: int, vocab_size: int, max_nodes: int) -> None:
        """Raise DraftError unless this is a tree below the given root, of known tokens whose siblings differ."""
        if not self.token_ids or not (
            len(self.token_ids) == len(self.parents) == len(self.sources) == len(self.values)
        ):
            raise DraftError(f"A draft tree needs as many parents, sources and values as tokens, got {self!r:.200}.")
        if self.parents[0] != -1 or self.token_ids[0] != root_token_id:
            raise DraftError(f"A draft tree starts with the last token {root_token_id}, got {self!r:.200}.")
        if len(self) > max_nodes:
            raise DraftError(f"A draft tree may have {max_nodes} nodes here, got {len(self)}.")
        edges = list(zip(self.parents, self.token_ids, strict=True))
        for node, (parent, token_id) in enumerate(edges):
            if not 0 <= token_id < vocab_size:
                raise DraftError(
                    f"Draft node {node} from source {self.sources[node]!r} has token id {token_id}, but the vocabulary "
                    f"has {vocab_size}."
                )
            if node and not 0 <= parent < node:
                raise DraftError(f"Draft node {node} has parent {parent}, which does not come before it.")
        if len(set(edges)) < len(edges):
            node = next(node for node, edge in enumerate(edges) if edge in edges[:node])
            raise DraftError(f"Draft node {node} repeats its sibling's token {self.token_ids[node]}.")

    def ancestors_and_depths(self) -> tuple[BoolArray, Int64Array]:
        """Whether node j is node i or above it, bool (N, N), and each node's distance from the root, int64 (N,).

        Row i of the first is what node i may look at.
        """
        num_nodes = len(self.parents)
        if num_nodes == 1:
            return _ROOT_ALONE
        if num_nodes > 64 and self.parents == list(range(-1, num_nodes - 1)):  # a chain
            return np.tri(num_nodes, dtype=np.bool_), np.arange(num_nodes)
        # Rows as whole numbers, a bit a node: several times faster than rows of an array.
        bits = _BITS if num_nodes <= len(_BITS) else [1 << node for node in range(num_nodes)]
        rows = [1]
        for parent, bit in zip(self.parents[1:], bits[1:], strict=False):
            rows.append(rows[parent] | bit)
        if num_nodes <= 64:
            packed = np.frombuffer(struct.pack(f"<{num_nodes}Q", *rows), "<u8")
            num_on_path = np.bitwise_count(packed).astype(np.int64)
        else:
            num_words = -(-num_nodes // 64)
            packed = np.frombuffer(b"".join([row.to_bytes(8 * num_words, "little") for row in rows]), "<u8")
            num_on_path = np.bitwise_count(packed).reshape(num_nodes, num_words).sum(1, dtype=np.int64)
        mask = np.unpackbits(packed.view(np.uint8), bitorder="little").view(np.bool_)
        return mask.reshape(num_nodes, -1)[:, :num_nodes], num_on_path - 1

    def pruned(self, num_nodes: int) -> "DraftTree":
        """The tree of the `num_nodes` most valuable nodes, in their order here; a node comes with its parent."""
        if num_nodes >= len(self.token_ids):
            return self
        return self.of_nodes(sorted(self.best_first()[:num_nodes]))

    def best_first(self) -> list[int]:
        """All nodes, the most valuable first; each comes behind its parent."""
        return sorted(range(len(self.values)), key=self.values.__getitem__, reverse=True)

    def of_nodes(self, nodes: Sequence[int]) -> "DraftTree":
        """The tree of these nodes in this order, in which each comes behind its parent."""
        numbers = {node: number for number, node in enumerate(nodes)}
        return DraftTree(
            [self.token_ids[node] for node in nodes],
            [numbers.get(self.parents[node], -1) for node in nodes],
            [self.sources[node] for node in nodes],
            [self.values[node] for node in nodes],
        )

    def below(self, node: int, num_nodes: int) -> "DraftTree":
        """The tree whose root is `node`, of its most valuable nodes; values are as seen from there."""
        numbers, whole = {node: 0}, self.values[node] or 1.0
        tree = DraftTree.root(self.token_ids[node])
        for other in range(node + 1, len(self.parents)):
            parent = numbers.get(self.parents[other], -1)
            if parent >= 0:
                numbers[other] = tree.add(
                    self.token_ids[other], parent, self.sources[other], self.values[other] / whole
                )
        return tree.pruned(num_nodes)

    def child(self, node: int, token_id: int) -> int:
        """The child of `node` that bears `token_id`, or -1."""
        for other in range(node + 1, len(self.parents)):
            if self.parents[other] == node and self.token_ids[other] == token_id:
                return other
        return -1


@dataclass(slots=True)
class ScoredTree:
    """The target's scores of a tree's nodes, rejected ones included: its K best successors of R nodes.

    tree: as it was scored. rows: the R nodes. root: position of the tree's root in the request's text.
    top_ids: int64 (R, K), best first; top_logits: float32 (R, K), which may hold infinities and NaN.
    hidden_states: float32 (R, E), None where nobody requested them. layer_states: float32 (N, J, E), as these.
    The arrays belong to this value: no later pass overwrites them.
    vocab_size: of the target. Raises DraftError for ids outside it, since compiled drafting looks ids up unchecked.
    """

    tree: DraftTree
    rows: range
    root: int
    top_ids: Int64Array
    top_logits: Float32Array
    vocab_size: InitVar[int]
    hidden_states: Float32Array | None = None
    layer_states: Float32Array | None = None

    def __post_init__(self, vocab_size: int) -> None:
        shape = self.top_ids.shape
        if len(shape) != 2 or shape[0] != len(self.rows) or shape != self.top_logits.shape:
            raise DraftError(
                f"The target reported successors of shape {shape} with logits of shape {self.top_logits.shape} for "
                f"{len(self.rows)} nodes: its graph is not what its manifest says."
            )
        # As unsigned numbers, negative ids are above every vocabulary: one comparison finds both.
        if self.top_ids.size and np.maximum.reduce(self.top_ids.view(np.uint64), axis=None) >= vocab_size:
            outside = self.top_ids[(self.top_ids < 0) | (self.top_ids >= vocab_size)]
            raise DraftError(
                f"The target named token id {int(outside[0])} as a successor, but the vocabulary has {vocab_size} "
                "tokens: its graph is not what its manifest says."
            )
