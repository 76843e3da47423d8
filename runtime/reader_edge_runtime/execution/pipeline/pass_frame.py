"""What goes from stage to stage of a pipeline with a pass: changes of the KV cache since the last, lengths, trees.

The residual stream comes beside it, 4 bytes a number, as large as trees and stage say.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from msgspec import Meta

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import FrameError, ProviderError
from reader_edge_runtime.execution.inputs import pass_width
from reader_edge_runtime.execution.pipeline.logged_cache import DROP, CacheStep
from reader_edge_runtime.target import Pass
from reader_edge_runtime.untrusted.frame_codec import Frame, FrameCodec

MAX_NODES = 1 << 14  # of a pass, over all its trees, padded
MAX_SLOTS = 1 << 10
MAX_BYTES = 1 << 24
_MAX_STEPS = 1 << 14

_Number = Annotated[int, Meta(ge=0, le=(1 << 32) - 1)]
_Numbers = tuple[_Number, ...]
_Step = tuple[Annotated[int, Meta(ge=0, le=DROP)], _Numbers, _Numbers]  # kind, lengths, numbers
_Ids = Annotated[list[_Number], Meta(min_length=1, max_length=MAX_NODES)]
_Parents = Annotated[list[Annotated[int, Meta(ge=-1)]], Meta(max_length=MAX_NODES)]


class _PackedPass(Frame):
    cache: _Number
    steps: Annotated[tuple[_Step, ...], Meta(max_length=_MAX_STEPS)]
    lengths: Annotated[_Numbers, Meta(min_length=1, max_length=MAX_SLOTS)]
    first_slot: _Number
    min_rows: Annotated[int, Meta(ge=1, le=MAX_NODES)]
    num_before: _Number
    trees: Annotated[tuple[tuple[_Ids, _Parents], ...], Meta(min_length=1, max_length=MAX_SLOTS)]


_CODEC: FrameCodec[_PackedPass] = FrameCodec(_PackedPass, b"RP\x03", MAX_BYTES, "passes")


class PassFrame(NamedTuple):
    """cache: its number, of those of one client; steps: that happened to it; lengths: committed rows of all slots."""

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
        steps = tuple((kind, tuple(lengths), tuple(numbers)) for kind, lengths, numbers in self.steps)
        packed = [(list(tree.token_ids), list(tree.parents)) for tree in trees]
        sizes = self.wanted.first_slot, self.min_rows, self.wanted.num_before
        return _CODEC.pack(_PackedPass(self.cache, steps, tuple(self.lengths), *sizes, tuple(packed)))

    @classmethod
    def unpacked(cls, data: memoryview) -> "PassFrame":
        """Raises FrameError, for whatever is wrong with it."""
        found = _CODEC.unpack(data)
        num_trees, num_before, first_slot = len(found.trees), found.num_before, found.first_slot
        if first_slot + num_trees > len(found.lengths):
            raise FrameError(f"A frame has {num_trees} trees from slot {first_slot} on of {len(found.lengths)}.")
        for ids, parents in found.trees:
            is_tree = len(ids) == len(parents) and parents[0] == -1
            if not is_tree or not all(0 <= parent < node for node, parent in enumerate(parents[1:], 1)):
                raise FrameError("A frame has a tree whose nodes do not come behind their parents.")
        if num_before >= min(len(ids) for ids, _ in found.trees):
            raise FrameError(f"A frame has a tree that has nothing behind its first {num_before} nodes.")
        trees = [DraftTree(ids, parents, [""] * len(ids)) for ids, parents in found.trees]
        wanted = Pass(first_slot, trees, [range(num_before, num_before + 1)] * num_trees, num_before=num_before)
        frame = cls(found.cache, [CacheStep(*step) for step in found.steps], found.lengths, wanted, found.min_rows)
        if num_trees * frame.num_rows > MAX_NODES:
            raise FrameError(f"A frame has {num_trees} trees of {frame.num_rows} nodes, more than a pass may have.")
        return frame
