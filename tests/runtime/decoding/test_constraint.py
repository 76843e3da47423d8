"""The seam for constraints: masked choices are the same with and without drafting, forced tokens come for nothing."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from reader_edge_runtime.config import GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.choosing.constraint import constrained
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from tests.fake_target import make_manifest
from tests.random_drafter import RandomDrafter, make_decoder

VOCAB = 8


class Cycle:
    """Token i may be followed by i + 1 and i + 2, except that 3 must be followed by 4 and 5."""

    def __init__(self, last: int) -> None:
        self._last = last

    is_over = False

    def _next(self, last: int, before: int) -> set[int]:
        if last == 3:
            return {4}
        return {5} if (before, last) == (3, 4) else {(last + 1) % VOCAB, (last + 2) % VOCAB}

    def mask(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(VOCAB, np.bool_)
        mask[list(self._next(self._last, -1))] = True
        return mask

    def advance(self, token_id: int) -> None:
        assert token_id in self._next(self._last, -1)
        self._last = token_id

    def num_allowed(self, token_ids: list[int]) -> int:
        last = self._last
        for number, token_id in enumerate(token_ids):
            if token_id not in self._next(last, -1):
                return number
            last = token_id
        return len(token_ids)

    def forced(self) -> list[int]:
        return [4] if self._last == 3 else []


def decode(num_nodes: int, temperature: float, seed: int) -> Request:
    decoder = make_decoder(make_manifest(VOCAB), RandomDrafter(VOCAB, num_nodes, seed))
    sampling = SamplingConfig(temperature=temperature, seed=seed)
    config = GenerationConfig(max_tokens=60, sampling=sampling, is_drafted=num_nodes > 1)
    request = decoder.submit([1, 2, 3], config, constraint=Cycle(3))
    while request.is_running:
        decoder.step()
    assert request.error is None
    return request


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_a_constrained_answer_is_the_same_drafted_and_plain_and_obeys(temperature: float, seed: int) -> None:
    plain, drafted = decode(1, temperature, seed), decode(12, temperature, seed)
    assert drafted.output_token_ids == plain.output_token_ids
    assert drafted.stats.num_accepted_tokens > plain.stats.num_accepted_tokens == 0
    text = plain.token_ids[2:]
    steps = {(after - before) % VOCAB for before, after in pairwise(text)}
    assert steps == {1, 2}, "the choices were not constrained to both"


def test_forbidden_branches_are_cut_and_forced_tokens_laid_first() -> None:
    #          3 - 4 - 5, 3 - 4 - 6, 3 - 4 - 7 (forbidden), 3 - 1 (forbidden) - 2
    values = [1.0, 0.5, 0.4, 0.3, 0.2, 0.1, 0.1]
    tree = DraftTree([3, 4, 5, 6, 7, 1, 2], [-1, 0, 1, 1, 1, 0, 5], ["", *"abcdef"], values)
    kept = constrained(tree, Cycle(3), max_nodes=10)
    assert kept.token_ids == [3, 4, 5, 6]
    assert kept.parents == [-1, 0, 1, 1]
    assert kept.sources == ["", "constraint", "b", "c"]
    assert kept.values == [1.0, 1.0, 0.4, 0.3]
    assert len(constrained(tree, Cycle(3), max_nodes=3)) == 3
