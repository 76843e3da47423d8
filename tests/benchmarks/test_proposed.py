"""Proposers in a replay: trees are the likeliest paths, every way drafts from them, rules accept what they say."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

from benchmarks.fusion import clocked
from benchmarks.fusion.all_sources import AllSources, past_answers
from benchmarks.fusion.clocked import Clock, SlowerSpeculator
from benchmarks.fusion.proposer import Guesses, Path, Proposed, proposed
from benchmarks.fusion.sampled import Place, known_draw, residual, shared_noise, tree_of
from benchmarks.fusion.speculated import Ways, jackknifed, propose_all, replayed, report
from benchmarks.fusion.speculator_proposer import SpeculatorProposer
from reader_edge.bench.decode.fixed_budget import budget_config
from reader_edge.bench.decode.source_sets import SourceStock
from reader_edge.bench.recording import RecordedRequest, RecordedTurn, Successors
from reader_edge.bench.replay.heard_answer import ReplayedAnswer, layer_states
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.speculator.speculator import SpeculatorResult, TreeStep
from reader_edge_runtime.drafting.sources.speculator.speculator_source import SpeculatorSource
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.target import ForwardResult, Pass
from tests.fake_speculator import FakeSpeculator, TellingTarget
from tests.fake_target import make_manifest

PROMPT, ANSWER = [1, 2, 3], [4, 5, 6, 7, 8, 9, 10, 11]
SURE = 0.8


class Knowing:
    """Is sure of each token's successor, and names one more. asked: how many paths each call had."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def begin(self, turn: RecordedTurn) -> "Knowing":
        self._text = [*turn.prompt, *turn.output]
        return self

    def go_on(self, num_tokens: int) -> Guesses:
        self._last = self._text[num_tokens - 1]
        return self._guesses(self._last)

    def expand(self, paths: Sequence[Path]) -> list[Guesses]:
        self.asked.append(len(paths))
        return [self._guesses(path[-1]) for path in paths]

    def _guesses(self, token_id: int) -> Guesses:
        return Guesses([token_id + 1, token_id + 20], [SURE, 0.1])


def turn() -> RecordedTurn:
    text = [*PROMPT, *ANSWER]
    positions = np.arange(len(PROMPT) - 1, len(text))
    top_ids = np.full((len(positions), 1), 99)
    return RecordedTurn(PROMPT, ANSWER, Successors(positions, top_ids, np.zeros(top_ids.shape, np.float32)))


def test_a_tree_has_the_likeliest_paths_and_a_level_expands_ten_at_most() -> None:
    proposer = Knowing()
    record = proposed(proposer, turn())
    assert sorted(record) == [*range(len(PROMPT) + 1, len(PROMPT) + len(ANSWER) + 1)]
    assert max(proposer.asked) == 10
    tree = record[4].best(5)
    assert sorted(zip(tree.parents[1:], tree.token_ids[1:], strict=True)) == [(0, 5), (1, 6), (2, 7), (3, 8), (4, 9)]
    assert tree.values[1:] == pytest.approx([SURE**depth for depth in range(1, 6)])
    tree.check(4, 200, 6)
    record[4].tree.check(4, 200, 65)


def test_every_way_drafts_from_a_speculator() -> None:
    """The fake one checks that each node reads the state of the token before it."""
    manifest = replace(make_manifest(16, max_context=256), state_ids=(0,))
    target = TellingTarget(manifest, sharpness=9.0)
    speculator = FakeSpeculator(target, manifest)
    source = SpeculatorSource(speculator, manifest.state_ids, manifest.vocab_size, 1)
    speculator.is_checked = True
    requests = [
        RecordedRequest(task, [answered(target, prompt)]) for task, prompt in (("a", [1, 2, 3]), ("b", [4, 5, 6]))
    ]
    records = propose_all(SpeculatorProposer(speculator, target), requests)

    def begin(drafter: RetrievalDrafter, turn: RecordedTurn) -> ReplayedAnswer:
        return ReplayedAnswer(drafter, turn, layer_states=layer_states(target, turn))

    ways = Ways(SourceStock((), None, None, [source]), begin, records, 3)
    alone, retrieval, mixture = (replayed(requests, way, 3) for way in (ways.alone, ways.retrieval, ways.mixture))
    [turn] = requests[0].turns
    for length, proposal in records[id(turn)].items():
        node = 0
        for token_id in [*turn.prompt, *turn.output][length : length + 4]:
            node = proposal.tree.child(node, token_id)
            assert node > 0, length
    assert (alone.steps < 9).all()  # of 24 tokens
    assert (mixture.steps < retrieval.steps).all()
    every = AllSources(SourceStock((), None, None, [source]), begin, requests, 3)
    without, everything = (replayed(requests, way, 3) for way in every.begins.values())
    assert (everything.steps < without.steps).all()
    lines = report(requests, ways, [2, 3], every)
    assert lines[0] == "| tokens a pass | retrieval | alone | mixture | RASD's rule | all, without | all, with it |"
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| a", "| b", "| all"]
    assert [line.split(":")[0] for line in lines[6:]] == [
        "mixture over alone",
        "mixture over retrieval",
        "all, with it over alone",
        "all, with it over all, without",
    ]


def test_past_answers_are_those_of_other_conversations() -> None:
    first, second = RecordedTurn([1, 2, 3, 4, 5], [6, 7]), RecordedTurn([9, 8], [7])
    after = RecordedTurn([*first.prompt, *first.output, 10], [11])
    assert past_answers([first, second, after], first) == past_answers([first, second, after], after) == [[9, 8, 7]]
    assert past_answers([first, second, after], second) == [
        [2, 3, 4, 5, 6, 7],
        [5, 6, 7, 10, 11],
    ]


class Silent(DraftSource):
    """A proposer that proposes nothing."""

    name = "silent"

    def begin(self, context: RequestContext) -> None:
        """It has nothing to say."""

    def propose(self, draft_requests: Sequence[DraftRequest]) -> list[None]:
        return [None] * len(draft_requests)


def test_all_sources_know_what_others_asked_and_what_the_package_said_before() -> None:
    """Neither is drafted from in a conversation's own answer: that is what it is measured by."""
    asked = RecordedRequest("a", [turn()])
    alike = RecordedRequest("b", [replace(turn(), prompt=[60, 61, 62])])

    def steps(requests: list[RecordedRequest], own: OwnAnswers | None = None) -> float:
        every = AllSources(SourceStock((), None, own, [Silent()]), ReplayedAnswer, requests, 3)
        without, everything = (replayed(requests[:1], way, 3).steps[0] for way in every.begins.values())
        assert without == everything
        return float(without)

    fresh = steps([asked])
    assert steps([asked, asked]) == fresh
    assert steps([asked, alike]) < fresh
    assert steps([asked], OwnAnswers([np.array(ANSWER, np.int32)])) < fresh


class Passing(TellingTarget):
    """widths: of its passes; it says nothing."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.widths: list[int] = []

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        self.widths += map(len, wanted.trees)
        return cast(ForwardResult, None)


class Stepping(FakeSpeculator):
    """Counts the nodes of its passes, and says nothing."""

    def catch_up(self, cache: Cache, first_slot: int, further: Any, states: Any) -> SpeculatorResult:
        self.num_caught_up.append(list(map(len, further)))
        return cast(SpeculatorResult, None)

    def step(self, cache: Cache, first_slot: int, steps: Sequence[TreeStep]) -> SpeculatorResult:
        self.num_stepped.append([len(step.states) for step in steps])
        return cast(SpeculatorResult, None)


def test_recorded_answers_are_drafted_on_the_passes_of_a_larger_model() -> None:
    manifest = replace(make_manifest(16, max_context=256), state_ids=(0,))
    target, larger = TellingTarget(manifest, sharpness=9.0), Passing(manifest)
    saying, slower = FakeSpeculator(target, manifest), Stepping(larger, manifest)
    source = SpeculatorSource(
        SlowerSpeculator(saying, slower, past=8, waits=False), manifest.state_ids, manifest.vocab_size, 1
    )
    source.gain.seconds = 0.0  # asked whatever it takes
    clock = Clock(target, larger, source, np.full(17, 1.0), past=8, waits=False)
    requests = [RecordedRequest("a", [answered(target, [1, 2, 3])])]
    lines = clocked.report(clock, SourceStock((), None, None, [source]), requests, 1)
    assert (slower.num_stepped, slower.num_caught_up) == (saying.num_stepped, saying.num_caught_up)
    without, asked = (24 / float(each) for each in lines[-1].split(" | ")[1].split(" / "))
    assert asked < without
    assert len(larger.widths) == pytest.approx(asked + without, abs=2)


def answered(target: TellingTarget, prompt: list[int]) -> RecordedTurn:
    """Its greedy answer of 24 tokens."""
    text = list(prompt)
    for _ in range(24):
        text.append(int(target.logits_after(text).argmax()))
    positions = np.arange(len(text))
    top_ids = np.zeros((len(text), 1), np.int64)
    said = Successors(positions, top_ids, np.zeros(top_ids.shape, np.float32))
    return RecordedTurn(prompt, text[len(prompt) :], said)


def test_an_answer_alone_has_no_standard_error_and_like_ones_have_none() -> None:
    assert np.isnan(jackknifed(np.array([3.0]), np.array([2.0]))[1])
    assert jackknifed(np.array([3.0, 3.0]), np.array([2.0, 2.0])) == (1.5, 0.0)


def drawn(p: np.ndarray, q: np.ndarray, num_children: int, random: np.random.Generator) -> bool:
    """Whether a child is accepted, by the rule itself."""
    left = p.copy()
    others = q.copy()
    for _ in range(num_children):
        token = random.choice(len(q), p=others / others.sum())
        shares = others / others.sum()
        if random.random() < min(1.0, left[token] / shares[token]):
            return True
        left = np.maximum(left - np.append(shares, 0.0), 0)
        left /= left.sum()
        others[token] = 0
    return False


@pytest.mark.parametrize("num_children", [1, 2, 3])
def test_a_residual_rules_acceptance_is_what_its_draws_come_to(num_children: int) -> None:
    p, q = np.array([0.5, 0.2, 0.05, 0.05, 0.2]), np.array([0.2, 0.4, 0.3, 0.1])
    random = np.random.default_rng(0)
    share = np.mean([drawn(p, q, num_children, random) for _ in range(4000)])
    assert residual(p[:4], q, num_children) == pytest.approx(share, abs=0.03)


def test_a_proposer_that_knows_the_target_loses_nothing_to_its_draws() -> None:
    p = np.array([0.6, 0.3, 0.1])
    place = Place(p, [0, 1, 2], p)
    assert residual(p, p, 1) == pytest.approx(1)
    assert shared_noise(place, np.random.default_rng(0))[0] == 1
    assert known_draw(place)[0] > p[0]
    assert known_draw(place).sum() == pytest.approx(1)


def test_a_modelled_tree_takes_the_likeliest_nodes() -> None:
    assert tree_of(np.array([0.5, 0.6]), 3) == pytest.approx(0.5 + 0.25 + 0.125)


def test_what_was_proposed_is_cut_to_the_nodes_of_a_pass() -> None:
    record = proposed(Knowing(), turn())
    assert isinstance(record[4], Proposed)
    assert [len(record[4].best(n)) for n in (0, 1, 16)] == [1, 2, 17]


def test_passes_that_are_waited_for_are_not_made() -> None:
    manifest = replace(make_manifest(16, max_context=256), state_ids=(0,))
    target, larger = TellingTarget(manifest, sharpness=9.0), Passing(manifest)
    saying, slower = FakeSpeculator(target, manifest), Stepping(larger, manifest)
    waiting = SlowerSpeculator(saying, slower, past=8, waits=True)
    source = SpeculatorSource(waiting, manifest.state_ids, manifest.vocab_size, 1)
    source.gain.seconds = 0.0
    drafter = SourceStock((), None, None, [source]).drafter([source.name], budget_config(16))
    num_measured = len(slower.num_stepped)
    clock = Clock(target, larger, source, np.full(17, 0.002), past=8, waits=True)
    request = RecordedRequest("a", [answered(target, [1, 2, 3])])
    seconds, stats = clock.decode(drafter, request, is_asking=True)
    assert seconds >= 0.002 * stats.num_steps
    assert saying.num_stepped
    assert not larger.widths
    assert len(slower.num_stepped) == num_measured
