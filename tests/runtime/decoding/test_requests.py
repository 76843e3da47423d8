"""Requests to the decoder: prefixes reused, ends, cancelled and interrupted ones, what is refused."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.sampling.sampler import Sampler
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import Drafter, DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import DraftError, PromptError, ProviderError, ReaderEdgeError
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import PAGE_BYTES, KvSlab
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, decode, make_decoder, reference


def test_a_prefix_is_reused_of_idle_and_running_answers() -> None:
    manifest = make_manifest(16)
    decoder = make_decoder(manifest, RetrievalDrafter(DraftConfig()).wait())
    config = GenerationConfig(max_tokens=10)
    first = list(range(16)) * 3
    decode(decoder, [first], [config])
    second = [*first[:40], 1, 1, 1]
    request = decoder.submit(second, config)
    decoder.finish(request)
    assert request.stats.num_reused_tokens == 40
    assert request.output_token_ids == reference(manifest, second, config)
    manifest = make_manifest(16)
    decoder = make_decoder(manifest, RetrievalDrafter(DraftConfig()).wait())
    config = GenerationConfig(max_tokens=30)
    texts = [list(range(16)) * 3, [*list(range(16)) * 2, 5, 5, 5], [7, 7, 7, 7]]
    requests = [decoder.submit(texts[0], config)]
    for _ in range(2):
        decoder.step()
    texts.append(requests[0].token_ids[:])  # prompt and answer so far, with the pending token
    requests += [decoder.submit(text, config) for text in texts[1:]]
    decoder.finish(*requests)
    assert [request.stats.num_reused_tokens for request in requests] == [0, 32, 0, len(texts[3]) - 1]
    for text, request in zip(texts, requests, strict=True):
        assert request.output_token_ids == reference(manifest, text, config)


def test_an_idle_prefix_that_a_running_answer_has_too_stays_for_others() -> None:
    manifest = make_manifest(16)
    decoder = make_decoder(manifest, RetrievalDrafter(DraftConfig()).wait())
    config = GenerationConfig(max_tokens=30)
    shared, other = [3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8]
    decode(decoder, [shared, other, [9, 9]], [config] * 3)
    first = decoder.submit([*shared, 1], config)
    decoder.step()
    second, third = decoder.submit([*shared, 2], config), decoder.submit([*other, 3], config)
    decoder.finish(first, second, third)
    reused = [request.stats.num_reused_tokens for request in (first, second, third)]
    assert reused == [len(shared), len(shared), len(other)]


def test_cancelled_sequence_leaves_the_others_and_its_prefix_right() -> None:
    manifest = make_manifest(6)
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    config = GenerationConfig(max_tokens=30)
    prompts = [[1, 2, 3], [4, 5], [3, 3, 3, 3]]
    requests = [decoder.submit(prompt, config) for prompt in prompts]
    for _ in range(3):
        decoder.step()
    decoder.cancel(requests[0])
    decoder.finish(*requests)
    assert requests[0].finish_reason == "cancelled"
    for prompt, request in zip(prompts[1:], requests[1:], strict=True):
        assert request.output_token_ids == reference(manifest, prompt, config)
    again = decoder.submit(requests[0].token_ids, config)
    decoder.finish(again)
    assert again.stats.num_reused_tokens > 0
    assert again.output_token_ids == reference(manifest, requests[0].token_ids, config)


def test_slots_that_were_given_back_during_an_interrupt_are_not_reused(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = make_manifest(6, max_context=2048)
    engine_config = EngineConfig(max_batch=2, prefill_chunk=64, max_kv_bytes=5 * 2 * PAGE_BYTES)
    decoder = Decoder(FakeTarget(manifest), RandomDrafter(6, 9, seed=1), engine_config)
    config = GenerationConfig(max_tokens=10)
    texts = [[1, 2, 3, 4] * 5, [4, 3, 2, 1] * 5]
    decode(decoder, texts, [config] * 2)
    give_back = KvSlab.give_back

    def interrupted(slab: KvSlab, slot: int, start_row: int, end_row: int) -> None:
        give_back(slab, slot, start_row, end_row)
        raise KeyboardInterrupt

    monkeypatch.setattr(KvSlab, "give_back", interrupted)
    decoder.submit([5], GenerationConfig(max_tokens=2000))  # has room alone
    with pytest.raises(KeyboardInterrupt):
        decoder.step()
    monkeypatch.undo()
    assert decode(decoder, texts, [config] * 2) == [reference(manifest, text, config) for text in texts]


def test_an_answer_ends_at_its_limits_and_the_model_s_end_token() -> None:
    manifest = make_manifest(6, max_context=40)
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    answer = reference(manifest, [1, 2], GenerationConfig(max_tokens=100))
    request = decoder.submit([1, 2], GenerationConfig(max_tokens=100))
    decoder.finish(request)
    assert (request.finish_reason, len(request.token_ids)) == ("context", 40)
    stop = answer[5]
    request = decoder.submit([1, 2], GenerationConfig(max_tokens=100, stop_token_ids=(stop,)))
    decoder.finish(request)
    assert request.finish_reason == "stop"
    assert request.output_token_ids == answer[: answer.index(stop) + 1]
    assert decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=1)]) == [answer[:1]]
    plain = make_manifest(6)
    answer = reference(plain, [1, 2], GenerationConfig(max_tokens=20))
    manifest = make_manifest(6, eos_token_ids=(answer[4],))
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    end = answer.index(answer[4]) + 1
    assert decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=20)]) == [answer[:end]]
    assert decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=20, ignores_eos=True)]) == [answer]


class CallerError(Exception):
    """Something that a caller's code may raise."""


def _decode_all(decoder: Decoder, requests: Sequence[Request]) -> None:
    while any(request.is_running for request in requests):
        decoder.step()


@pytest.mark.parametrize("place", ["draft", "tree", "callback", "sampler", "observe", "finish"])
def test_a_fault_of_one_request_ends_that_request_alone(place: str) -> None:
    manifest = make_manifest(6)
    drafter = FaultyDrafter(place)
    decoder = make_decoder(manifest, drafter)
    config = GenerationConfig(max_tokens=30)
    prompts = [[1, 2, 3], [4, 5], [3, 3, 3, 3]]

    def is_stop(token_id: int) -> bool:
        if place == "callback" and faulty.num_output_tokens == 7:
            raise CallerError("callback")
        return False

    class FaultySampler(Sampler):
        def peek(self, logits: npt.NDArray[np.float32], position: int) -> int:
            if position == 9:
                raise CallerError("sampler")
            return super().peek(logits, position)

    sampler = FaultySampler(SamplingConfig(), 6, ()) if place == "sampler" else None
    others = [decoder.submit(prompt, config) for prompt in prompts[:2]]
    drafter.is_faulty = True
    faulty = decoder.submit(prompts[2], config, is_stop, sampler)
    _decode_all(decoder, [*others, faulty])
    assert faulty.finish_reason == "error"
    assert isinstance(faulty.error, DraftError if place in ("draft", "tree") else CallerError)
    assert [each.output_token_ids for each in others] == [reference(manifest, prompt, config) for prompt in prompts[:2]]
    assert faulty.num_output_tokens == 1 or place not in ("draft", "tree")  # no pass after its draft failed
    answer = reference(manifest, prompts[2], config)
    assert faulty.output_token_ids == answer[: faulty.num_output_tokens]
    drafter.is_faulty = False
    assert decode(decoder, [faulty.token_ids], [config]) == [reference(manifest, faulty.token_ids, config)]


class FaultyDrafter(Drafter):
    """Random drafts, and one fault in the requests that begin while it is faulty."""

    num_harvested_rows = 5

    def __init__(self, place: str) -> None:
        self.is_faulty = False
        self._inner = RandomDrafter(6, 9, seed=1)
        self._place = place

    def begin(self, context: RequestContext) -> RequestDrafter:
        request = self._inner.begin(context)
        return FaultyRequest(context, request, self._place) if self.is_faulty else request

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        inner = [each._replace(request=getattr(each.request, "inner", each.request)) for each in draft_requests]
        drafts = self._inner.draft(inner)
        for i, draft_request in enumerate(draft_requests):
            if isinstance(draft_request.request, FaultyRequest) and self._place == "draft":
                drafts[i] = DraftError("A source says nonsense.")
            elif isinstance(draft_request.request, FaultyRequest) and self._place == "tree":
                drafts[i] = DraftTree([3, 6000], [-1, 0], ["", "hostile"], [1.0, 0.5])
        return drafts


class FaultyRequest(RequestDrafter):
    """A request's drafting that fails when it learns something."""

    def __init__(self, context: RequestContext, inner: RequestDrafter, place: str) -> None:
        super().__init__(context)
        self.inner = inner
        self._place = place

    def observe(self, scored: ScoredTree | None) -> None:
        if self._place == "observe":
            raise CallerError("observe")
        self.inner.observe(scored)

    def finish(self) -> None:
        if self._place == "finish":
            raise CallerError("finish")
        self.inner.finish()


def test_every_step_gives_every_running_request_a_token_also_when_others_join() -> None:
    manifest = make_manifest(6)
    decoder = make_decoder(manifest, RandomDrafter(6, 3, seed=1))
    requests = []
    for number in range(12):
        if number % 3 == 0:
            requests.append(decoder.submit([number % 6, 1, 2], GenerationConfig(max_tokens=40)))
        before = {request: request.num_output_tokens for request in requests}
        running, waiting = list(decoder.running), list(decoder.waiting)
        advanced = decoder.step()
        assert advanced == [*running, *waiting]
        assert all(request.num_output_tokens > before[request] for request in advanced)


@pytest.mark.parametrize("prompt", [[], [99], [-1], [2**70], [1.5], [1.0], ["1"], [None], list(range(6)) * 100])
def test_bad_prompt_is_refused_in_one_sentence(prompt: list[int]) -> None:
    decoder = make_decoder(make_manifest(6), RandomDrafter(6, 4, seed=0))
    with pytest.raises(PromptError, match=r"^[^\n]+\.$"):
        decoder.submit(prompt, GenerationConfig())
    assert not decoder.waiting


@pytest.mark.parametrize(
    "tree",
    [
        DraftTree([], [], [], []),
        DraftTree([0, 1], [-1], ["", ""], [1, 1]),
        DraftTree([0, 1], [-1, 0], ["", ""], [1]),
        DraftTree([0, 99], [-1, 0], ["", "x"], [1, 1]),
        DraftTree([0, 1], [-1, 1], ["", "x"], [1, 1]),
        DraftTree([0, 1, 1], [-1, 0, 0], ["", "x", "x"], [1, 1, 1]),
        DraftTree([0], [0], [""], [1]),
        DraftTree([3], [-1], [""], [1]),
        DraftTree.chain([0, 1, 2, 3, 4]),
    ],
)
def test_what_is_no_tree_of_known_tokens_is_refused(tree: DraftTree) -> None:
    with pytest.raises(DraftError):
        tree.check(root_token_id=0, vocab_size=6, max_nodes=4)


@pytest.mark.parametrize(
    ("top_id", "logit", "sentence"),
    [(-1, 1.0, "token id -1"), (6, 1.0, "token id 6"), (2**40, 1.0, "1099511627776"), (2, float("nan"), "not numbers")],
)
def test_what_a_graph_cannot_mean_ends_the_request_in_one_sentence(
    top_id: int, logit: float, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = make_decoder(make_manifest(6), RandomDrafter(6, 9, seed=1))
    forward = decoder.target.forward

    def hostile(cache: Cache, wanted: Pass) -> ForwardResult:
        result = forward(cache, wanted)
        result.top_ids[..., 0], result.top_logits[..., 0] = top_id, logit
        return result

    monkeypatch.setattr(decoder.target, "forward", hostile)
    request = decoder.submit([1, 2], GenerationConfig(max_tokens=5))
    with pytest.raises(ProviderError, match=sentence):
        decoder.finish(request)
    assert request.output_token_ids == []
