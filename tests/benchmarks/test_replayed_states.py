"""Replays that tell hidden states: sources hear each recorded position once, with its own state, and guess from it."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from benchmarks.fusion.replayed_states import passes_saved, replayed
from reader_edge.bench.answer_recorder import record_answers
from reader_edge.bench.decode.fixed_budget import budget_config
from reader_edge.bench.decode.source_sets import SourceStock
from reader_edge.bench.recording import RecordedRequest, read_recording
from reader_edge.bench.replay.heard_answer import hidden_states
from reader_edge.eval_prompt import EvalPrompt
from reader_edge_runtime import Engine, GenerationConfig, GenerationStats
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import DraftRequest
from reader_edge_runtime.target import Pass, Target
from tests.runtime.drafting.echo_source import EchoSource

NUM_NODES = 4


class KnowingSource(EchoSource):
    """Proposes the token that the state of the last scored one tells."""

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | None]:
        observed = self.requests[-1].observed
        states = observed[-1].hidden_states if observed else None
        if states is None:
            return [None]
        tree = DraftTree.root(draft_requests[0].request.token_ids[-1])
        tree.add(int(states[-1, 0]), 0, self.name, 0.9)
        return [tree]


class CountingTarget:
    """Says of each token its position as hidden state. Stands for target and cache."""

    def __init__(self) -> None:
        self.length = 0

    def new_cache(self, num_slots: int, capacity: int) -> "CountingTarget":
        return self

    def forward(self, cache: object, scored: Pass) -> SimpleNamespace:
        states = self.length + np.array(scored.rows[0], np.float32)
        return SimpleNamespace(hidden_states=states[None, :, None])

    def commit(self, slot: int, nodes: Sequence[int]) -> None:
        self.length += len(nodes)


@pytest.fixture
def recorded(engine: Engine, held_out_texts: list[str], tmp_path: Path) -> RecordedRequest:
    path = tmp_path / "answers.jsonl"
    lines = record_answers(engine, [EvalPrompt(held_out_texts[0][:300])], GenerationConfig(max_tokens=40))
    path.write_text("\n".join(lines), encoding="utf-8")
    [request] = read_recording(path, engine.tokenizer)
    return request


def decoded(source: EchoSource, recorded: RecordedRequest, states: Float32Array) -> GenerationStats:
    drafter = SourceStock((), None, None, [source]).drafter(("context", source.name), budget_config(NUM_NODES))
    return replayed(drafter, recorded, states, NUM_NODES)


def positions_of(recorded: RecordedRequest) -> list[int]:
    successors = recorded.turns[0].successors
    assert successors is not None
    return [int(position) for position in successors.positions]


def observed_positions(observed: Sequence[ScoredTree]) -> list[int]:
    return [scored.root + node for scored in observed for node in range(len(scored.tree))]


def test_a_source_hears_of_each_position_once_and_of_its_own_state(recorded: RecordedRequest) -> None:
    positions, source = positions_of(recorded), EchoSource()
    decoded(source, recorded, np.array(positions, np.float32)[:, None])
    observed = source.requests[0].observed
    scored = positions[: len(observed_positions(observed))]  # the last step's wait for a draft that never comes
    assert positions[-1] - scored[-1] < NUM_NODES + 1
    assert observed_positions(observed) == scored
    states = [tree.hidden_states for tree in observed if tree.hidden_states is not None]
    assert np.concatenate(states)[:, 0].tolist() == scored


def test_what_states_tell_saves_passes(recorded: RecordedRequest) -> None:
    turn = recorded.turns[0]
    text = [*turn.prompt, *turn.output]
    pending = [text[min(position + 2, len(text) - 1)] for position in positions_of(recorded)]
    told = decoded(KnowingSource(), recorded, np.array(pending, np.float32)[:, None])
    untold = decoded(EchoSource(), recorded, np.array(pending, np.float32)[:, None])
    assert told.num_decoded_tokens == untold.num_decoded_tokens == len(turn.output) - 1
    assert told.accepted_by_source["echo"] > 0
    assert told.num_steps < untold.num_steps


def test_states_are_those_of_the_recorded_positions(recorded: RecordedRequest) -> None:
    target = CountingTarget()
    states = hidden_states(cast(Target, target), recorded.turns[0])
    assert states[:, 0].tolist() == positions_of(recorded)
    assert target.length > positions_of(recorded)[-1]


def test_passes_saved_are_told_with_the_jackknifes_error() -> None:
    before, after = ([GenerationStats(num_steps=steps) for steps in each] for each in ((10, 10, 10, 10), (8, 9, 9, 10)))
    assert passes_saved(before, after) == "10.0 ± 4.1"
    assert passes_saved(before, before) == "0.0 ± 0.0"
