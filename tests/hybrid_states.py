"""Checks of targets with recurrent layers: states and logits have the same bits by whatever passes."""

from collections.abc import Sequence

import numpy as np

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.target import Pass, Target

Bits = bytes


def check_random_trees(target: Target, num_kept: int, num_steps: int) -> None:
    """Steps of two ragged slots, with trees of 1 to 16 nodes: whatever is accepted, however often nothing is.

    A path of each tree has the logits of single tokens, and in the end each slot holds what a fresh prefill leaves.
    """
    rng, vocab_size = np.random.default_rng(2 + num_kept), target.manifest.vocab_size
    texts = [list(map(int, rng.integers(vocab_size, size=size))) for size in (5, 21)]
    cache, single = target.new_cache(2, 16), target.new_cache(1, 16)
    for slot, text in enumerate(texts):
        score(target, cache, slot, text, 8)
    for _ in range(num_steps):
        trees = [random_tree(rng, int(rng.integers(1, 17)), vocab_size) for _ in texts]
        wanted = Pass(0, trees, [range(len(tree)) for tree in trees], wants_logits=True, num_kept=num_kept)
        logits = target.forward(cache, wanted).wanted_logits.copy()
        paths = [path_to(tree, int(rng.integers(len(tree)))) for tree in trees]
        for slot, (tree, path) in enumerate(zip(trees, paths, strict=True)):
            single.cut(0, 0)
            score(target, single, 0, texts[slot], 16)
            tokens = [tree.token_ids[node] for node in path]
            assert single_logits(target, single, 0, tokens) == [logits[slot, node].tobytes() for node in path]
        for slot, (tree, path) in enumerate(zip(trees, paths, strict=True)):
            walked = path[: int(rng.integers(1, len(path) + 1))]
            cache.commit(slot, walked)
            texts[slot] += [tree.token_ids[node] for node in walked]
    for slot, text in enumerate(texts):
        assert kept(target, cache, slot) == fresh(target, text)


def score(target: Target, cache: Cache, slot: int, token_ids: Sequence[int], num_a_pass: int) -> None:
    """Commit a text to a slot, so many tokens a pass."""
    for start in range(0, len(token_ids), num_a_pass):
        tree = DraftTree.chain(list(token_ids[start : start + num_a_pass]))
        target.forward(cache, Pass(slot, [tree], [[0]], num_kept=len(tree)))
        cache.commit(slot, range(len(tree)))


def kept(target: Target, cache: Cache, slot: int) -> Bits:
    """All that a slot holds of its text, after its pending capsules are in its states."""
    target.forward(cache, Pass(slot, [DraftTree.root(0)], [[0]]))
    contents = cache.read_slot(slot, cache.lengths[slot])
    states = contents.states[-1:]
    assert bool(states) == target.manifest.has_states
    assert all(state.num_tokens == state.end == contents.length for state in states)
    return b"".join(array.tobytes() for array in (*contents.rows, *(each for state in states for each in state.states)))


def fresh(target: Target, token_ids: Sequence[int], num_a_pass: int = 64) -> Bits:
    cache = target.new_cache(1, 16)
    score(target, cache, 0, token_ids, num_a_pass)
    return kept(target, cache, 0)


def single_logits(target: Target, cache: Cache, slot: int, token_ids: Sequence[int]) -> list[Bits]:
    """Logits of these tokens, each in a pass of its own."""
    logits = []
    for token_id in token_ids:
        wanted = Pass(slot, [DraftTree.root(token_id)], [[0]], wants_logits=True, num_kept=1)
        logits.append(target.forward(cache, wanted).wanted_logits.tobytes())
        cache.commit(slot, [0])
    return logits


def random_tree(rng: np.random.Generator, num_nodes: int, vocab_size: int) -> DraftTree:
    tree = DraftTree.root(int(rng.integers(vocab_size)))
    for node in range(1, num_nodes):
        tree.add(int(rng.integers(vocab_size)), int(rng.integers(node)), "test")
    return tree


def path_to(tree: DraftTree, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = tree.parents[node]
    return path
