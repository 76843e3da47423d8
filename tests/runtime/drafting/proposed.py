"""What sources of tests propose, written as probabilities behind parents."""

from collections.abc import Sequence

from reader_edge_runtime.draft_tree import DraftTree

Guess = tuple[Sequence[int], Sequence[int], Sequence[float]]  # tokens, parents (-1: the text), shares of the parent


def proposed(root: int, guess: Guess) -> DraftTree:
    """The tree below a text's last token, be it none that may be."""
    token_ids, parents, shares = guess
    values = [1.0]
    for parent, share in zip(parents, shares, strict=False):
        values.append(share * values[parent + 1] if -1 <= parent < len(values) - 1 else share)
    return DraftTree([root, *token_ids], [-1, *(parent + 1 for parent in parents)], [""] * len(values), values)
