"""Inputs of passes with images: rotary positions are apart from rows, and images are seen whole where layers do so."""

from dataclasses import replace

import numpy as np
import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.inputs import Inputs, prepare_inputs
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.target import ImageRows, Pass
from tests.fake_images import IMAGE, seeing_manifest

IMAGE_NODES = 2, 5  # of six nodes behind three rows


def inputs_of(wanted: Pass, seen_whole: str = "none", axes: int = 3) -> Inputs:
    manifest = replace(seeing_manifest(axes=axes, seen_whole=seen_whole), sliding_window=2)
    cache = HostCache(manifest, 1, 64)
    cache.assume(0, 3)
    return prepare_inputs(cache, wanted, manifest, 1)


def chain(seen_whole: str) -> Inputs:
    first, last = IMAGE_NODES
    indices = np.array([-1, -1, 0, 1, 2, -1])
    positions = np.tile(np.arange(10, 16), (3, 1))
    whole = [] if seen_whole == "none" else [(first, last)]
    rows = ImageRows(indices, np.ones((3, 2), np.float32), positions, whole)
    tree = DraftTree.chain([1, 2, IMAGE, IMAGE, IMAGE, 3])
    return inputs_of(Pass(0, [tree], [[5]], images=rows), seen_whole)


def test_positions_of_a_chain_are_its_own_and_those_of_a_tree_are_moved() -> None:
    assert chain("none")["position_ids"][:, 0].tolist() == [list(range(10, 16))] * 3
    tree = DraftTree.root(1)
    tree.add(2, 0, "")
    moved = inputs_of(Pass(0, [tree], [[0]], shifts=[-2]))
    assert moved["position_ids"].tolist() == [[[1, 2]]] * 3
    assert moved["image_index"].tolist() == [[-1, -1]]
    assert inputs_of(Pass(0, [tree], [[0]]), axes=1)["position_ids"].tolist() == [[3, 4]]


def test_rows_of_images_come_in_parts_for_each_layer_that_reads_them() -> None:
    manifest = seeing_manifest()
    assert manifest.images is not None
    manifest = replace(manifest, images=replace(manifest.images, num_deepstack=2))
    cache, features = HostCache(manifest, 1, 64), np.arange(12, dtype=np.float32).reshape(2, 6)
    rows = ImageRows(np.array([0, 1, -1]), features, np.zeros((3, 3), np.int64))
    seen = prepare_inputs(cache, Pass(0, [DraftTree.chain([IMAGE, IMAGE, 1])], [[2]], images=rows), manifest, 1)
    for number, name in enumerate(("image_features", "deepstack.0", "deepstack.1")):
        assert np.array_equal(seen[name], features[:, 2 * number : 2 * number + 2])
    text = prepare_inputs(cache, Pass(0, [DraftTree.root(1)], [[0]]), manifest, 1)
    assert {text[name].shape for name in ("image_features", "deepstack.0", "deepstack.1")} == {(1, 2)}


def test_windows_count_rows_and_not_positions() -> None:
    tree = DraftTree.chain([1, 2])
    masks = [inputs_of(Pass(0, [tree], [[0]], shifts=shifts))["tree_mask_sliding"] for shifts in ([], [-2])]
    assert np.array_equal(masks[0], masks[1])
    assert (masks[0][0, 0] == 0).tolist() == [[False, False, True, True, False], [False, False, False, True, True]]


@pytest.mark.parametrize(("seen_whole", "in_all", "in_windowed"), [("all", 3, 3), ("sliding", 0, 3)])
def test_nodes_of_an_image_see_those_behind_them_where_layers_do(
    seen_whole: str, in_all: int, in_windowed: int
) -> None:
    plain, whole = chain("none"), chain(seen_whole)
    for name, num_later in (("tree_mask", in_all), ("tree_mask_sliding", in_windowed)):
        opened = np.argwhere((whole[name] == 0) & (plain[name] != 0))[:, 2:]
        assert len(opened) == num_later
        assert all(node < row - 3 < IMAGE_NODES[1] for node, row in opened)
        assert not np.any((whole[name] != 0) & (plain[name] == 0))
