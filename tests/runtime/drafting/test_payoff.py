"""What drafts are worth: few losing ones end belief; a speculator is called where it adds, and hardly elsewhere."""

from collections.abc import Sequence

import numpy as np
import pytest

from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.payoff import AcceptanceEstimate, Repetition, SourceGain
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.source import DraftSource

WASTED, PAYING = 0.0, 10.0  # payoffs: multiples of what drafting takes
SURE = DraftTree([0, 1, 2, 3], [-1, 0, 1, 2], [""] * 4, [1.0, 0.9, 0.8, 0.7])
ACCEPTED = [0, 1, 2, 3], 1
REFUSED = [0], 9


def backoff_after(estimate: AcceptanceEstimate, longest: int, payoff_ratio: float = WASTED) -> int:
    estimate.backoff_left = 0
    estimate.weigh(payoff_ratio, longest)
    return estimate.backoff_left


def doubting() -> AcceptanceEstimate:
    """Drafts long promised nothing."""
    return AcceptanceEstimate(payoff_ratio=0.0)


def test_three_refused_drafts_leave_little_trust_and_accepted_ones_restore_it() -> None:
    estimate = AcceptanceEstimate()
    assert 0.6 < estimate.acceptance_factor < 1
    for _ in range(3):
        estimate.learn(SURE, SURE, *REFUSED)
    assert estimate.acceptance_factor < 0.2
    for _ in range(20):
        estimate.learn(SURE, SURE, *ACCEPTED)
    assert estimate.acceptance_factor > 0.8


def test_a_draft_that_was_not_verified_teaches_too() -> None:
    estimate, root = AcceptanceEstimate(), DraftTree.chain([0])
    estimate.learn(SURE, root, *REFUSED)
    doubted = estimate.acceptance_factor
    assert doubted < 0.5
    estimate.learn(SURE, root, [0], 1)
    assert estimate.acceptance_factor > doubted


def test_backoff_doubles_up_to_the_longest_and_starts_again_after_success() -> None:
    estimate = doubting()
    assert [backoff_after(estimate, longest=20) for _ in range(7)] == [1, 2, 4, 8, 16, 20, 20]
    assert estimate.is_wasted
    assert backoff_after(estimate, longest=20, payoff_ratio=PAYING) == 0
    assert not estimate.is_wasted
    assert [steps for _ in range(5) if (steps := backoff_after(estimate, longest=20))] == [1, 2, 4]


def test_where_a_draft_takes_as_long_as_a_step_even_the_first_backoff_is_worth_it() -> None:
    estimate = doubting()
    assert [backoff_after(estimate, longest=160) for _ in range(6)] == [10, 20, 40, 80, 160, 160]


def test_a_draft_that_pays_is_followed_by_another_however_few_did_before() -> None:
    estimate = doubting()
    assert [backoff_after(estimate, 20, payoff_ratio) for payoff_ratio in (WASTED, WASTED, 1.5, WASTED)] == [1, 2, 0, 4]


def test_a_text_that_repeats_itself_is_noticed_after_three_tokens_and_again_after_three_more() -> None:
    repetition, text = Repetition(), [1, 2, 3, 4, 5, 6, 1, 2, 9, 4, 5, 6, 1, 2, 9, 4]
    shown = [number for number in range(len(text)) if repetition.is_shown_by(text[: number + 1], 3)]
    assert shown == [13]  # 6, 1 and 2 come behind what they came behind before; so do 9 and 4, but they are only two
    assert not repetition.is_shown_by([*text, 7], 3)
    copied = Repetition()
    assert copied.is_shown_by([1, 2, 3, 4, 5, 1, 2, 3, 4, 5], 3)  # at once, where it was not watched before


def test_one_that_is_woken_backs_off_again_after_one_futile_draft() -> None:
    estimate = doubting()
    waits = [backoff_after(estimate, longest=20) for _ in range(4)]
    estimate.wake()
    assert estimate.backoff_left == 0
    assert backoff_after(estimate, longest=20) == 2 * waits[-1]


def test_nobody_backs_off_while_drafts_promise_more_than_they_take_on_the_whole() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(20):
        assert [backoff_after(estimate, 20, payoff_ratio) for payoff_ratio in (PAYING, WASTED, WASTED, WASTED)] == [
            0
        ] * 4
    few = [backoff_after(estimate, 20, payoff_ratio) for _ in range(20) for payoff_ratio in (PAYING, *[WASTED] * 19)]
    assert max(few) > 0


def test_a_drafter_that_is_not_known_yet_may_fail_a_few_times() -> None:
    estimate = AcceptanceEstimate()
    backoffs = [backoff_after(estimate, longest=20) for _ in range(8)]
    assert backoffs[:2] == [0, 0]
    assert backoffs[-1] > 0


def test_where_drafting_costs_nothing_nobody_backs_off() -> None:
    assert [backoff_after(doubting(), longest=0) for _ in range(10)] == [0] * 10


def test_the_next_request_neither_trusts_nor_drafts_sooner() -> None:
    estimate = AcceptanceEstimate()
    for _ in range(12):
        estimate.learn(SURE, SURE, *REFUSED)
        estimate.weigh(WASTED, longest=16)
    following = estimate.for_next()
    assert following.payoff_ratio < 1
    assert following.acceptance_factor < 0.3
    assert following.backoff_left == 16


def test_the_next_request_finds_out_soon_that_what_paid_before_does_not_pay_any_more() -> None:
    following = AcceptanceEstimate(payoff_ratio=100.0).for_next()
    assert following.has_paid
    assert not AcceptanceEstimate().has_paid
    assert any(backoff_after(following, longest=20) for _ in range(8))


TOKEN_S, CALL_S = 10e-3, 1e-3
VOCAB_SIZE = 50_000


class PlantedHead(DraftSource):
    """Knows the text to come while it is good, and else names a token that never comes."""

    name = "planted"
    is_costly = wants_gain = True

    def __init__(self, text: Sequence[int]) -> None:
        self.text, self.is_good = text, True
        self.gain = SourceGain()
        self.lengths: list[int] = []  # lengths of the text so far
        self._top_probability = 0.0

    def begin(self, context: RequestContext) -> RequestDrafter:
        return RequestDrafter(context)

    def is_worth_asking(self, draft_request: DraftRequest, top_probability: float) -> bool:
        self._top_probability = top_probability
        return self.gain.pays(top_probability, draft_request.token_s)

    def learn_gain(self, request: RequestDrafter, num_gained: int, seconds: float) -> None:
        self.gain.learn(self._top_probability, num_gained, CALL_S)

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree]:
        if not draft_requests:
            return []
        [draft_request] = draft_requests
        length = len(draft_request.request.token_ids)
        self.lengths.append(length)
        ahead = self.text[length : length + 2] if self.is_good else [VOCAB_SIZE - 1]
        tree = DraftTree.root(draft_request.request.token_ids[-1])
        for node, token_id in enumerate(ahead):
            tree.add(token_id, node, self.name, 0.9 * tree.values[node])
        return [tree]


def called_share(head: PlantedHead, drafter: RetrievalDrafter, num_tokens: int, start: int = 1) -> float:
    """Of the steps in which a drafter follows the head's text from a place on, with trees of four nodes."""
    text = list(head.text[:start])
    request, num_steps, before = drafter.begin(RequestContext(text)), 0, len(head.lengths)
    while len(text) < start + num_tokens:
        [tree] = drafter.draft([DraftRequest(request, 4, 4, TOKEN_S)])
        assert isinstance(tree, DraftTree)
        root, node, come = len(text) - 1, 0, 0
        while (node := tree.child(node, head.text[len(text) + come])) > 0:
            come += 1
        text += head.text[len(text) : len(text) + come + 1]
        rows = np.zeros((len(tree), 1), np.int64), np.zeros((len(tree), 1), np.float32)
        request.observe(ScoredTree(tree, range(len(tree)), root, *rows, VOCAB_SIZE))
        num_steps += 1
    request.finish()
    return (len(head.lengths) - before) / num_steps


def drafter_of(head: PlantedHead) -> RetrievalDrafter:
    return RetrievalDrafter(DraftConfig(is_history_used=False, is_logits_used=False), [head]).wait()


def fresh_text(num_tokens: int) -> list[int]:
    """In which nothing repeats."""
    return [int(token_id) for token_id in np.random.default_rng(0).permutation(VOCAB_SIZE - 1)[:num_tokens]]


def test_a_head_that_knows_what_comes_drafts_in_every_step() -> None:
    head = PlantedHead(fresh_text(2000))
    assert called_share(head, drafter_of(head), 1500) == 1.0
    assert head.gain.gain(0.0) > 1


def test_a_head_that_adds_nothing_falls_silent_and_is_tried_for_a_two_hundredth_of_the_time() -> None:
    head = PlantedHead(fresh_text(4000))
    head.is_good = False
    drafter = drafter_of(head)
    called_share(head, drafter, 400)
    first = len(head.lengths)
    assert first * CALL_S < 0.1 * 400 * TOKEN_S
    assert called_share(head, drafter, 3000) * CALL_S == pytest.approx(0.005 * TOKEN_S, rel=0.1)


def test_steps_in_which_nobody_knows_more_do_not_silence_it_in_others() -> None:
    gain = SourceGain()
    for number in range(600):
        gain.learn(0.05, 0, CALL_S)
        gain.learn(0.2, number % 4 == 0, CALL_S)
    assert gain.gain(0.2) == pytest.approx(0.25, abs=0.02)
    assert gain.pays(0.2, TOKEN_S)
    assert not gain.pays(0.05, TOKEN_S)


def test_what_it_saves_a_step_goes_by_how_often_the_others_are_unsure() -> None:
    gain = SourceGain([1.0, 1.0, 1.0, 0.0])
    gain.seconds = 0.25 * TOKEN_S
    for _ in range(500):
        gain.pays(0.9, TOKEN_S)
    assert gain.saved_s(TOKEN_S) < 0.001 * TOKEN_S
    for number in range(500):
        gain.pays(0.05 if number % 2 else 0.9, TOKEN_S)
    assert gain.saved_s(TOKEN_S) == pytest.approx(0.375 * TOKEN_S, rel=0.05)
    assert gain.saved_s(0.2 * TOKEN_S) == 0.0  # where it does not pay, it is not called


def test_a_head_drafts_where_the_text_is_new_and_not_where_it_repeats() -> None:
    part = fresh_text(600)
    head = PlantedHead([*part, *part * 3, 0, 0, 0])
    drafter = drafter_of(head)
    called_share(head, drafter, 1800)
    assert sum(length < 600 for length in head.lengths) > 150
    assert sum(length > 660 for length in head.lengths) < 20


def test_a_head_that_only_repeats_what_others_say_is_no_gain() -> None:
    text = fresh_text(40) * 60
    head = PlantedHead(text)
    drafter = drafter_of(head)
    called_share(head, drafter, 1000)
    assert called_share(head, drafter, 1000, start=41) < 0.05


@pytest.mark.long
def test_a_head_that_turns_good_is_found_again_and_one_that_turns_bad_is_left() -> None:
    head = PlantedHead(fresh_text(12_000))
    drafter = drafter_of(head)
    head.is_good = False
    called_share(head, drafter, 500)
    head.is_good = True
    called_share(head, drafter, 6000)
    assert called_share(head, drafter, 200) > 0.95
    head.is_good = False
    called_share(head, drafter, 1000)
    assert called_share(head, drafter, 1000) < 0.1
