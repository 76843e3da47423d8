"""The seam for constraints: masked choices are the same with and without drafting, forced tokens come for nothing."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest

from reader_edge_runtime.config import GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.sampling.constraint import AfterThinking
from reader_edge_runtime.decoding.sampling.grammar_worker.tree_cut import FORCED, cut
from reader_edge_runtime.draft_tree import DraftTree
from tests.fake_target import make_manifest
from tests.random_drafter import RandomDrafter, make_decoder

VOCAB = 8


class Cycle:
    """Token i may be followed by i + 1 and i + 2, except that 3 must be followed by 4 and 5."""

    def __init__(self, last: int) -> None:
        self._last = last
        self.is_closed = False

    is_over = False

    def _next(self, last: int, before: int) -> set[int]:
        if last == 3:
            return {4}
        return {5} if (before, last) == (3, 4) else {(last + 1) % VOCAB, (last + 2) % VOCAB}

    @property
    def forced(self) -> list[int]:
        return CycleMatcher(self._last).compute_ff_tokens()

    def prepare(self) -> None:
        pass

    def mask(self) -> npt.NDArray[np.bool_]:
        mask = np.zeros(VOCAB, np.bool_)
        mask[list(self._next(self._last, -1))] = True
        return mask

    def advance(self, token_id: int) -> None:
        assert token_id in self._next(self._last, -1)
        self._last = token_id

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        matcher = CycleMatcher(self._last)
        token_ids, parents, origins = cut(matcher, tree.token_ids, tree.parents, max_nodes - 1)
        assert matcher.is_where_it_was
        sources = ["constraint" if old == FORCED else tree.sources[old] for old in origins]
        return DraftTree(token_ids, parents, sources).pruned(max_nodes)

    def close(self) -> None:
        self.is_closed = True


class CycleMatcher:
    """The same for who asks llguidance."""

    def __init__(self, last: int) -> None:
        self._text = [last]

    @property
    def is_where_it_was(self) -> bool:
        return len(self._text) == 1

    def _allows(self, text: list[int], token_id: int) -> bool:
        if text[-1] == 3:
            return token_id == 4
        return token_id == 5 if text[-2:] == [3, 4] else (token_id - text[-1]) % VOCAB in (1, 2)

    def validate_tokens(self, tokens: list[int]) -> int:
        text = list(self._text)
        for number, token_id in enumerate(tokens):
            if not self._allows(text, token_id):
                return number
            text.append(token_id)
        return len(tokens)

    def try_consume_tokens(self, tokens: list[int]) -> int:
        num_taken = self.validate_tokens(tokens)
        self._text += tokens[:num_taken]
        return num_taken

    def deep_copy(self) -> "CycleMatcher":
        other = CycleMatcher(self._text[0])
        other._text = list(self._text)
        return other

    def compute_ff_tokens(self) -> list[int]:
        return [4, 5] if self._text[-1] == 3 else []


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


def test_forbidden_branches_are_cut_and_forced_tokens_laid_in() -> None:
    token_ids, parents = [3, 4, 5, 6, 7, 1, 2], [-1, 0, 1, 2, 1, 0, 5]
    kept_ids, kept_parents, origins = cut(CycleMatcher(3), token_ids, parents, max_forced=10)
    assert kept_ids == [3, 4, 5, 6]
    assert kept_parents == [-1, 0, 1, 2]
    assert origins == [0, FORCED, FORCED, 3]
    assert cut(CycleMatcher(3), token_ids, parents, max_forced=1)[0] == [3, 4, 5, 6]
    assert cut(CycleMatcher(3), [3], [-1], max_forced=1)[0] == [3, 4]
    matcher = CycleMatcher(1)
    kept_ids, kept_parents, origins = cut(matcher, [1, 2, 3, 3], [-1, 0, 1, 0], max_forced=8)
    assert kept_ids == [1, 2, 3, 3, 4, 5]
    assert kept_parents == [-1, 0, 1, 0, 2, 4]
    assert origins == [0, 1, 2, 3, FORCED, FORCED]
    assert matcher.is_where_it_was


def test_a_request_that_ends_closes_its_constraint_taken_in_or_not() -> None:
    decoder = make_decoder(make_manifest(VOCAB), RandomDrafter(VOCAB, 4, 0))
    constraints = [Cycle(3) for _ in range(3)]
    requests = [decoder.submit([1, 2, 3], GenerationConfig(max_tokens=20), constraint=each) for each in constraints]
    decoder.cancel(requests[2])
    assert [each.is_closed for each in constraints] == [False, False, True]
    decoder.step()
    decoder.cancel(requests[1])
    decoder.finish(requests[0])
    assert all(each.is_closed for each in constraints)
    decoder = make_decoder(make_manifest(VOCAB), RandomDrafter(VOCAB, 4, 0))
    constraint = Cycle(3)
    request = Request([1, 2, 3], GenerationConfig(), make_manifest(VOCAB), constraint=constraint)
    decoder.cancel(request)
    assert constraint.is_closed


END = 7  # of thinking


def test_a_constraint_rests_before_the_thinking_part_ends() -> None:
    calls: list[str] = []

    class Watched(Cycle):
        def prepare(self) -> None:
            calls.append("prepare")

    inner = Watched(3)
    constraint = AfterThinking(inner, END.__eq__, VOCAB, [0])
    tree = DraftTree.chain([2, 1, 1, 1])
    constraint.prepare()
    for token_id in (1, 5):
        assert np.flatnonzero(~constraint.mask()).tolist() == [0]
        assert (constraint.is_over, constraint.forced, constraint.cut(tree, 2)) == (False, (), tree.pruned(2))
        constraint.advance(token_id)
    assert (calls, inner._last) == ([], 3)
    constraint.advance(END)
    constraint.prepare()
    assert (calls, inner._last) == (["prepare"], 3)
    assert constraint.mask().tolist() == inner.mask().tolist()
    assert constraint.forced == inner.forced == [4, 5]
    constraint.advance(4)
    assert inner._last == 4
    constraint.close()
    assert inner.is_closed
