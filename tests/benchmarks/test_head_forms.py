"""What the comparison of heads' forms rests on: none sees what it guesses, and the step that is timed says the same."""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.head_forms.acceptance import measure_form
from benchmarks.head_forms.chain import ChainForm
from benchmarks.head_forms.form import Form, best
from benchmarks.head_forms.guess_trees import guesses_of, up_to
from benchmarks.head_forms.parallel import ParallelForm
from benchmarks.head_forms.places import Places, places_of
from benchmarks.head_forms.sequential import SequentialForm
from benchmarks.head_forms.training import form_loss, train_form
from reader_edge_export.heads.head_module import HeadModule
from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_runtime.drafting.proposals import check_proposal
from reader_edge_runtime.drafting.sources.head_file import NUM_GUESSES
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes

FORMS = (SequentialForm, ParallelForm, ChainForm)
VOCAB_SIZE, LENGTH, WIDTH = 30, 12, 16
IDS = np.arange(3, 27, dtype=np.int32)


def answer(seed: int = 0) -> RecordedAnswer:
    """Tokens that count on by three, hidden states that tell the token, and best ids that tell the next."""
    tokens = (3 * np.arange(LENGTH + 1) + seed) % (len(IDS) - 1) + IDS[0]
    states = np.random.default_rng(0).normal(size=(VOCAB_SIZE, WIDTH))[tokens[:-1]]
    logits = np.tile(np.array([9.0, 1.0], np.float32), (LENGTH, 1))
    top_ids = np.stack([tokens[1:], np.full(LENGTH, VOCAB_SIZE - 1)], 1).astype(np.int32)
    prompt_ids, token_ids = np.zeros(0, np.int32), tokens.astype(np.int32)
    return RecordedAnswer(prompt_ids, token_ids, states.astype(np.float16), top_ids, logits)


def form_of(kind: type[Form]) -> Form:
    torch.manual_seed(0)
    sizes = HeadSizes(WIDTH, len(IDS), embedded=8, inner=32, rank=16)
    return kind(HeadModule(sizes, torch.zeros(WIDTH), torch.ones(WIDTH)))


def places(seed: int = 0) -> Places:
    return Places.side_by_side(places_of([answer(seed)], IDS, VOCAB_SIZE))


@pytest.mark.parametrize("kind", FORMS)
@torch.no_grad()
def test_a_guess_hangs_on_no_later_place_and_no_later_token(kind: type[Form]) -> None:
    form, known = form_of(kind), places()
    said = form.logits(known)
    later = replace(known, states=known.states.clone(), pending=known.pending.clone())
    later.states[:, 6:] += 1
    later.pending[:, 6:] = 0
    torch.testing.assert_close(form.logits(later)[:, :6], said[:, :6])
    assert not torch.allclose(form.logits(later)[:, 6:], said[:, 6:])
    for depth in range(form.depth):
        following = known.following.clone()
        following[..., depth:] = 0
        torch.testing.assert_close(
            form.logits(replace(known, following=following))[:, :, : depth + 1], said[:, :, : depth + 1]
        )


@pytest.mark.parametrize("kind", FORMS)
@torch.no_grad()
def test_the_step_that_is_timed_says_what_was_trained(kind: type[Form]) -> None:
    form, known = form_of(kind), places()
    past = known.states[:, :-2].float(), known.pending[:, :-2]
    said = form(known.states[:, -2:].float(), known.pending[:, -2:], *form.remember(*past))
    assert len(said) == 2 * form.depth
    branch = NUM_GUESSES - 1
    following = known.following.clone()
    for depth in range(form.depth):
        probabilities, numbers = best(form.logits(replace(known, following=following))[0, -1, depth])
        row = branch if len(said[2 * depth]) == NUM_GUESSES else 0
        torch.testing.assert_close(said[2 * depth][row], probabilities)
        assert said[2 * depth + 1][row].tolist() == numbers.tolist()
        following[0, -1, depth] = numbers[branch if depth == 0 else 0]


@pytest.mark.parametrize("kind", FORMS)
def test_training_brings_a_form_nearer_to_what_follows(kind: type[Form], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "process_time", itertools.count().__next__)  # a second a step
    form = form_of(kind)
    texts = places_of([answer(seed) for seed in range(12)], IDS, VOCAB_SIZE)
    everything = Places.side_by_side(texts)
    before = form_loss(form, everything).item()
    assert train_form(form, texts, 12).steps == 11
    assert form_loss(form, everything).item() < before
    found = measure_form(form, texts)
    assert found.runs[0] == found.top1[0] <= found.top4[0] <= 1
    assert found.runs[0] <= found.counted(form.depth) <= form.depth


def test_guesses_at_a_place_are_a_tree_that_can_be_cut() -> None:
    form = form_of(ChainForm)
    found = guesses_of(form, IDS, answer(), VOCAB_SIZE)
    assert len(found) == LENGTH - 1
    for place, tree in enumerate(found):
        check_proposal(tree, int(answer().token_ids[1 + place]), "a form")
        assert set(tree.token_ids[1:]) <= set(IDS.tolist())
    first = up_to(found[0], 1)
    assert set(first.parents) == {-1, 0} < set(found[0].parents)
    assert up_to(found[0], form.depth) == found[0]
