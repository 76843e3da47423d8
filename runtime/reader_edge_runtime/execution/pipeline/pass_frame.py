"""What travels from stage to stage with a pass: what happened to the cache since, lengths, trees. No pickle.

Little endian, behind a header that has the numbers of all that follows, so that its size is known before anything is
made of it. The residual stream comes beside it, 4 bytes a number, as large as trees and stage say.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.inputs import pass_width
from reader_edge_runtime.execution.pipeline.logged_cache import DROP, CacheStep
from reader_edge_runtime.target import Pass

MAX_NODES = 1 << 14  # of a pass, over all its trees, padded
MAX_SLOTS = 1 << 10
MAX_BYTES = 1 << 24
_MAX_STEPS = 1 << 14

_HEADER = struct.Struct("<IIHHHHI")  # number of the cache, steps, lengths, trees, first slot, min_rows, num_before
_STEP = struct.Struct("<BHI")  # kind, lengths, numbers


class FrameError(ProviderError):
    """What came over a link is no frame of this version, or does not fit what came before."""


class PassFrame(NamedTuple):
    """cache: its number, of those of one asker; steps: that happened to it; lengths: committed rows of all slots."""

    cache: int
    steps: Sequence[CacheStep]
    lengths: Sequence[int]
    wanted: Pass
    min_rows: int

    @property
    def num_nodes(self) -> int:
        """That are scored of each tree, padded."""
        return pass_width(self.wanted.trees, self.min_rows, self.wanted.num_before)

    @property
    def num_rows(self) -> int:
        """Of each slot behind the committed ones, with those that passes before have written."""
        return self.wanted.num_before + self.num_nodes

    def packed(self) -> bytes:
        """Raises ProviderError for a pass that is larger than a frame may be."""
        trees = self.wanted.trees
        if len(trees) * self.num_rows > MAX_NODES or len(self.lengths) > MAX_SLOTS:
            raise ProviderError(
                f"A pass of {len(trees)} trees of {self.num_rows} nodes is larger than stages take "
                f"({MAX_NODES} nodes): lower --max-batch, or prefill_chunk."
            )
        sizes = len(self.steps), len(self.lengths), len(trees), self.wanted.first_slot
        parts = [_HEADER.pack(self.cache, *sizes, self.min_rows, self.wanted.num_before), _uint32(self.lengths)]
        for kind, lengths, numbers in self.steps:
            parts += _STEP.pack(kind, len(lengths), len(numbers)), _uint32(lengths), _uint32(numbers)
        for tree in trees:
            parts += struct.pack("<H", len(tree)), _uint32(tree.token_ids)
            parts.append(struct.pack(f"<{len(tree)}h", *tree.parents))
        return b"".join(parts)

    @classmethod
    def unpacked(cls, data: memoryview) -> "PassFrame":
        """Raises FrameError, for whatever is wrong with it."""
        reader = _Reader(data)
        cache, num_steps, num_lengths, num_trees, first_slot, min_rows, num_before = reader.take(_HEADER)
        if num_steps > _MAX_STEPS or not 0 < num_lengths <= MAX_SLOTS or not num_trees or not min_rows:
            raise FrameError("A frame has no trees or slots, or more than it may have.")
        if first_slot + num_trees > num_lengths or min_rows > MAX_NODES:
            raise FrameError(f"A frame has {num_trees} trees from slot {first_slot} on of {num_lengths}.")
        lengths = reader.uint32(num_lengths)
        steps = []
        for _ in range(num_steps):
            kind, num_then, num_numbers = reader.take(_STEP)
            if kind > DROP:
                raise FrameError(f"A frame has a step of kind {kind}, which this version does not know.")
            steps.append(CacheStep(kind, reader.uint32(num_then), reader.uint32(num_numbers)))
        trees = [reader.tree() for _ in range(num_trees)]
        reader.end()
        if num_before >= min(map(len, trees)):
            raise FrameError(f"A frame has a tree that has nothing behind its first {num_before} nodes.")
        rows = [range(num_before, num_before + 1)] * num_trees
        frame = cls(cache, steps, lengths, Pass(first_slot, trees, rows, num_before=num_before), min_rows)
        if num_trees * frame.num_rows > MAX_NODES:
            raise FrameError(f"A frame has {num_trees} trees of {frame.num_rows} nodes, more than a pass may have.")
        return frame


class _Reader:
    """Takes values from a frame, each after what is left of it was found to be long enough."""

    def __init__(self, data: memoryview) -> None:
        if len(data) > MAX_BYTES:
            raise FrameError(f"A frame has {len(data)} bytes, more than it may have.")
        self._data = data
        self._at = 0

    def take(self, form: struct.Struct) -> tuple[int, ...]:
        return form.unpack(self._bytes(form.size))

    def uint32(self, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}I", self._bytes(4 * count))

    def tree(self) -> DraftTree:
        (count,) = struct.unpack("<H", self._bytes(2))
        token_ids = self.uint32(count)
        parents = struct.unpack(f"<{count}h", self._bytes(2 * count))
        if not count or parents[0] != -1 or not all(0 <= parent < node for node, parent in enumerate(parents[1:], 1)):
            raise FrameError("A frame has a tree whose nodes do not come behind their parents.")
        return DraftTree(list(token_ids), list(parents), [""] * count)

    def end(self) -> None:
        if self._at != len(self._data):
            raise FrameError(f"A frame has {len(self._data) - self._at} bytes behind its end.")

    def _bytes(self, count: int) -> memoryview:
        if count > len(self._data) - self._at:
            raise FrameError(f"A frame of {len(self._data)} bytes ends before what it has begun.")
        self._at += count
        return self._data[self._at - count : self._at]


def _uint32(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)
