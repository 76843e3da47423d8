"""A trained speculator as a source: what it reads, when it is called, what it may do wrong."""

from dataclasses import replace

import numpy as np
import pytest

from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.drafting.drafter import RequestContext
from reader_edge_runtime.drafting.proposals import BlockTree
from reader_edge_runtime.drafting.speculators.speculated_tree import NAME
from reader_edge_runtime.drafting.speculators.speculator_cost import BlockPlaces
from reader_edge_runtime.errors import DraftError
from reader_edge_runtime.package.package_parts import BlockPart
from tests.fake_speculator import (
    MANIFEST,
    TellingTarget,
    add_states,
    begun,
    draft_request,
    drafter_of,
    greedy,
    likeliest,
    source_of,
    speculator_of,
)
from tests.random_drafter import check_ragged_batches

BLOCK = BlockPart(6, 5)


def test_only_what_came_since_is_read_whatever_was_guessed() -> None:
    speculator = speculator_of()
    source, text = source_of(speculator), [1, 2, 3, 4]
    request = begun(source, text)
    source.propose([draft_request(request)])
    start = len(text) - 1
    text += [0, 5, 1]
    add_states(request, start)
    source.propose([draft_request(request)])
    assert speculator.num_caught_up == [[3], [3]]


def test_a_block_is_drafted_in_the_pass_that_reads_what_came_since_as_far_as_the_plan_goes() -> None:
    speculator = speculator_of(sharpness=9.0, block=BLOCK, max_context=1024)
    source, text = source_of(speculator), [1, 2, 3, 4]
    request = begun(source, text)
    [tree] = source.propose([draft_request(request, max_depth=3)])
    assert isinstance(tree, BlockTree)
    assert tree.token_ids == [4, *greedy(speculator._target, text, 3)]
    start = len(text) - 1
    text += [0, 5] * 80
    add_states(request, start)
    [tree] = source.propose([draft_request(request, max_depth=64)])
    assert tree is not None
    assert len(tree) == 1 + BLOCK.max_drafts
    assert (speculator.num_caught_up, speculator.num_drafted) == ([[3], [128], [32]], [3, 1, BLOCK.max_drafts])
    assert not speculator.num_stepped


def test_a_block_goes_as_far_as_its_tokens_come_and_further_now_and_then() -> None:
    speculator = speculator_of(block=BLOCK, max_context=2048)
    source, text, saved_s = source_of(speculator), [1, 2, 3, 4], 0.02
    source.places = BlockPlaces(BLOCK.max_drafts, 0.01 * saved_s)
    request = begun(source, text)
    for step in range(300):
        source.propose([draft_request(request, token_s=3 * saved_s, max_depth=64)])
        start = len(text) - 1
        text += [0, 5, step % 6]  # two are drafted and come, the third is another
        add_states(request, start, NAME if step % 2 else "context")
    assert set(speculator.num_drafted[-150:]) == {2, 3}
    assert source.places.rates[:3] == pytest.approx([0.5, 0.5, 0.0], abs=0.1)
    assert source.places.worth(0.0) == BLOCK.max_drafts  # nothing was measured
    source.places.learn(2, [True] * 2)
    assert source.places.worth(1.0) == BLOCK.max_drafts


def test_a_block_pays_by_what_blocks_add() -> None:
    for block, pass_s in ((None, 8.0), (BLOCK, 2.0)):
        source = source_of(speculator_of(block=block))
        source.gain.seconds = 1.0
        assert source.pays_off(pass_s)
        assert not source.pays_off(0.99 * pass_s)


def test_states_that_were_missed_cost_the_rows_before_them_and_nothing_else() -> None:
    speculator = speculator_of()
    source, text = source_of(speculator), [1, 2, 3, 4]
    request = begun(source, text)
    source.propose([draft_request(request)])
    text += [0, 5, 1, 1, 2]
    assert not source.is_worth_asking(draft_request(request), 0.0)  # not known
    assert source.propose([draft_request(request)]) == [None]
    add_states(request, 6)
    assert source.propose([draft_request(request)]) != [None]
    assert speculator.num_caught_up == [[3], [2]]


def test_a_long_text_is_not_caught_up_with_for_one_uncertain_step_among_sure_ones() -> None:
    token_s = 0.02
    is_called = []
    for others in (0.05, 0.9):
        source = source_of(speculator_of())
        source.times._seconds, source.gain.seconds = [1e-3, 1e-3, 1e-3, 1e-3, 2e-3, 8e-3], 2e-3
        request = begun(source, [1, 2, 3, 4] * 40)
        for _ in range(300):
            source.gain.pays(others, token_s)
        is_called.append(source.is_worth_asking(draft_request(request, 64, token_s), 0.05))
    assert is_called == [True, False]


def test_of_a_long_silence_the_newest_states_are_kept() -> None:
    speculator = speculator_of(max_context=2048)
    source, text = source_of(speculator), [1, 2]
    request = begun(source, text)
    for _ in range(5):
        start = len(text) - 1
        text += [3, 4, 5] * 100
        add_states(request, start)
    assert source.propose([draft_request(request)]) != [None]
    [*whole, last] = [sum(each) for each in speculator.num_caught_up]
    assert (set(whole), 128 * len(whole) + last) == ({128}, 1200)  # four of the five parts: 1024 and what is beside


def test_who_drafted_nothing_leaves_nothing() -> None:
    source = source_of(speculator_of())
    request = source.begin(RequestContext([1, 2, 3]))
    request.observe(None)
    assert not source.is_worth_asking(draft_request(request), 0.0)
    request.finish()
    assert not source.slots.slots


def test_a_text_that_begins_like_one_that_ended_is_read_from_where_they_part() -> None:
    speculator = speculator_of()
    source = source_of(speculator)
    first = begun(source, [1, 2, 3, 4, 5, 0])
    source.propose([draft_request(first)])
    first.finish()
    other = begun(source, [1, 2, 3, 4, 0, 0, 1])
    source.propose([draft_request(other)])
    assert speculator.num_caught_up == [[5], [3]]
    reused = source.begin(RequestContext([1, 2, 3, 4, 0, 0, 5, 2]))  # the target has rows of its first tokens, too
    other.finish()
    add_states(reused, 5)
    source.propose([draft_request(reused)])
    assert speculator.num_caught_up[2:] == [[2]]


def test_texts_side_by_side_share_passes() -> None:
    speculator = speculator_of(sharpness=9.0)
    source = source_of(speculator)
    texts = [[1, 2, 3, 0, 5], [3, 4, 5, 5], [2] * 150]
    requests = [begun(source, text) for text in texts]
    trees = source.propose([draft_request(request) for request in requests])
    assert speculator.num_caught_up == [[4, 3, 128], [21]]
    assert [likeliest(tree, 2) for tree in trees] == [greedy(speculator._target, text, 2) for text in texts]
    assert all(len(each) > 1 for each in speculator.num_stepped[:1])


def test_no_row_of_a_tree_is_lost_while_the_cache_grows() -> None:
    speculator = speculator_of(sharpness=9.0, max_context=1024)
    source = source_of(speculator)
    capacity = source.slots.cache.capacity
    source.propose([draft_request(begun(source, [2] * (capacity - 3)))])  # what it reads is checked
    assert len(speculator.num_stepped) > 1


def test_a_long_text_beside_one_near_the_contexts_end_is_read_in_shorter_chunks() -> None:
    speculator = speculator_of(sharpness=9.0)
    source = source_of(speculator)
    late = begun(source, [2] * 190)
    source.propose([draft_request(late)])
    late.token_ids.append(2)  # type: ignore[attr-defined]
    add_states(late, 189)
    trees = source.propose([draft_request(late), draft_request(begun(source, [3] * 150))])
    assert all(tree is not None for tree in trees)
    assert speculator.num_caught_up[2:] == [[1, 67], [82]]


@pytest.mark.parametrize("block", [None, BLOCK], ids=["nodes", "blocks"])
@pytest.mark.parametrize("order", [3, 2], ids=["knowing", "ignorant"])
@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_speculators_change_no_token_in_ragged_batches_and_free_their_slots(
    order: int, temperature: float, block: BlockPart | None
) -> None:
    manifest = replace(MANIFEST, max_context=90)
    speculator = speculator_of(order, max_context=120, block=block)
    source = source_of(speculator)
    decoder = Decoder(TellingTarget(manifest), drafter_of(source), EngineConfig(max_batch=4, prefill_chunk=7))
    num_accepted = check_ragged_batches(decoder, manifest, temperature)
    if order == 3 and not temperature:
        assert num_accepted > 60
    assert bool(speculator.num_stepped) == (block is None)
    assert max(speculator.num_drafted) == (1 if block is None else block.max_drafts)
    assert all(slot.is_free for slot in source.slots.slots)
    assert 0 < len(source.slots.slots) <= 4


def test_a_speculator_of_no_use_falls_silent() -> None:
    speculator = speculator_of(order=2)
    source = source_of(speculator)
    source.gain.seconds = 1.0
    request = begun(source, [1, 2, 3, 4])
    for _ in range(300):
        source.learn_gain(request, 0, 5e-3)
    assert not source.is_worth_asking(draft_request(request, 100, token_s=1e-2), 0.0)
    assert source.is_worth_asking(draft_request(request, 100), 0.0)  # nothing was measured


def test_a_long_prompt_is_not_read_for_a_short_answer() -> None:
    source = source_of(speculator_of())
    source.times._seconds, source.gain.seconds = [1e-3, 1e-3, 1e-3, 1e-3, 2e-3, 8e-3], 2e-3
    request = begun(source, [1, 2] * 90)  # 22 ms to read; a step gains 1 ms on average
    assert not source.is_worth_asking(draft_request(request, 10, token_s=1e-2), 0.0)
    assert source.is_worth_asking(draft_request(request, 200, token_s=1e-2), 0.0)


def test_a_speculator_that_fails_is_named_once_and_rests() -> None:
    speculator = speculator_of()
    source = source_of(speculator)
    request = begun(source, [1, 2, 3])
    speculator.is_broken = True
    with pytest.warns(UserWarning, match=r"speculator is not called again: .*failed in a pass"):
        assert source.propose([draft_request(request)]) == [None]
    assert source.propose([draft_request(request)]) == [None]
    assert not source.is_worth_asking(draft_request(request), 0.0)
    assert source.state() == {}
    source.restore({"text/0": np.array([9], np.int32)})  # nor does it take up a session's texts
    assert source.propose([draft_request(request)]) == [None]


def test_texts_and_their_rows_are_taken_up_again() -> None:
    speculator = speculator_of()
    source = source_of(speculator)
    requests = [begun(source, text) for text in ([1, 2, 3, 4, 5], [5, 4, 3])]
    source.propose([draft_request(request) for request in requests])
    other = speculator_of()
    taken = source_of(other)
    taken.restore(source.state())
    taken.propose([draft_request(begun(taken, [1, 2, 3, 4, 5, 0, 1]))])
    assert other.num_caught_up == [[2]]
    taken.restore({})
    taken.propose([draft_request(begun(taken, [1, 2, 3, 4, 5, 0, 1]))])
    assert other.num_caught_up[1:] == [[6]]
    taken.slots.forget()
    taken.restore(taken.state())
    taken.propose([draft_request(begun(taken, [1, 2, 3, 4, 5, 0, 1]))])
    assert other.num_caught_up[2:] == [[6]]


def test_texts_whose_rows_are_no_numbers_are_not_saved() -> None:
    source = source_of(speculator_of())
    source.propose([draft_request(begun(source, text)) for text in ([1, 2, 3, 4, 5], [5, 4, 3])])
    source.slots.cache.slab[0, 0, 0, 1] = np.nan  # type: ignore[attr-defined]
    other = speculator_of()
    taken = source_of(other)
    taken.restore(source.state())
    taken.propose([draft_request(begun(taken, [1, 2, 3, 4, 5, 0])), draft_request(begun(taken, [5, 4, 3, 0, 1]))])
    assert other.num_caught_up == [[5, 2]]


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
    source.propose([draft_request(begun(source, [1, 2, 3, 4]))])
    state = {**source.state(), **spoilt}
    with pytest.raises(DraftError, match="start over"):
        source.restore(state)
    assert source.slots.slots[0].token_ids == [1, 2, 3, 4]


def test_it_can_pay_where_a_quarter_of_a_token_makes_up_for_asking() -> None:
    source = source_of(speculator_of())
    source.gain.seconds = 1e-3
    assert source.pays_off(8.01e-3)
    assert not source.pays_off(7.99e-3)
