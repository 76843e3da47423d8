"""Recurrent layers on the CPU: bits of logits and states depend neither on the pass nor on how a text was reached."""

from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.execution.onnxruntime.device.device_target import DeviceTarget
from reader_edge_runtime.execution.onnxruntime.host import hybrid_cache, state_checkpoints
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.host.state_slab import StateDeltaMemory, state_groups
from reader_edge_runtime.execution.onnxruntime.native import native_library
from reader_edge_runtime.measuring.pass_cost import measure_pass_cost
from reader_edge_runtime.measuring.width_probe import probe_width
from reader_edge_runtime.package.manifest import COMMIT_NAME, GRAPH_NAME
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from tests.hybrid_states import check_random_trees, fresh, kept, score, single_logits
from tests.random_operations import check_random_operations
from tests.runtime.execution.onnxruntime.tiny_hybrid import build_tiny_hybrid

VOCAB_SIZE = 8


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> ModelPackage:
    return build_tiny_hybrid(tmp_path_factory.mktemp("tiny") / "hybrid", VOCAB_SIZE)


@pytest.fixture(scope="module", params=["definitions", "kernels"])
def target(request: pytest.FixtureRequest, package: ModelPackage) -> HostTarget:
    is_native = request.param == "kernels"
    if is_native and native_library() is None:
        pytest.skip("no native kernels")
    return HostTarget.open(package, threads=1, uses_native=is_native)


def test_prefill_in_pieces_of_any_size_gives_equal_states(target: HostTarget) -> None:
    token_ids = np.random.default_rng(1).integers(VOCAB_SIZE, size=512).tolist()
    expected = fresh(target, token_ids, 512)
    for num_a_pass in (1, 13, 64):
        assert fresh(target, token_ids, num_a_pass) == expected


@pytest.mark.parametrize("num_kept", [0, 1])
def test_trees_have_the_bits_of_single_tokens_and_commits_those_of_a_prefill(target: HostTarget, num_kept: int) -> None:
    check_random_trees(target, num_kept, num_steps=25)


def test_random_operations_on_slots_leave_what_a_fresh_prefill_leaves(target: HostTarget) -> None:
    assert check_random_operations(target, seed=3, num_operations=60) > 50


def test_a_step_that_accepted_drafts_then_one_without_drafts(target: HostTarget) -> None:
    cache = target.new_cache(1, 16)
    score(target, cache, 0, [1, 2, 3], 3)
    tree = DraftTree([4, 5, 6, 7], [-1, 0, 0, 2], [""] * 4)
    target.forward(cache, Pass(0, [tree], [range(4)], num_kept=1))
    cache.commit(0, [0, 2, 3])
    logits = single_logits(target, cache, 0, [5])
    other = target.new_cache(1, 16)
    assert logits == single_logits(target, other, 0, [1, 2, 3, 4, 6, 7, 5])[-1:]
    assert kept(target, cache, 0) == kept(target, other, 0)


def test_drafts_that_are_all_rejected_leave_no_trace(target: HostTarget) -> None:
    cache = target.new_cache(1, 16)
    score(target, cache, 0, [1, 2, 3], 3)
    for token_id in (4, 5, 6):
        tree = DraftTree([token_id, 0, 0, 7], [-1, 0, 1, 0], [""] * 4)
        target.forward(cache, Pass(0, [tree], [range(4)], num_kept=1))
        cache.commit(0, [0])
    assert kept(target, cache, 0) == fresh(target, [1, 2, 3, 4, 5, 6])


def test_a_pass_that_keeps_nothing_changes_nothing(target: HostTarget) -> None:
    cache = target.new_cache(1, 16)
    score(target, cache, 0, [1, 2, 3], 3)
    before = kept(target, cache, 0)
    target.forward(cache, Pass(0, [DraftTree.chain([4, 5, 6])], [range(3)]))
    assert kept(target, cache, 0) == before


def test_more_accepted_tokens_than_there_was_room_for(target: HostTarget) -> None:
    cache = target.new_cache(2, 16)
    score(target, cache, 1, [1, 2, 3], 3)
    waiting = DraftTree.chain([1, 2, 3])
    target.forward(cache, Pass(0, [waiting, waiting], [[0], [0]]))
    cache.commit(0, range(3))
    cache.commit(1, [0])
    long = DraftTree.chain(list(range(8)) * 4)
    target.forward(cache, Pass(1, [long], [[0]], num_kept=1))
    cache.commit(1, range(32))
    assert kept(target, cache, 0) == fresh(target, [1, 2, 3])
    assert kept(target, cache, 1) == fresh(target, [1, 2, 3, 1, *long.token_ids])


def test_what_a_slot_holds_goes_on_in_another_slot_of_another_cache(target: HostTarget) -> None:
    cache, other = target.new_cache(2, 16), target.new_cache(3, 64)
    score(target, cache, 1, [1, 2, 3], 2)
    target.forward(cache, Pass(1, [DraftTree.chain([4, 5])], [[0]], num_kept=1))
    cache.commit(1, [0, 1])
    score(target, other, 2, [7, 7], 2)
    other.write_slot(2, cache.read_slot(1, 5))
    cache.reserve(4, 64)
    cache.swap(1, 3)
    expected = fresh(target, [1, 2, 3, 4, 5, 6])
    for each, slot in ((cache, 3), (other, 2)):
        score(target, each, slot, [6], 1)
        assert kept(target, each, slot) == expected


def test_a_text_is_cut_to_a_place_and_goes_on_otherwise(target: HostTarget) -> None:
    cache = target.new_cache(2, 16)
    score(target, cache, 0, [1, 2, 3], 3)
    tree = DraftTree.chain([4, 5, 6])
    target.forward(cache, Pass(0, [tree], [[0]], num_kept=1))
    cache.commit(0, range(3))
    assert cache.checkpoint(0)  # stands for 4 tokens, two more wait
    assert not cache.checkpoint(0)
    score(target, cache, 0, [7, 0, 1], 3)
    assert [cache.usable(0, length) for length in (0, 3, 4, 5, 6, 8, 9, 20)] == [0, 0, 4, 5, 6, 6, 9, 9]
    assert cache.copy(0, 1, 5) == 5
    assert cache.cut(0, 8) == 6
    score(target, cache, 0, [0], 1)
    score(target, cache, 1, [2], 1)
    assert cache.usable(1, 6) == 6
    assert kept(target, cache, 0) == fresh(target, [1, 2, 3, 4, 5, 6, 0])
    assert kept(target, cache, 1) == fresh(target, [1, 2, 3, 4, 5, 2])
    assert cache.cut(0, 5) == 5
    score(target, cache, 0, [3, 3], 1)
    assert cache.cut(0, 6) == 5  # the place knows nothing of the token that was cut away
    assert cache.cut(0, 3) == 0
    score(target, cache, 0, [2, 2], 1)
    assert kept(target, cache, 0) == fresh(target, [2, 2])


def test_a_state_ahead_of_its_text_is_never_used(target: HostTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = target.new_cache(1, 16)
    score(target, cache, 0, [1, 2, 3], 3)
    cache.checkpoint(0)
    score(target, cache, 0, [4], 1)
    kept_pass = Pass(0, [DraftTree.root(5)], [[0]], num_kept=1)
    target.forward(cache, kept_pass)
    with pytest.raises(RuntimeError, match="ahead of its text"):
        target.forward(cache, kept_pass)
    assert cache.usable(0, 4) == 3
    assert cache.cut(0, 4) == 3
    monkeypatch.setattr(target, "_forget_embeddings", None)  # whatever fails when the graph has run
    with pytest.raises(TypeError):
        target.forward(cache, kept_pass)
    monkeypatch.undo()
    assert cache.cut(0, 3) == 3
    with pytest.raises(ProviderError):
        target.forward(cache, Pass(0, [DraftTree.root(VOCAB_SIZE)], [[0]], num_kept=1))
    assert cache.cut(0, 3) == 3
    score(target, cache, 0, [6], 1)
    assert kept(target, cache, 0) == fresh(target, [1, 2, 3, 6])


def test_nodes_of_no_pass_cannot_be_committed(target: HostTarget) -> None:
    cache = target.new_cache(1, 16)
    with pytest.raises(RuntimeError, match="no pass"):
        cache.commit(0, [0])
    score(target, cache, 0, [1], 1)
    with pytest.raises(RuntimeError, match="no pass"):
        cache.commit(0, [0])


def test_measurements_know_recurrent_layers(target: HostTarget) -> None:
    report = probe_width(target)
    assert report.num_rows > 0
    assert report.is_invariant
    assert probe_width(target.with_min_rows(2)).is_invariant
    cost = measure_pass_cost(target, 2, max_seconds=0.0)
    assert np.isfinite(cost.seconds).all()


def test_memory_of_states_and_places_is_counted(package: ModelPackage, target: HostTarget) -> None:
    cache = target.new_cache(2, 16)
    state_bytes = package.manifest.state_bytes
    before = cache.num_bytes
    assert before >= 2 * (16 * package.manifest.kv_row_bytes + state_bytes)
    assert cache.num_bytes_of([4, 4], 16) == before
    score(target, cache, 0, [1, 2, 3, 4], 2)
    cache.checkpoint(0)
    assert cache.num_bytes == before + state_bytes
    cache.copy(0, 1, 4)
    score(target, cache, 0, [5], 1)
    cache.copy(0, 1, 4)  # which shares the place
    assert cache.num_bytes == before + state_bytes
    assert cache.limit_checkpoints(state_bytes - 1) == 0
    assert not cache.checkpoint(0)
    assert cache.num_bytes == before
    cache.resize(1, 16)
    assert cache.num_bytes_of([4], 16) == cache.num_bytes == before // 2


def test_where_memory_is_short_a_place_less_is_kept(target: HostTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = target.new_cache(1, 32)
    score(target, cache, 0, [1, 2, 3], 3)
    before = kept(target, cache, 0)
    with monkeypatch.context() as patch:
        patch.setattr(hybrid_cache, "StateSlab", Mock(side_effect=MemoryError))
        with pytest.raises(ConfigError, match=r"States of 5 texts need 0\.0 GB: lower max_batch"):
            cache.resize(5, 32)
    with monkeypatch.context() as patch:
        patch.setattr(state_checkpoints, "_copies", Mock(side_effect=MemoryError))
        assert not cache.checkpoint(0)
    deltas = StateDeltaMemory(state_groups(target.manifest))
    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", Mock(side_effect=MemoryError))
        with pytest.raises(ConfigError, match="lower prefill_chunk, or free some memory"):
            deltas.of_pass(1, 300)
    assert (cache.num_slots, kept(target, cache, 0)) == (1, before)
    assert cache.checkpoint(0)
    cache.assume(0, 0)
    assert cache.usable(0, 3) == 0


def test_places_that_are_too_many_go_where_others_are_near(target: HostTarget) -> None:
    cache = target.new_cache(1, 16)
    for token_id in range(40):
        score(target, cache, 0, [token_id % VOCAB_SIZE], 1)
        assert cache.checkpoint(0)
    places = sorted({cache.usable(0, length) for length in range(1, 41)} - {0})
    assert len(places) == 8
    assert places[-3:] == [38, 39, 40]
    assert places[0] <= 16


def test_a_device_refuses_recurrent_layers_in_one_sentence(package: ModelPackage) -> None:
    files = {**package.manifest.files, COMMIT_NAME: package.manifest.files[GRAPH_NAME]}
    for_devices = ModelPackage(package.folder, replace(package.manifest, files=files))
    with pytest.raises(ProviderError, match=r"recurrent layers.*use --provider cpu"):
        DeviceTarget.open_on(for_devices, "cpu")
