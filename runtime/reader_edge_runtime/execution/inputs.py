"""The graph's inputs besides the KV cache: token ids, positions, masks. Plain numpy, for any engine of execution."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.arrays import Float32Array, Int64Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.package.manifest import MASKED, Manifest
from reader_edge_runtime.package.package_parts import ImagesPart, feature_names
from reader_edge_runtime.target import ImageRows, Pass

Inputs = dict[str, npt.NDArray[np.generic]]


def pass_width(trees: Sequence[DraftTree], min_rows: int, num_before: int = 0) -> int:
    """Nodes that a pass scores of each tree: the widest one's, or what `min_rows` asks for over all trees.

    num_before: see `Pass`.
    """
    return max(max(map(len, trees)) - num_before, -(-min_rows // len(trees)))


def prepare_inputs(cache: Cache, wanted: Pass, manifest: Manifest, min_rows: int) -> Inputs:
    """Inputs of a pass over a cache, by the graph's names, after making room for the rows that it writes.

    Shorter trees, and passes of fewer than min_rows nodes, are padded with repetitions of their last node: what it says
    is the same again, so that kernels may compute it once. Nobody looks at them. Raises
    ProviderError where a pass asks for states that the graph does not report.
    """
    _check_states(wanted, manifest)
    num_trees, before = len(wanted.trees), wanted.num_before
    num_nodes = pass_width(wanted.trees, min_rows, before)
    lengths = cache.lengths[wanted.first_slot : wanted.first_slot + num_trees]
    cache.extend(wanted.first_slot, num_trees, before + num_nodes)
    num_visible = max(lengths) + before + num_nodes
    num_rows = max(map(len, wanted.rows))
    input_ids = np.zeros((num_trees, num_nodes), np.int64)
    positions = np.zeros((num_trees, before + num_nodes), np.int64)  # of all nodes that have rows
    mask: Float32Array = np.empty((num_trees, 1, num_nodes, num_visible), np.float32)
    mask.fill(MASKED)  # sooner than by np.full
    rows = np.zeros((num_trees, num_rows), np.int64)
    for b, (length, tree) in enumerate(zip(lengths, wanted.trees, strict=True)):
        size = len(tree) - before
        input_ids[b, :size] = tree.token_ids[before:]
        ancestors, depths = tree.ancestors_and_depths()
        positions[b, : len(tree)] = length + depths
        mask[b, 0, :, :length] = 0.0
        mask[b, 0, :size, length : length + len(tree)][ancestors[before:]] = 0.0
        rows[b, : len(wanted.rows[b])] = wanted.rows[b]
        if size < num_nodes:
            input_ids[b, size:] = input_ids[b, size - 1]
            positions[b, before + size :] = positions[b, before + size - 1]
            mask[b, 0, size:, length:] = mask[b, 0, size - 1, length:]
        rows[b, len(wanted.rows[b]) :] = wanted.rows[b][-1]
    inputs: Inputs = {
        "input_ids": input_ids,
        "position_ids": np.ascontiguousarray(positions[:, before:]),
        "tree_mask": mask,
        "write_pos": np.array(lengths, np.int64) + before,
        "logit_rows": rows - before,
    }
    if wanted.images is not None and manifest.images is not None and manifest.images.sees_whole_image == "all":
        _open_images(mask, lengths[0], wanted.images)
    if manifest.has_states:
        inputs |= _recurrent_inputs(cache, wanted, num_nodes)
    if manifest.sliding_window is not None:
        inputs["tree_mask_sliding"] = windowed = _windowed(mask, positions, lengths, manifest.sliding_window)
        if wanted.images is not None:
            _open_images(windowed, lengths[0], wanted.images)
    if manifest.adapted_products:
        inputs["adapter_ids"] = np.array(wanted.adapter_ids or [-1] * num_trees, np.int64)
    if manifest.images is not None:
        inputs |= _image_inputs(wanted, inputs["position_ids"], manifest.images)
    return inputs


def _check_states(wanted: Pass, manifest: Manifest) -> None:
    if wanted.wants_hidden_states and manifest.hidden_size is None:
        raise ProviderError("This package's graph reports no hidden states: export again, or draft without a head.")
    if wanted.wants_layer_states and not manifest.state_ids:
        raise ProviderError("This package's graph reports no states of its layers: export the model again.")


def padded(name: str, array: npt.NDArray[np.generic], shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """An input at a larger size: padding nodes are token 0, padding rows ask for node 0, nothing more is seen."""
    larger = np.full(shape, MASKED if name.startswith("tree_mask") else 0, array.dtype)
    larger[tuple(slice(size) for size in array.shape)] = array
    return larger


def _recurrent_inputs(cache: Cache, wanted: Pass, num_nodes: int) -> Inputs:
    """What tells recurrent layers where each node goes on from; padding is a sibling of a tree's last node."""
    parents = np.zeros((len(wanted.trees), num_nodes), np.int64)
    for b, tree in enumerate(wanted.trees):
        parents[b, : len(tree)] = tree.parents
        parents[b, len(tree) :] = max(tree.parents[-1], 0)
    slots = range(wanted.first_slot, wanted.first_slot + len(wanted.trees))
    return {
        "parents": parents,
        "num_kept": np.array([min(wanted.num_kept, len(tree)) for tree in wanted.trees], np.int64),
        "num_pending": np.array([cache.num_pending(slot) for slot in slots], np.int64),
    }


def _open_images(mask: Float32Array, length: int, images: ImageRows) -> None:
    """Let nodes of images that are seen whole see those behind them."""
    for start, end in images.seen_whole:
        own = mask[0, 0, start:end, length + start : length + end]
        own[np.triu_indices(end - start, 1)] = 0.0


def _image_inputs(wanted: Pass, positions: npt.NDArray[Any], images: ImagesPart) -> Inputs:
    """Rows of features, and rotary positions, which are other than those that windows and masks count by.

    positions: int64 (B, N), of rows. Padding is the last node again.
    """
    index, features = np.full(positions.shape, -1, np.int64), np.zeros((1, images.row_size), np.float32)
    rotary = positions + np.array(wanted.shifts, np.int64)[:, None] if wanted.shifts else positions
    axes = np.broadcast_to(rotary, (3, *rotary.shape))
    if (rows := wanted.images) is not None:
        num_padding = positions.shape[1] - len(rows.indices)
        index, features = np.pad(rows.indices, (0, num_padding), mode="edge")[None], rows.features
        axes = np.pad(rows.positions, ((0, 0), (0, num_padding)), mode="edge")[:, None]
    position_ids = axes if images.position_axes == 3 else axes[0]
    parts = {
        name: np.ascontiguousarray(features[:, number * images.width : (number + 1) * images.width])
        for number, name in enumerate(feature_names(images.num_deepstack))
    }
    return {"image_index": index, **parts, "position_ids": np.ascontiguousarray(position_ids)}


def _windowed(mask: Float32Array, positions: Int64Array, lengths: Sequence[int], sliding_window: int) -> Float32Array:
    """The mask of windowed layers: by token depth, not by row, so that a node counts its own ancestors only.

    positions: int64 (B, nodes with rows), of which the mask is about the last ones.
    """
    windowed = np.empty_like(mask)
    windowed.fill(MASKED)
    num_nodes, num_written = mask.shape[2], positions.shape[1]
    for b, length in enumerate(lengths):
        own_positions = positions[b, num_written - num_nodes :]
        for node, first in enumerate(np.clip(own_positions + 1 - sliding_window, 0, length).tolist()):
            windowed[b, 0, node, first:] = mask[b, 0, node, first:]
        of_tree = windowed[b, 0, :, length : length + num_written]
        of_tree[own_positions[:, None] - positions[b] >= sliding_window] = MASKED
    return windowed
