"""Answers of steps with second passes are those of plain decoding, greedy and sampled, wherever the text goes on."""

import time
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from reader_edge.verify.drafters import RandomWidths, StressDrafter
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.scorer import ScoredTrees
from reader_edge_runtime.decoding.verification import Verification
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import Drafter, NoDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import InFlightPass, Pass, Target
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import RandomDrafter, RandomRequest, decode, reference
from tests.stages_here import pipeline_here

Split = Callable[[int], Path]
MANIFEST = make_manifest(6)
PROMPT = [1, 2, 3, 4]
CONFIGS = [
    GenerationConfig(max_tokens=60, sampling=SamplingConfig(temperature=0.8 * (n % 2), seed=n), wants_logprobs=n > 1)
    for n in range(4)
]
NOISE = 0.2


class FakePipeline(FakeTarget):
    """Scores a second pass when it is wanted. used, dropped: how many."""

    used = dropped = 0
    fails = False

    def forward_two(self, cache: Cache, first: Pass, second: Pass) -> tuple[ForwardResult, "FakeBehind"]:
        return self.forward(cache, first), FakeBehind(self, cache, second)


class FakeBehind:
    def __init__(self, target: FakePipeline, cache: Cache, second: Pass) -> None:
        self._target, self._cache, self._second = target, cache, second

    def result(self) -> ForwardResult:
        if self._target.fails:
            raise ProviderError("Stage 1 failed: no memory.")
        self._target.used += 1
        return self._target.forward(self._cache, self._second)

    def drop(self) -> None:
        self._target.dropped += 1


class NoisyPipeline(FakePipeline):
    """Logits of wide passes differ from those of single-token passes, as on a GPU."""

    def logits_of(self, cache: Cache, wanted: Pass) -> Float32Array:
        exact = super().logits_of(cache, wanted)
        size = len(wanted.trees[0])
        noise = np.random.default_rng(size).uniform(-NOISE, NOISE, exact.shape) if size > 1 else 0.0
        return (exact + noise).astype(np.float32)


def splitting(target: FakeTarget, seed: int = 0, margin: float = 0.0) -> Decoder:
    """A decoder whose every drafted step has two passes."""
    drafter = RandomDrafter(6, 16, seed)
    return Decoder(target, drafter, EngineConfig(max_batch=1, prefill_chunk=7), RandomWidths(seed, splits=True), margin)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("config", CONFIGS, ids=["greedy", "sampled", "greedy, logits", "sampled, logits"])
def test_tokens_are_those_of_plain_decoding(config: GenerationConfig, seed: int) -> None:
    target = FakePipeline(MANIFEST)
    decoder = splitting(target, seed)
    assert decode(decoder, [PROMPT], [config]) == [reference(MANIFEST, PROMPT, config)]
    assert target.used > 3
    assert target.dropped > 3


def test_each_token_is_chosen_from_its_own_logits() -> None:
    target, rows = FakePipeline(MANIFEST), list[Float32Array]()
    decoder = splitting(target)
    decoder.on_logits = lambda request, row: rows.append(row.copy())
    [answer] = decode(decoder, [PROMPT], CONFIGS[:1])
    texts = [[*PROMPT, *answer[:n]] for n in range(len(answer))]
    assert [row.tobytes() for row in rows] == [target.logits_after(text).tobytes() for text in texts]
    assert target.used


def test_near_ties_are_decided_by_single_passes_in_both_passes() -> None:
    config = GenerationConfig(max_tokens=100)
    target = NoisyPipeline(MANIFEST)
    decoder = splitting(target, margin=3 * NOISE)
    request = decoder.submit(PROMPT, config)
    decoder.finish(request)
    assert request.output_token_ids == reference(MANIFEST, PROMPT, config)
    assert min(target.used, target.dropped, request.stats.num_redecided_tokens) > 3


def test_every_drafted_node_counts_and_drafters_hear_of_those_that_were_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    target, observed = FakePipeline(MANIFEST), list[ScoredTree]()

    def observe(self: RandomRequest, scored: ScoredTree | None) -> None:
        if scored is not None and self.token_ids[scored.root :] != self.token_ids[len(PROMPT) :]:
            observed.append(scored)

    monkeypatch.setattr(RandomRequest, "observe", observe)
    decoder = splitting(target)
    request = decoder.submit(PROMPT, CONFIGS[0])
    decoder.finish(request)
    stats = request.stats
    assert stats.num_accepted_tokens + stats.num_steps == stats.num_tokens - 1
    assert stats.num_drafted_tokens == sum(stats.drafted_by_source.values())
    assert stats.num_drafted_tokens + stats.num_steps == sum(n * num for n, num in stats.steps_by_width.items())
    widths = [len(each.tree) for each in observed]
    assert sum(widths) < stats.num_drafted_tokens + stats.num_steps  # dropped passes have shown nothing
    for each in observed:
        text = request.token_ids[: each.root]
        for node in range(len(each.tree)):
            logits = target.logits_after([*text, *tokens_to(each.tree, node)])
            assert each.top_ids[node, 0] == logits.argmax()


def tokens_to(tree: DraftTree, node: int) -> list[int]:
    return [*tokens_to(tree, tree.parents[node]), tree.token_ids[node]] if node >= 0 else []


def test_a_second_pass_that_fails_ends_its_request_and_no_other() -> None:
    target = FakePipeline(MANIFEST)
    decoder = splitting(target)
    target.fails = True
    request = decoder.submit(PROMPT, CONFIGS[0])
    with pytest.raises(ProviderError, match="no memory"):
        decoder.finish(request)
    target.fails = False
    assert decode(decoder, [PROMPT], CONFIGS[:1]) == [reference(MANIFEST, PROMPT, CONFIGS[0])]


def answers(target: Target, drafter: Drafter) -> list[Request]:
    """One after the other, greedy and sampled."""
    planner = RandomWidths(splits=True)
    config = EngineConfig(threads=1, max_batch=1, is_drafted=not isinstance(drafter, NoDrafter))
    decoder = make_decoder(target, drafter, config, planner=planner)
    requests = [decoder.submit([5, 6, 7, 8 + n] * 3, config) for n, config in enumerate(CONFIGS)]
    decoder.finish(*requests)
    return requests


@pytest.mark.long
@pytest.mark.parametrize(("num_stages", "lost_at"), [(2, ()), (3, ()), (2, (9, 12, 25)), (3, range(8, 90, 9))], ids=str)
def test_tokens_are_those_of_one_box_over_stages(
    num_stages: int, lost_at: Collection[int], split_demo: Split, demo_folder: Path
) -> None:
    """Also where a box is lost during one of the passes."""
    plain = answers(HostTarget.open(ModelPackage.open(demo_folder), 1), NoDrafter())
    known = [(tuple(each.token_ids[:12]), each.output_token_ids) for each in plain]
    for drafter in (RetrievalDrafter(DraftConfig()).wait(), StressDrafter(known, 1024)):
        piped = pipeline_here(split_demo(num_stages), lost_at=lost_at)
        found = answers(piped, drafter)
        assert [each.output_token_ids for each in found] == [each.output_token_ids for each in plain]
        assert sum(each.stats.num_accepted_tokens for each in found) > 20
        assert bool(piped.in_flight.epoch) == bool(lost_at)
        assert not piped.in_flight._sent_at


WHOLE = DraftTree.chain([3, 4, 5])
NO_ROWS = ForwardResult(np.zeros((1, 1, 2), np.int64), np.zeros((1, 1, 2), np.float32))


@pytest.mark.parametrize(("token_id", "entry", "waited_s"), [(4, 1, 0.25), (9, -1, 0.0)], ids=["entered", "not"])
def test_only_a_second_pass_that_is_entered_is_waited_for(
    token_id: int, entry: int, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [0.0]

    def result() -> ForwardResult:
        now_s[0] += 0.25
        return NO_ROWS

    monkeypatch.setattr(time, "perf_counter", lambda: now_s[0])
    behind = cast(InFlightPass, SimpleNamespace(result=result, drop=lambda: None))
    scored = ScoredTrees([WHOLE.of_nodes([0])], NO_ROWS, WHOLE, behind)
    now_s[0] += 1.0  # in which the first pass's tokens are chosen
    assert scored.enter(Verification([0], [token_id])) == entry
    assert scored.waited_s == waited_s
    scored.close()
