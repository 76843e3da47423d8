"""A trained speculator as a source: what it reads, how far its tree grows, when it is asked, what it may do wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest

from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.proposals import check_proposal
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter, RetrievalRequest
from reader_edge_runtime.drafting.sources.speculator.speculated_tree import SpeculatedTree
from reader_edge_runtime.drafting.sources.speculator.speculator_request import SpeculatorRequest
from reader_edge_runtime.drafting.sources.speculator.speculator_source import SpeculatorSource
from reader_edge_runtime.errors import DraftError
from tests.fake_speculator import FakeSpeculator, TellingTarget
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import decode, reference

MANIFEST = replace(make_manifest(6, max_context=256), state_ids=(0,))
NOTHING = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32)


def speculator_of(order: int = 3, sharpness: float = 4.0, max_context: int = 256) -> FakeSpeculator:
    manifest = replace(MANIFEST, max_context=max_context)
    return FakeSpeculator(FakeTarget(manifest, order, sharpness), manifest)


def source_of(speculator: FakeSpeculator, max_slots: int = 4) -> SpeculatorSource:
    source = SpeculatorSource(speculator, (0,), MANIFEST.vocab_size, max_slots)
    speculator.num_stepped.clear()  # those that were measured
    speculator.is_checked = True
    return source


def drafter_of(source: SpeculatorSource) -> RetrievalDrafter:
    return RetrievalDrafter(DraftConfig(is_logits_used=False), [source]).wait()


def hear(request: SpeculatorRequest, start: int) -> None:
    """Have a target tell what it thinks of a text's tokens from a position on, but for the last."""
    tokens = list(request.token_ids[start:-1])
    states = np.array([[token, position] for position, token in enumerate(tokens, start)], np.float32)
    rows = range(len(tokens) - 1, len(tokens))
    request.observe(ScoredTree(DraftTree.chain(tokens), rows, start, *NOTHING, 6, None, states[:, None]))


def begun(source: SpeculatorSource, text: list[int]) -> SpeculatorRequest:
    request = source.begin(RequestContext(text))
    hear(request, 0)
    return request


def asked(request: SpeculatorRequest, max_depth: int = 4, token_s: float = 0.0) -> DraftRequest:
    """With a drafter that drafts what is proposed."""
    return DraftRequest(request, 16, max_depth, token_s, lambda tree: tree.pruned(16))


def likeliest(tree: DraftTree | None, depth: int) -> list[int]:
    """The tokens of the most valuable path of so many tokens."""
    assert tree is not None
    paths: list[list[int]] = [[]]
    for node in range(1, len(tree)):
        paths.append([*paths[tree.parents[node]], tree.token_ids[node]])
    [*_, best] = sorted((tree.values[node], paths[node]) for node in range(len(tree)) if len(paths[node]) == depth)
    return best[1]


def greedy(target: FakeTarget, text: list[int], count: int) -> list[int]:
    text = list(text)
    for _ in range(count):
        text.append(int(target.logits_after(text).argmax()))
    return text[-count:]


def test_the_tree_follows_what_the_speculator_says_and_is_as_sure() -> None:
    speculator = speculator_of(sharpness=9.0)
    source, text = source_of(speculator), [1, 2, 3, 4]
    [tree] = source.propose([asked(begun(source, text))])
    assert tree is not None
    check_proposal(tree, 4, source.name)
    assert likeliest(tree, 3) == greedy(speculator._target, text, 3)
    logits = speculator._target.logits_after(text)
    shares = np.exp(logits) / np.exp(logits).sum()
    for node in (node for node, parent in enumerate(tree.parents) if parent == 0):
        assert tree.values[node] == pytest.approx(shares[tree.token_ids[node]], rel=1e-5)
    assert speculator.num_caught_up == [[3]]  # the first token has none before it
    assert speculator.num_stepped


def test_only_what_came_since_is_read_whatever_was_guessed() -> None:
    speculator = speculator_of()
    source, text = source_of(speculator), [1, 2, 3, 4]
    request = begun(source, text)
    source.propose([asked(request)])
    start = len(text) - 1
    text += [0, 5, 1]
    hear(request, start)
    source.propose([asked(request)])
    assert speculator.num_caught_up == [[3], [3]]


def test_states_that_were_missed_cost_the_rows_before_them_and_nothing_else() -> None:
    speculator = speculator_of()
    source, text = source_of(speculator), [1, 2, 3, 4]
    request = begun(source, text)
    source.propose([asked(request)])
    text += [0, 5, 1, 1, 2]
    assert not source.is_worth_asking(asked(request), 0.0)  # not heard of
    assert source.propose([asked(request)]) == [None]
    hear(request, 6)
    assert source.propose([asked(request)]) != [None]
    assert speculator.num_caught_up == [[3], [2]]


def test_a_long_text_is_not_caught_up_with_for_one_uncertain_step_among_sure_ones() -> None:
    token_s = 0.02
    asked_for = []
    for others in (0.05, 0.9):
        source = source_of(speculator_of())
        source.times._seconds, source.gain.seconds = [1e-3, 1e-3, 1e-3, 1e-3, 2e-3, 8e-3], 2e-3
        request = begun(source, [1, 2, 3, 4] * 40)
        for _ in range(300):
            source.gain.pays(others, token_s)
        asked_for.append(source.is_worth_asking(asked(request, 64, token_s), 0.05))
    assert asked_for == [True, False]


def test_of_a_long_silence_the_newest_states_are_kept() -> None:
    speculator = speculator_of(max_context=2048)
    source, text = source_of(speculator), [1, 2]
    request = begun(source, text)
    for _ in range(5):
        start = len(text) - 1
        text += [3, 4, 5] * 100
        hear(request, start)
    assert source.propose([asked(request)]) != [None]
    [*whole, last] = [sum(each) for each in speculator.num_caught_up]
    assert (set(whole), 128 * len(whole) + last) == ({128}, 1200)  # four of the five parts: 1024 and what is beside


def test_who_asked_nothing_leaves_nothing() -> None:
    source = source_of(speculator_of())
    request = source.begin(RequestContext([1, 2, 3]))
    request.observe(None)
    assert not source.is_worth_asking(asked(request), 0.0)
    request.finish()
    assert not source.slots.slots


def test_without_a_sketch_the_tree_is_what_follows_the_text() -> None:
    speculator = speculator_of(sharpness=9.0)
    source = source_of(speculator)
    [tree] = source.propose([DraftRequest(begun(source, [1, 2, 3, 4]), 16, 4, 0.0)])
    assert tree is not None
    assert set(tree.parents[1:]) == {0}
    assert not speculator.num_stepped


def test_a_text_that_begins_like_one_that_ended_is_read_from_where_they_part() -> None:
    speculator = speculator_of()
    source = source_of(speculator)
    first = begun(source, [1, 2, 3, 4, 5, 0])
    source.propose([asked(first)])
    first.finish()
    other = begun(source, [1, 2, 3, 4, 0, 0, 1])
    source.propose([asked(other)])
    assert speculator.num_caught_up == [[5], [3]]
    reused = source.begin(RequestContext([1, 2, 3, 4, 0, 0, 5, 2]))  # the target has rows of its first tokens, too
    other.finish()
    hear(reused, 5)
    source.propose([asked(reused)])
    assert speculator.num_caught_up[2:] == [[2]]


def test_texts_side_by_side_share_passes() -> None:
    speculator = speculator_of(sharpness=9.0)
    source = source_of(speculator)
    texts = [[1, 2, 3, 0, 5], [3, 4, 5, 5], [2] * 150]
    requests = [begun(source, text) for text in texts]
    trees = source.propose([asked(request) for request in requests])
    assert speculator.num_caught_up == [[4, 3, 128], [21]]
    assert [likeliest(tree, 2) for tree in trees] == [greedy(speculator._target, text, 2) for text in texts]
    assert all(len(each) > 1 for each in speculator.num_stepped[:1])


def test_no_row_of_a_tree_is_lost_while_the_cache_grows() -> None:
    speculator = speculator_of(sharpness=9.0, max_context=1024)
    source = source_of(speculator)
    capacity = source.slots.cache.capacity
    source.propose([asked(begun(source, [2] * (capacity - 3)))])  # what it reads is checked
    assert len(speculator.num_stepped) > 1


def test_a_long_text_beside_one_near_the_contexts_end_is_read_in_shorter_chunks() -> None:
    speculator = speculator_of(sharpness=9.0)
    source = source_of(speculator)
    late = begun(source, [2] * 190)
    source.propose([asked(late)])
    late.token_ids.append(2)  # type: ignore[attr-defined]
    hear(late, 189)
    trees = source.propose([asked(late), asked(begun(source, [3] * 150))])
    assert all(tree is not None for tree in trees)
    assert speculator.num_caught_up[2:] == [[1, 67], [82]]


@pytest.mark.parametrize("order", [3, 2], ids=["knowing", "ignorant"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_speculators_change_no_token_in_ragged_batches_and_free_their_slots(order: int, temperature: float) -> None:
    manifest = replace(MANIFEST, max_context=90)
    speculator = speculator_of(order, max_context=120)
    source = source_of(speculator)
    decoder = Decoder(TellingTarget(manifest), drafter_of(source), EngineConfig(max_batch=4, prefill_chunk=7))
    prompts = [[5, 1, 2], [3], [1, 4, 0, 2] * 4, [2] * 9, [0, 5], [4] * 20]
    sampling = SamplingConfig(temperature=temperature, seed=3)
    configs = [GenerationConfig(max_tokens=20 + 4 * i, sampling=sampling) for i in range(len(prompts))]
    cancelled = decoder.submit([1, 3, 5], configs[-1])
    for _ in range(3):
        decoder.step()
    decoder.cancel(cancelled)
    expected = [reference(manifest, *each) for each in zip(prompts, configs, strict=True)]
    requests = [decoder.submit(*each) for each in zip(prompts, configs, strict=True)]
    decoder.finish(*requests)
    assert [request.output_token_ids for request in requests] == expected
    assert decode(decoder, prompts[::-1], configs[::-1]) == expected[::-1]
    if order == 3 and not temperature:
        assert sum(request.stats.num_accepted_tokens for request in requests) > 60
    assert speculator.num_stepped
    assert all(slot.is_free for slot in source.slots.slots)
    assert 0 < len(source.slots.slots) <= 4


def test_of_many_guesses_alike_few_are_taken_and_each_token_once() -> None:
    wide, twice = SpeculatedTree(5, 100), SpeculatedTree(5, 100)
    wide.hear_root(np.arange(20), np.full(20, 0.05, np.float32), np.zeros(2, np.float32))
    assert wide.tree.token_ids == [5, *range(8)]
    twice.hear_root(np.array([3, 3, 4]), np.array([0.5, 0.3, 0.2], np.float32), np.zeros(2, np.float32))
    assert twice.tree.token_ids == [5, 3, 4]
    assert twice.tree.values[1:] == pytest.approx([0.5, 0.2])


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 2.0])
def test_named_tokens_are_as_likely_as_answers_at_their_temperature_have_them(temperature: float) -> None:
    logits = np.array([3.0, 2.0, 1.0, 0.0, 0.0, 0.0])
    shares, wanted = (np.exp(each) / np.exp(each).sum() for each in (logits, logits / temperature))
    tree = SpeculatedTree(5, 6, temperature)
    tree.hear_root(np.arange(4), shares[:4].astype(np.float32), np.zeros(2, np.float32))
    assert tree.tree.token_ids[1:] == [0, 1, 2, 3][: (wanted[:4] >= 0.005).sum()]
    assert tree.tree.values[1:] == pytest.approx(wanted[: len(tree.tree) - 1], rel=1e-5)


@pytest.mark.parametrize("temperature", [5e-324, 1e-20])
@pytest.mark.parametrize("others", [(0.3, 0.1), (0.0, 0.0)])
def test_at_hardly_any_temperature_the_likeliest_is_sure(temperature: float, others: tuple[float, float]) -> None:
    tree = SpeculatedTree(5, 6, temperature)
    tree.hear_root(np.arange(3), np.array([0.6, *others], np.float32), np.zeros(2, np.float32))
    assert (tree.tree.token_ids, tree.tree.values[1:]) == ([5, 0], [1.0])


def test_a_source_hears_at_which_temperature_its_answer_is_drawn() -> None:
    shares = []
    for temperature in (0.0, 0.5):
        source = source_of(speculator_of())
        decoder = Decoder(TellingTarget(MANIFEST), drafter_of(source), EngineConfig())
        request = decoder.submit([1, 2, 3], GenerationConfig(10, sampling=SamplingConfig(temperature=temperature)))
        assert request.drafter is not None
        assert isinstance(request.drafter, RetrievalRequest)
        [heard] = [each for each in request.drafter.sources.states if isinstance(each, SpeculatorRequest)]
        shares.append(heard.temperature)
    assert shares == [0.0, 0.5]


@pytest.mark.parametrize("odd", [(-1, 0.5), (6, 0.5), (2**62, 0.5), (1, math.nan), (1, math.inf), (1, -1.0), (1, 2.0)])
def test_guesses_that_cannot_be_are_left_out(odd: tuple[int, float]) -> None:
    speculator = speculator_of()
    source = source_of(speculator)
    speculator.odd = odd
    [tree] = source.propose([asked(begun(source, [1, 2, 3]))])
    assert tree == DraftTree.root(3)
    if not math.isfinite(odd[1]):
        sampled = SpeculatedTree(3, 6, temperature=0.7)
        sampled.hear_root(np.array([odd[0]]), np.array([odd[1]], np.float32), np.zeros(2, np.float32))
        assert sampled.tree == DraftTree.root(3)


def test_retrieved_nodes_are_judged_where_the_speculator_names_them_or_not() -> None:
    speculator = speculator_of(sharpness=9.0)
    source, text = source_of(speculator), [1, 2, 3, 4]
    [likely] = greedy(speculator._target, text, 1)
    unlikely = int(speculator._target.logits_after(text).argmin())

    def sketch(tree: DraftTree) -> DraftTree:
        draft = DraftTree.root(4)
        for token_id in (likely, unlikely):
            draft.add(token_id, 0, "context", 0.4)
        return draft

    [tree] = source.propose([DraftRequest(begun(source, text), 16, 4, 0.0, sketch)])
    assert tree is not None
    assert speculator.num_stepped == [[2]]
    values = [tree.values[tree.child(0, token_id)] for token_id in (likely, unlikely)]
    assert values[0] > 0.9 > 0.1 > values[1]
    assert tree.child(0, likely) in tree.parents  # what follows it is told, too


def test_the_tree_grows_while_a_pass_saves_more_than_it_takes() -> None:
    sizes = []
    for step_s in (1e-5, 1e-3, 1.0):
        speculator = speculator_of(sharpness=9.0)
        source = source_of(speculator)
        source.times._seconds = [step_s] * len(source.times._seconds)
        source.times.learn = lambda num_nodes, seconds: None  # type: ignore[method-assign]
        source.propose([asked(begun(source, [1, 2, 3, 4]), 8, token_s=1e-2)])
        sizes.append(sum(map(sum, speculator.num_stepped)))
    assert sizes[0] > sizes[1] > sizes[2] == 0


def test_a_speculator_of_no_use_falls_silent() -> None:
    speculator = speculator_of(order=2)
    source = source_of(speculator)
    source.gain.seconds = 1.0
    request = begun(source, [1, 2, 3, 4])
    for _ in range(300):
        source.learn_gain(request, 0, 5e-3)
    assert not source.is_worth_asking(asked(request, 100, token_s=1e-2), 0.0)
    assert source.is_worth_asking(asked(request, 100), 0.0)  # nothing was measured


def test_a_long_prompt_is_not_read_for_a_short_answer() -> None:
    source = source_of(speculator_of())
    source.times._seconds, source.gain.seconds = [1e-3, 1e-3, 1e-3, 1e-3, 2e-3, 8e-3], 2e-3
    request = begun(source, [1, 2] * 90)  # 22 ms to read; a step gains 1 ms on average
    assert not source.is_worth_asking(asked(request, 10, token_s=1e-2), 0.0)
    assert source.is_worth_asking(asked(request, 200, token_s=1e-2), 0.0)


def test_a_speculator_that_fails_is_told_once_and_asked_no_more() -> None:
    speculator = speculator_of()
    source = source_of(speculator)
    request = begun(source, [1, 2, 3])
    speculator.is_broken = True
    with pytest.warns(UserWarning, match=r"speculator is not asked again: .*failed in a pass"):
        assert source.propose([asked(request)]) == [None]
    assert source.propose([asked(request)]) == [None]
    assert not source.is_worth_asking(asked(request), 0.0)
    assert source.state() == {}
    source.restore({"text/0": np.array([9], np.int32)})  # nor does it take up a session's texts
    assert source.propose([asked(request)]) == [None]


def test_texts_and_their_rows_are_taken_up_again() -> None:
    speculator = speculator_of()
    source = source_of(speculator)
    requests = [begun(source, text) for text in ([1, 2, 3, 4, 5], [5, 4, 3])]
    source.propose([asked(request) for request in requests])
    other = speculator_of()
    taken = source_of(other)
    taken.restore(source.state())
    taken.propose([asked(begun(taken, [1, 2, 3, 4, 5, 0, 1]))])
    assert other.num_caught_up == [[2]]
    taken.restore({})
    taken.propose([asked(begun(taken, [1, 2, 3, 4, 5, 0, 1]))])
    assert other.num_caught_up[1:] == [[6]]
    taken.slots.forget()
    taken.restore(taken.state())
    taken.propose([asked(begun(taken, [1, 2, 3, 4, 5, 0, 1]))])
    assert other.num_caught_up[2:] == [[6]]


@pytest.mark.parametrize(
    "spoilt",
    [
        {"text/0": np.array([1, 9], np.int32)},
        {"text/0": np.array([1, -1], np.int32)},
        {"text/0": np.array([1, 2])},
        {"start/0": np.array([7], np.int32)},
        {"start/0": np.array([], np.int32)},
        {"rows/0": np.zeros((2, 1, 9, 2), np.float32)},
        {"rows/0": np.full((2, 1, 3, 2), np.nan, np.float32)},
    ],
)
def test_rows_that_no_session_holds_change_nothing(spoilt: dict[str, np.ndarray]) -> None:
    speculator = speculator_of()
    source = source_of(speculator)
    source.propose([asked(begun(source, [1, 2, 3, 4]))])
    state = {**source.state(), **spoilt}
    with pytest.raises(DraftError, match="start over"):
        source.restore(state)
    assert source.slots.slots[0].token_ids == [1, 2, 3, 4]


def test_it_can_pay_where_a_quarter_of_a_token_makes_up_for_asking() -> None:
    source = source_of(speculator_of())
    source.gain.seconds = 1e-3
    assert source.can_pay(8.01e-3)
    assert not source.can_pay(7.99e-3)
