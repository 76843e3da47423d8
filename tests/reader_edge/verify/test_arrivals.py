"""What proofs stand on: arrivals, stress drafters, and sources that would mislead."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from reader_edge.prompts import EvalPrompt
from reader_edge.verify import variants
from reader_edge.verify.arrivals import at_random, num_at_random
from reader_edge.verify.drafters import HostileSource, RandomWidths, StressDrafter
from reader_edge.verify.logit_comparer import PlainAnswer
from reader_edge.verify.proof import prove
from reader_edge.verify.result import ProofReport
from reader_edge_runtime import DraftConfig, Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import DraftError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.images.prompt_reader import ReadPrompt
from reader_edge_runtime.target import Pass
from tests.drafted_text import DraftedText

QUESTIONS = list(map(EvalPrompt, ["# tar\n\n", "1. Save the file.\n2. Save the file.\n3.", "Zürich 🙂", "# git\n"]))
MAX_TOKENS = 16
CONFIG = GenerationConfig(max_tokens=20)
ANSWERS = [
    PlainAnswer(i, ReadPrompt("", [i], [i]), CONFIG, list(range(100 * i, 100 * i + 20)), [bytes([i])] * 20)
    for i in range(9)
]


@pytest.fixture
def only_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "DRAFTERS", ())


def _prove(engine: Engine) -> ProofReport:
    return prove(engine, QUESTIONS, MAX_TOKENS)


def test_the_same_seed_gives_the_same_arrivals_and_another_others() -> None:
    assert at_random(ANSWERS, True, seed=1) == at_random(ANSWERS, True, seed=1) != at_random(ANSWERS, True, seed=2)


def test_every_answer_is_requested_once_to_its_end_and_some_are_given_up() -> None:
    arrivals = at_random(ANSWERS, True, seed=0)
    assert len(arrivals) == num_at_random(len(ANSWERS))
    staying = [arrival.plain for arrival in arrivals if arrival.num_steps is None]
    assert sorted(plain.question for plain in staying) == list(range(len(ANSWERS)))
    for plain in staying:
        whole, length = ANSWERS[plain.question], plain.config.max_tokens
        assert 10 <= length == len(plain.digests) <= 20
        assert plain.token_ids == whole.token_ids[:length]
    assert [arrival.step for arrival in arrivals] == sorted(arrival.step for arrival in arrivals)
    assert {arrival.is_drafted for arrival in arrivals} == {True, False}
    assert not any(arrival.is_drafted for arrival in at_random(ANSWERS, False, seed=0))


@pytest.mark.long
@pytest.mark.usefixtures("only_arrivals")
def test_requests_join_and_are_given_up_in_every_state(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    step, cancel = Decoder.step, Decoder.cancel

    def watched_step(decoder: Decoder) -> list[Request]:
        advanced = step(decoder)
        seen["prompts between chunks beside running answers"] += (
            decoder.scheduler.prefilling is not None and len(decoder.running) > 0
        )
        seen["waiting in line"] += len(decoder.waiting) > 0
        seen["greedy beside sampled"] += len({request.takes_best for request in decoder.running}) > 1
        seen["plain beside drafted"] += len({request.drafter is None for request in decoder.running}) > 1
        return advanced

    def watched_cancel(decoder: Decoder, request: Request) -> None:
        seen["cancelled in line"] += request in decoder.waiting
        seen["cancelled during its prompt"] += request is decoder.scheduler.prefilling
        seen["cancelled during its answer"] += request in decoder.running
        cancel(decoder, request)

    monkeypatch.setattr(Decoder, "step", watched_step)
    monkeypatch.setattr(Decoder, "cancel", watched_cancel)
    report = _prove(engine)
    assert report.counts.divergences == 0
    assert report.logit_rows_bit_equal
    assert report.counts.tokens_compared > 6 * len(QUESTIONS) * MAX_TOKENS
    assert len(seen) == 7
    assert min(seen.values()) > 0, seen


@pytest.mark.long
def test_a_prompt_misread_beside_others_is_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it shows where all requests come at once."""
    monkeypatch.setattr(variants, "DRAFTERS", ("stress",))
    monkeypatch.setattr(variants, "ARRIVAL_DRAFTERS", ("stress",))
    monkeypatch.setattr(variants, "RESTORED_DRAFTERS", ())
    forward = HostTarget.forward

    def forgetful_forward(target: HostTarget, cache: Cache, wanted: Pass) -> ForwardResult:
        if wanted.first_slot > 0 and cache.lengths[wanted.first_slot] >= 32:
            wanted = wanted._replace(trees=[DraftTree.chain([0, *wanted.trees[0].token_ids[1:]])])
        return forward(target, cache, wanted)

    monkeypatch.setattr(HostTarget, "forward", forgetful_forward)
    report = _prove(engine)
    assert {run.setting.variant for run in report.runs if run.divergences} == set(variants.ARRIVAL_VARIANTS)
    assert not report.logit_rows_bit_equal
    assert not report.is_promise_kept


@pytest.mark.long
@pytest.mark.usefixtures("only_arrivals")
def test_one_who_gives_up_and_takes_another_along_is_caught(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = Decoder.cancel

    def greedy_cancel(decoder: Decoder, request: Request) -> None:
        for other in [each for each in decoder.running if each is not request][:1]:
            cancel(decoder, other)
        cancel(decoder, request)

    monkeypatch.setattr(Decoder, "cancel", greedy_cancel)
    report = _prove(engine)
    assert report.counts.divergences > 0
    assert all(each.drafted_token_id is None for run in report.runs for each in run.divergences)
    assert not report.is_promise_kept


@pytest.mark.long
@pytest.mark.usefixtures("only_arrivals")
def test_answers_given_up_are_compared_as_far_as_they_went(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong token that only those emit who will give up."""
    given_up: set[Request] = set()
    cancel = Decoder.cancel

    def lying_cancel(decoder: Decoder, request: Request) -> None:
        cancel(decoder, request)
        if request.num_output_tokens:
            request.token_ids[-1] += 1
            given_up.add(request)

    monkeypatch.setattr(Decoder, "cancel", lying_cancel)
    report = _prove(engine)
    assert 0 < report.counts.divergences <= len(given_up)


PROMPT = (1, 2, 3)
ANSWER = list(range(100, 180))
VOCAB_SIZE = 200


def _trees(seed: int = 0, max_nodes: int = 64, max_depth: int = 64) -> list[DraftTree]:
    """Trees of a request that accepts three tokens a step."""
    text = DraftedText(StressDrafter([(PROMPT, ANSWER)], VOCAB_SIZE, seed), PROMPT)
    text.go_on(ANSWER[:1])
    trees = []
    for start in range(1, 61, 3):
        trees.append(text.draft(max_nodes, max_depth))
        text.go_on(ANSWER[start : start + 3])
    return trees


def _right_path(tree: DraftTree) -> list[int]:
    """Nodes that verification would walk."""
    path = [0]
    position = ANSWER.index(tree.token_ids[0]) + 1
    while (child := tree.child(path[-1], ANSWER[position])) >= 0:
        path.append(child)
        position += 1
    return path


def test_trees_are_valid_and_start_at_the_pending_token() -> None:
    for step, tree in enumerate(_trees()):
        tree.check(ANSWER[3 * step], VOCAB_SIZE, max_nodes=64)


def test_trees_hold_the_answer_scattered_among_wrong_branches() -> None:
    paths = [_right_path(tree) for tree in _trees()]
    assert max(map(len, paths)) > 8
    assert min(map(len, paths)) < 4
    assert sum(b - a > 1 for path in paths for a, b in pairwise(path)) > 20
    assert all("wrong" in tree.sources for tree in _trees())


def test_the_same_seed_gives_the_same_trees() -> None:
    assert _trees(seed=1) == _trees(seed=1)
    assert _trees(seed=1) != _trees(seed=2)


def test_trees_keep_to_their_bounds() -> None:
    assert all(len(tree) <= 5 for tree in _trees(max_nodes=5))
    assert all(tree.ancestors_and_depths()[1].max() <= 2 for tree in _trees(max_depth=2))
    assert all(len(tree) == 1 for tree in _trees(max_nodes=1))


DEMO = Path(__file__).parents[3] / "models" / "demo" / "package"
SMALL_VOCAB = 6144
_DRAFT_REQUESTS = [DraftRequest(RequestDrafter(RequestContext([1])), 24, 8)] * 20


def _engine(token_ids: range) -> Engine:
    drafter = RetrievalDrafter(DraftConfig(), [HostileSource(token_ids)]).wait()
    engine = Engine.load(DEMO, EngineConfig(threads=1, is_calibrated=False), drafter=drafter)
    engine.decoder.planner = RandomWidths()
    return engine


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nonsense_and_repeated_siblings_change_no_token(temperature: float) -> None:
    engine = _engine(range(SMALL_VOCAB))
    sampling = SamplingConfig(temperature=temperature, seed=3)
    drafted = engine.generate("# tar", GenerationConfig(48, sampling, ignores_eos=True))
    plain = engine.generate("# tar", GenerationConfig(48, sampling, ignores_eos=True, is_drafted=False))
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_by_source["hostile"] > 0


@pytest.mark.parametrize("token_ids", [range(SMALL_VOCAB, SMALL_VOCAB + 10), range(2**31 - 1, 2**31 + 9), range(-9, 0)])
def test_ids_outside_the_vocabulary_are_an_error_that_names_the_source(token_ids: range) -> None:
    engine = _engine(token_ids)
    request = engine.decoder.submit(engine.encode_prompt("# tar"), GenerationConfig(48))
    with pytest.raises(DraftError, match="'hostile'"):
        engine.decoder.finish(request)
    with pytest.raises(DraftError, match="'hostile'"):
        engine.generate("# tar", GenerationConfig(48))
    plain = engine.generate("# tar", GenerationConfig(48, is_drafted=False))
    assert plain.token_ids[: request.num_output_tokens] == tuple(request.output_token_ids)


def test_trees_repeat_siblings_and_the_same_seed_gives_the_same_ones() -> None:
    proposals = [HostileSource(range(100), seed=1).propose(_DRAFT_REQUESTS) for _ in range(2)]
    assert proposals[0] == proposals[1]
    pairs = [list(zip(p.parents, p.token_ids, strict=True)) for p in proposals[0]]
    assert any(len(set(each)) < len(each) for each in pairs)
