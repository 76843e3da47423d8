"""What a form guesses at every place of an answer, as trees of drafts."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from benchmarks.head_forms.form import Form, best
from benchmarks.head_forms.places import Places, places_of
from reader_edge_export.heads.examples import Int32Array
from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.head_file import NUM_GUESSES, NUM_SECOND

_LEAST = 0.01  # as in head_source

Said = tuple[torch.Tensor, torch.Tensor]  # probabilities and numbers (..., K)


@torch.no_grad()
def guesses_of(form: Form, ids: Int32Array, answer: RecordedAnswer, vocab_size: int) -> list[DraftTree]:
    """At each place of an answer, trees as a form's step makes them: on from its first guesses, then from the best."""
    found = places_of([answer], ids, vocab_size)
    if not found:
        return []
    places = Places.side_by_side(found)
    first = best(form.logits(places)[0, :, 0])
    branches = [_branch(form, places, first[1][None, :, branch]) for branch in range(NUM_GUESSES)]
    return [
        _tree(pending, ids, _at(first, place), [[_at(said, place) for said in branch] for branch in branches])
        for place, pending in enumerate(answer.token_ids[1 : len(found[0].pending) + 1].tolist())
    ]


def _branch(form: Form, places: Places, guess: torch.Tensor) -> list[Said]:
    """What follows a first guess (1, L), depth after depth, (L, NUM_SECOND) each."""
    following, said = places.following.clone(), list[Said]()
    following[..., 0] = guess
    for depth in range(1, form.depth):
        probabilities, numbers = best(form.logits(replace(places, following=following))[0, :, depth])
        following[..., depth] = numbers[:, 0]
        said.append((probabilities[:, :NUM_SECOND], numbers[:, :NUM_SECOND]))
    return said


def _at(said: Said, place: int) -> Said:
    return said[0][place], said[1][place]


def _tree(pending: int, ids: Int32Array, first: Said, branches: Sequence[Sequence[Said]]) -> DraftTree:
    tree = DraftTree.root(pending)

    def add(parent: int, said: Said) -> list[int]:
        """The node of each guess below a parent, 0 for one that was left out."""
        nodes = []
        for share, number in zip(said[0].tolist(), said[1].tolist(), strict=True):
            is_usable = share >= _LEAST and number < len(ids)
            value = share * tree.values[parent]
            nodes.append(tree.add(int(ids[number]), parent, "head", value) if is_usable else 0)
        return nodes

    for node, branch in zip(add(0, first), branches, strict=False):
        for said in branch:
            if node:
                node = add(node, said)[0]
    return tree


def up_to(tree: DraftTree, depth: int) -> DraftTree:
    """The part of a tree that looks so far ahead."""
    _, depths = tree.ancestors_and_depths()
    kept = [node for node in range(len(tree)) if depths[node] <= depth]
    new = {node: number for number, node in enumerate(kept)} | {-1: -1}
    return DraftTree(
        [tree.token_ids[node] for node in kept],
        [new[tree.parents[node]] for node in kept],
        [tree.sources[node] for node in kept],
        [tree.values[node] for node in kept],
    )
