"""Part of a long prompt: its end, and the passages that bear on that, chosen by BM25. Tokens are the terms.

For a draft model what is left out costs guesses and no token of an answer: the target reads all of the prompt.
"""

import math
from collections import Counter
from collections.abc import Sequence

_PASSAGE = 128  # tokens
_END_SHARE = 0.5  # of what is read, the prompt's end
_K1, _B = 1.2, 0.75  # as Robertson and Zaragoza have them (The Probabilistic Relevance Framework, 2009)


def read_passages(
    token_ids: Sequence[int], num_tokens: int, passage: int = _PASSAGE, num_queried: int = _PASSAGE
) -> list[int]:
    """At most so many tokens of a prompt, in its order: its end, and before that the passages most like it.

    passage: tokens of each. num_queried: last tokens of the prompt that passages are compared with.
    """
    if len(token_ids) <= num_tokens:
        return list(token_ids)
    start = len(token_ids) - max(1, int(_END_SHARE * num_tokens))
    end = list(token_ids[start:])
    passages = [token_ids[place : min(place + passage, start)] for place in range(0, start, passage)]
    scores = _scores(passages, end[-num_queried:])
    chosen: list[int] = []
    room = num_tokens - len(end)
    for number in sorted(range(len(passages)), key=scores.__getitem__, reverse=True):
        if len(passages[number]) <= room:
            chosen.append(number)
            room -= len(passages[number])
    return [token_id for number in sorted(chosen) for token_id in passages[number]] + end


def _scores(passages: Sequence[Sequence[int]], query: Sequence[int]) -> list[float]:
    """BM25 of each passage, for the query."""
    counts = [Counter(passage) for passage in passages]
    mean_length = sum(map(len, passages)) / len(passages)
    num_with = Counter(token_id for each in counts for token_id in each)
    weights = {
        token_id: math.log(1 + (len(passages) - num_with[token_id] + 0.5) / (num_with[token_id] + 0.5))
        for token_id in set(query)
    }

    def score(passage: Sequence[int], count: Counter[int]) -> float:
        longer = _K1 * (1 - _B + _B * len(passage) / mean_length)
        return sum(weight * count[each] * (_K1 + 1) / (count[each] + longer) for each, weight in weights.items())

    return [score(passage, count) for passage, count in zip(passages, counts, strict=True)]
