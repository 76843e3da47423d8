"""A draft model as a source: what it reads and proposes, where it is used, how far it goes, and what may go wrong."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.proposals import check_proposal
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.draft_model import NARROW, DraftModel
from reader_edge_runtime.drafting.sources.draft_model_source import DraftModelRequest, DraftModelSource, read_passages
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import check_ragged_batches, decode, reference

MANIFEST = make_manifest(vocab_size=6, max_context=200)


class DraftingTarget(FakeTarget):
    """Tells how wide its passes are; breaks where a test wants it. chunk: tokens of a prompt that it reads at once."""

    def __init__(self, manifest: Manifest = MANIFEST, order: int = 3, chunk: int = 64, sharpness: float = 9.0) -> None:
        super().__init__(manifest, order, sharpness)
        self.chunk = chunk
        self.widths: list[list[int]] = []
        self.is_broken = False

    def prefill_chunk(self, past: int) -> int:
        return self.chunk

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        if self.is_broken:
            raise ProviderError("ONNX Runtime failed in a pass.")
        self.widths.append(list(map(len, wanted.trees)))
        return super().forward(cache, wanted)


class OddTarget(DraftingTarget):
    """Says what no model should: token_id, with this logit, is likeliest by far."""

    def __init__(self, token_id: int, logit: float) -> None:
        super().__init__()
        self.token_id, self.logit = token_id, logit

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        result = super().forward(cache, wanted)
        result.top_ids[...] = self.token_id
        result.top_logits[...] = self.logit
        return result


def source_of(target: FakeTarget, vocab_size: int = MANIFEST.vocab_size) -> DraftModelSource:
    source = DraftModelSource(DraftModel(target, 4), vocab_size)
    if isinstance(target, DraftingTarget):
        target.widths.clear()  # those that were measured
    return source


def greedy(target: FakeTarget, token_ids: Sequence[int], count: int) -> list[int]:
    text = list(token_ids)
    for _ in range(count):
        text.append(int(target.logits_after(text).argmax()))
    return text[len(token_ids) :]


def draft_request_of(request: DraftModelRequest, max_depth: int = 3, token_s: float = 0.0) -> DraftRequest:
    return DraftRequest(request, 32, max_depth, token_s)


def chain_of(proposal: DraftTree | None) -> list[int]:
    """The tokens of the chain: the first named below each of its nodes."""
    assert proposal is not None
    token_ids, node = list[int](), 0
    while node in proposal.parents:
        node = proposal.parents.index(node)
        token_ids.append(proposal.token_ids[node])
    return token_ids


def test_a_draft_model_writes_on_as_it_would_alone_with_what_else_it_thinks_likely() -> None:
    target = DraftingTarget(sharpness=2.0)
    source = source_of(target)
    text = [1, 2, 3, 4]
    [proposal] = source.propose([draft_request_of(source.begin(RequestContext(text)))])
    assert proposal is not None
    check_proposal(proposal, 4, source.name)
    assert chain_of(proposal) == greedy(target, text, 3)
    logits = target.logits_after(text)
    expected = np.exp(logits) / np.exp(logits).sum()
    first = [i for i, parent in enumerate(proposal.parents) if parent == 0]
    assert len(first) > 1
    for i in first:
        assert proposal.values[i] == pytest.approx(expected[proposal.token_ids[i]], rel=1e-5)


def test_only_what_came_since_is_scored() -> None:
    target = DraftingTarget()
    source = source_of(target)
    text = [1, 2, 3, 4]
    request = source.begin(RequestContext(text))
    source.propose([draft_request_of(request)])
    assert target.widths == [[4], [1], [1]]
    first, second, _ = greedy(target, text, 3)
    text += [first, second, 5, 0]  # the chain's third token was not scored, and another came
    request.observe(None)
    [proposal] = source.propose([draft_request_of(request)])
    assert target.widths[3:] == [[2], [1], [1]]
    assert chain_of(proposal) == greedy(target, text, 3)
    text += [(greedy(target, text, 1)[0] + 1) % 6]  # all guesses were wrong: their rows go
    request.observe(None)
    [proposal] = source.propose([draft_request_of(request)])
    assert target.widths[6:] == [[1], [1], [1]]
    assert chain_of(proposal) == greedy(target, text, 3)


def test_long_prompts_are_caught_up_with_by_one_chunk_a_step() -> None:
    target = DraftingTarget(chunk=32)
    source = source_of(target)
    text = [1, 2, 3, 4] * 20
    request = source.begin(RequestContext(text))
    proposals = [source.propose([draft_request_of(request, max_depth=1)])[0] for _ in range(3)]
    assert target.widths == [[32], [32], [16]]
    assert proposals[:2] == [None] * 2
    assert chain_of(proposals[2]) == greedy(target, text, 1)


def test_a_text_that_begins_like_one_that_ended_is_read_from_where_they_part() -> None:
    target = DraftingTarget()
    source = source_of(target)
    first = source.begin(RequestContext([1, 2, 3, 4, 5, 0]))
    source.propose([draft_request_of(first, max_depth=1)])
    first.finish()
    other = source.begin(RequestContext([1, 2, 3, 4, 0, 0, 1]))
    source.propose([draft_request_of(other, max_depth=1)])
    assert target.widths == [[6], [3]]
    source.restore({})  # what engines do that forget
    source.propose([draft_request_of(other, max_depth=1)])
    assert target.widths[2:] == [[7]]


def test_slots_of_requests_that_ended_or_vanished_serve_others() -> None:
    source = source_of(DraftingTarget())
    model = source._model
    assert model is not None
    for _ in range(5):
        finished, vanished = source.begin(RequestContext([1, 2])), source.begin(RequestContext([3, 4]))
        source.propose([draft_request_of(finished), draft_request_of(vanished)])
        finished.finish()
    assert len(model._slots) == 2


def test_requests_side_by_side_share_passes_and_long_texts_have_their_own() -> None:
    target = DraftingTarget()
    source = source_of(target)
    texts = [[1, 2], [3, 4, 5], [2] * (NARROW + 1), [5, 0, 1, 2]]
    requests = [source.begin(RequestContext(text)) for text in texts]
    proposals = source.propose([draft_request_of(request, max_depth=2) for request in requests])
    assert target.widths == [[2, 3], [NARROW + 1], [4], [1] * 4]
    assert [chain_of(each) for each in proposals] == [greedy(target, text, 2) for text in texts]


@pytest.mark.parametrize("order", [3, 2], ids=["knowing", "ignorant"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_draft_models_change_no_token_in_ragged_batches_and_free_their_slots(order: int, temperature: float) -> None:
    manifest = make_manifest(6, max_context=64)
    source = source_of(FakeTarget(replace(manifest, max_context=48), order))  # whose context ends before the target's
    decoder = Decoder(
        FakeTarget(manifest),
        RetrievalDrafter(DraftConfig(is_logits_used=False), [source]).wait(),
        EngineConfig(max_batch=4, prefill_chunk=7),
    )
    num_accepted = check_ragged_batches(decoder, manifest, temperature)
    if order == 3 and not temperature:
        assert num_accepted > 30
    assert source._model is not None
    assert all(slot.is_free for slot in source._model._slots)
    assert 0 < len(source._model._slots) <= 4


@pytest.mark.parametrize(
    ("token_id", "logit"), [(-1, 0.0), (6, 0.0), (2**62, 0.0), (1, math.nan), (1, math.inf), (1, -math.inf)]
)
def test_guesses_that_cannot_be_are_left_out(token_id: int, logit: float) -> None:
    source = source_of(OddTarget(token_id, logit))
    [proposal] = source.propose([draft_request_of(source.begin(RequestContext([1, 2, 3])))])
    assert proposal == DraftTree.root(3)


def test_vocabularies_may_differ_in_ids_that_texts_hardly_ever_hold() -> None:
    target = DraftingTarget()
    source = source_of(target, vocab_size=9)
    text = [1, 2, 8]
    request = source.begin(RequestContext(text))
    assert source.propose([draft_request_of(request)]) == [None]
    text += [1]
    assert source.propose([draft_request_of(request)]) == [None]
    assert not target.widths
    lacking = source_of(DraftingTarget(), vocab_size=2)
    [proposal] = lacking.propose([draft_request_of(lacking.begin(RequestContext([0, 1, 0, 1])))])
    assert proposal is not None
    assert set(proposal.token_ids) <= {0, 1}


def test_a_draft_model_that_fails_is_named_once_and_rests() -> None:
    target = DraftingTarget()
    source = source_of(target)
    request = source.begin(RequestContext([1, 2, 3]))
    target.is_broken = True
    with pytest.warns(UserWarning, match=r"draft model is not called again: .*failed in a pass"):
        assert source.propose([draft_request_of(request)]) == [None]
    target.is_broken = False
    assert source.propose([draft_request_of(request)]) == [None]
    assert not source.is_worth_asking(draft_request_of(request, token_s=1.0), 0.0)


def test_of_a_long_prompt_it_reads_its_context_and_all_of_the_answer() -> None:
    target = DraftingTarget()
    source = DraftModelSource(DraftModel(target, 4), MANIFEST.vocab_size, context=10)
    text = [1, 2, 3, 4, 5] * 6
    request = source.begin(RequestContext(text))
    assert list(request.read_token_ids) == text[-5:]  # no passage of the rest is as short as what is left
    [proposal] = source.propose([draft_request_of(request)])
    assert chain_of(proposal) == greedy(target, text[-5:], 3)
    text += chain_of(proposal)[:2]
    target.widths.clear()
    request.observe(None)
    [proposal] = source.propose([draft_request_of(request)])
    assert list(request.read_token_ids) == text[-7:]
    assert chain_of(proposal) == greedy(target, text[-7:], 3)
    assert target.widths[0] == [1]
    assert source.begin(RequestContext([1, 2])).read_token_ids == [1, 2]


@pytest.mark.parametrize("context", [8, 40])
def test_what_is_left_unread_changes_no_token(context: int) -> None:
    manifest = make_manifest(vocab_size=6, max_context=400)
    source = DraftModelSource(DraftModel(DraftingTarget(), 4), 6, context)
    drafter = RetrievalDrafter(DraftConfig(is_history_used=False), [source]).wait()
    prompts, config = [[1, 2, 3, 4] * 40, [5, 1]], GenerationConfig(60)
    answers = decode(Decoder(FakeTarget(manifest), drafter, EngineConfig(max_batch=2)), prompts, [config] * 2)
    assert answers == [reference(manifest, prompt, config) for prompt in prompts]


def test_a_draft_model_is_silent_near_the_end_of_its_context() -> None:
    target = DraftingTarget(make_manifest(6, max_context=64))
    source = source_of(target)
    text = [1, 2] * 24
    request = source.begin(RequestContext(text))
    assert source.propose([draft_request_of(request)]) != [None]
    target.widths.clear()
    text += [1]
    assert source.propose([draft_request_of(request)]) == [None]
    assert not source.is_worth_asking(draft_request_of(request), 0.0)
    assert not target.widths


def test_a_draft_model_is_called_where_others_promise_less_than_it_costs() -> None:
    source = source_of(DraftingTarget())
    assert source.is_costly
    source.gain.step_s, source.gain.token_s = 2e-3, 1e-3
    request = source.begin(RequestContext([1, 2, 3]))
    draft_request = draft_request_of(request, max_depth=100, token_s=1e-2)  # a model of a fifth of a token
    assert source.is_worth_asking(draft_request, 0.1)
    assert not source.is_worth_asking(draft_request, 0.9)
    assert source.is_worth_asking(draft_request._replace(token_s=0.0), 0.9)  # nothing was measured


def test_guesses_that_no_pass_had_room_for_are_no_hits() -> None:
    source = source_of(DraftingTarget())
    text = [1, 2, 3]
    request = source.begin(RequestContext(text))
    for _ in range(20):
        before = source.gain.hits
        source.propose([draft_request_of(request)])
        root, pending = len(text) - 1, text[-1]
        text += greedy(DraftingTarget(), text, 1)
        nothing = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)
        request.observe(ScoredTree(DraftTree.root(pending), range(1), root, *nothing, MANIFEST.vocab_size))
        assert source.gain.hits < before


def test_a_long_prompt_is_not_read_for_a_short_answer() -> None:
    source = source_of(DraftingTarget())
    source.gain.step_s, source.gain.token_s = 2e-3, 1e-3
    text = [1, 2] * 40  # 80 ms to read; a step gains 4 ms where others know nothing
    request = source.begin(RequestContext(text))
    assert not source.is_worth_asking(draft_request_of(request, max_depth=100, token_s=1e-2), 0.0)
    text += [3] * 90  # an answer that went on for so long may go on
    assert not source.is_worth_asking(draft_request_of(request, max_depth=10, token_s=1e-2), 0.0)
    short = source.begin(RequestContext([1, 2] * 10))
    assert source.is_worth_asking(draft_request_of(short, max_depth=100, token_s=1e-2), 0.0)


def test_a_draft_model_of_no_use_falls_silent_after_a_bounded_trial() -> None:
    source = source_of(DraftingTarget())
    num_calls = 0
    for _ in range(5):
        text = [1, 2, 3]
        request = source.begin(RequestContext(text))
        for _ in range(100):
            source.gain.step_s = 2e-3  # a fifth of a token
            draft_request, guesses = draft_request_of(request, token_s=1e-2), set[int]()
            if source.is_worth_asking(draft_request, 0.0):
                num_calls += 1
                [proposal] = source.propose([draft_request])
                assert proposal is not None
                first = zip(proposal.token_ids, proposal.parents, strict=True)
                guesses.update(token_id for token_id, parent in first if parent == 0)
            text.append(next(token_id for token_id in range(6) if token_id not in guesses))
            request.observe(None)
        request.finish()
    assert 0 < num_calls < 50


def test_chains_are_as_long_as_their_probabilities_and_the_nodes_allow() -> None:
    sure, unsure = DraftingTarget(sharpness=30.0), DraftingTarget(sharpness=0.1)
    lengths = []
    for target in (sure, unsure):
        source = source_of(target)
        source.gain.step_s = 4e-3
        request = source.begin(RequestContext([1, 2, 3]))
        [proposal] = source.propose([DraftRequest(request, 5, 32, token_s=1e-2)])
        lengths.append(len(chain_of(proposal)))
    assert lengths[0] == 4
    assert lengths[1] == 1


def test_a_prompt_beyond_its_context_is_drafted_for_where_it_reads_less() -> None:
    long = [1, 2, 3] * 100
    for context, is_called in ((0, False), (40, True)):
        source = DraftModelSource(DraftModel(DraftingTarget(), 4), MANIFEST.vocab_size, context)
        assert source.is_worth_asking(draft_request_of(source.begin(RequestContext(long))), 0.0) is is_called


def test_a_prompt_that_fits_is_read_whole() -> None:
    assert read_passages(range(64), 64) == list(range(64))


def test_the_end_is_kept_and_the_passage_that_it_asks_of_comes_before_it() -> None:
    passages = [[1000 + 128 * number + each for each in range(128)] for number in range(20)]
    question = [*passages[13][40:80], *range(88)]
    prompt = [token_id for passage in passages for token_id in passage] + question
    read = read_passages(prompt, 256)
    assert read == passages[13] + question
    assert len(read_passages(prompt, 700)) <= 700
    assert read_passages(prompt, 700)[-350:] == prompt[-350:]


def test_passages_stay_in_their_order() -> None:
    about = [7] * 64
    prompt = [
        *range(100, 228),
        *about,
        *range(300, 364),
        *range(400, 528),
        *about,
        *range(600, 664),
        *range(700, 828),
        7,
    ]
    read = read_passages(prompt, 400)
    places = [prompt.index(each) for each in dict.fromkeys(read) if each != 7]
    assert places == sorted(places)
    assert 364 not in read
    assert {300, 600} <= set(read)


@pytest.mark.parametrize("num_tokens", [1, 2, 100])
def test_no_more_is_read_than_was_wanted(num_tokens: int) -> None:
    assert 0 < len(read_passages([each % 50 for each in range(5000)], num_tokens)) <= num_tokens
