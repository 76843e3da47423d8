"""Answers replayed from nothing but what ships with a package, and what shipped priors learned from such replays."""

import runpy

import numpy as np

from reader_edge.bench.recording import RecordedRequest, RecordedTurn, Successors
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.parameters import cold_parameters, shipped_parameters
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from tests.conftest import ROOT
from tests.runtime.drafting.sources.test_successor_store import VOCAB_SIZE, random_table

SCRIPT = runpy.run_path(str(ROOT / "scripts" / "learn_priors"))
FreshDrafting, by_task, in_turn = (SCRIPT[name] for name in ("FreshDrafting", "by_task", "in_turn"))


def copying(task: str, seed: int) -> RecordedRequest:
    """An answer that repeats its prompt, while the target's likely successors, by its scores, are other tokens."""
    text = np.random.default_rng(seed).permutation(VOCAB_SIZE)[: VOCAB_SIZE // 2].tolist()
    prompt, output = [*text, text[0]], text[1:]
    positions = np.arange(len(prompt) + len(output) - 1)
    text_ids = np.array([*prompt, *output])
    top_ids = np.stack([text_ids[1:], (text_ids[1:] + 1) % VOCAB_SIZE], axis=1)
    top_logits = np.tile(np.array([2.0, 1.0], np.float32), (len(positions), 1))
    return RecordedRequest(task, [RecordedTurn(prompt, output, Successors(positions, top_ids, top_logits))])


def test_requests_are_grouped_by_task_and_taken_in_turn() -> None:
    requests = [copying(task, seed) for seed, task in enumerate(["a", "a", "b", "a"])]
    tasks = by_task(requests)
    assert {task: len(each) for task, each in tasks.items()} == {"a": 3, "b": 1}
    assert [each.task for each in in_turn(tasks.values())] == ["a", "b", "a", "a"]


def test_every_replay_begins_again_and_leaves_the_parameters_that_it_began_with() -> None:
    drafting, parameters = FreshDrafting(None, ()), cold_parameters()
    request, before = copying("a", 1), parameters.copy()
    first = drafting.stats(request, parameters, 8)
    assert drafting.stats(request, parameters, 8).num_steps == first.num_steps
    assert (parameters == before).all()
    assert first.num_decoded_tokens == len(request.turns[0].output) - 1  # the pass over the prompt gives the first


def test_a_packages_own_answers_are_drafted_from() -> None:
    request = copying("a", 1)
    turn = request.turns[0]
    sent = RecordedRequest("a", [RecordedTurn(turn.prompt[-1:], turn.output)])  # without the text that it copies
    own = np.array([*turn.prompt[-1:], *turn.output], np.int32)
    unknown = FreshDrafting(None, ()).stats(sent, cold_parameters(), 8)
    known = FreshDrafting(None, [own, own]).stats(sent, cold_parameters(), 8)
    assert known.acceptance_length > 2 * unknown.acceptance_length


def test_taught_parameters_value_what_came_more_than_before() -> None:
    table = random_table()
    drafting = FreshDrafting(table, ())
    cold = cold_parameters()
    taught = drafting.taught([copying("a", seed) for seed in range(8)], cold)
    assert promised(table, taught) > promised(table, cold)


def test_a_sure_copy_is_worth_more_by_shipped_priors_than_by_those_set_by_hand() -> None:
    # Values too low make trees too small, so that all sources together were slower than the context alone.
    table = random_table()
    assert promised(table, shipped_parameters()) > promised(table, cold_parameters())


def promised(table: SuccessorTable, parameters: Float32Array) -> float:
    """Tokens that a draft of 8 nodes promises in the middle of a copy which the table knows nothing of."""
    core = DraftingCore(DraftConfig(max_nodes=9), parameters, table=table)
    text = copying("a", 99).turns[0]
    request = core.begin([*text.prompt, *text.output[:8]])
    return sum(request.draft(9, 16).values)
