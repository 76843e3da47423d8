"""The target on a device, simulated on the CPU: same results, fixed tensors, padded passes, rows moved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest

from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import ConfigError, ProviderError
from reader_edge_runtime.execution.onnxruntime.device import device_target
from reader_edge_runtime.execution.onnxruntime.device.device_cache import CommitGraph, DeviceArray, DeviceCache
from reader_edge_runtime.execution.onnxruntime.device.device_target import DeviceTarget
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.session import CPU
from reader_edge_runtime.measuring.width_probe import probe_width
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.export.conftest import Exported

PROMPTS = [[5, 9, 13, 21, 34, 55, 89], [7, 11, 200]]
TREES = [DraftTree([8, 9, 10, 11, 12], [-1, 0, 0, 1, 2], [""] * 5), DraftTree([40, 41, 42], [-1, 0, 1], [""] * 3)]


PACKAGES = [
    ("llama", "fp16", "exact"),
    ("gemma2", "fp16", "exact"),
    ("gemma2", "fp16", "fast"),
    ("llama", "fp32", "fast"),
]


@pytest.fixture(params=PACKAGES, ids="-".join)
def package(request: pytest.FixtureRequest, exported: Exported) -> ModelPackage:
    """gemma2 has windowed layers and capped scores."""
    return ModelPackage.open(exported(*request.param, is_checked=False))


def test_padded_passes_compute_what_bare_ones_do(package: ModelPackage) -> None:
    on_device, on_host = DeviceTarget.open_on(package, "cpu", 1), HostTarget.open(package, 1)
    device_logits, host_logits = (_tree_logits(target) for target in (on_device, on_host))
    limit = 2e-3 if package.manifest.precision == "fp16" else 1e-5
    for b, tree in enumerate(TREES):
        np.testing.assert_allclose(device_logits[b, : len(tree)], host_logits[b, : len(tree)], atol=limit, rtol=limit)


@pytest.mark.parametrize(
    ("precision", "attention", "is_invariant"), [("fp16", "exact", True), ("fp32", "fast", False)], ids=str
)
def test_exact_attention_keeps_bits(precision: str, attention: str, is_invariant: bool, exported: Exported) -> None:
    """In fp32 sums over scattered ancestors take another order."""
    package = ModelPackage.open(exported("llama", precision, attention, is_checked=False))
    assert probe_width(DeviceTarget.open_on(package, "cpu", 1)).is_invariant == is_invariant


def test_trees_that_pad_a_batch_leave_their_slots_as_they_are(exported: Exported) -> None:
    """Three trees are padded to four, so that rows are a power of two in all; the fourth slot may hold a prompt."""
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "exact", is_checked=False)), "cpu", 1)
    for num_slots in (3, 4):
        cache = target.new_cache(num_slots, 64)
        assert isinstance(cache, DeviceCache)
        for slot in range(num_slots):
            target.forward(cache, Pass(slot, [DraftTree.chain(PROMPTS[slot % 2])], [[0]]))
            cache.commit(slot, range(len(PROMPTS[slot % 2])))
        before = [cache.read_slot(slot, length).rows[0] for slot, length in enumerate(cache.lengths)]
        wanted = Pass(0, [*TREES, TREES[0]], [[0, 1]] * 3, wants_logits=True)
        together = target.forward(cache, wanted)
        assert together.wanted_logits.shape[:2] == together.top_ids.shape[:2] == (3, 2)
        for slot, rows in enumerate(before):
            np.testing.assert_array_equal(cache.read_slot(slot, rows.shape[2]).rows[0], rows)
        for slot, tree in enumerate(wanted.trees):
            alone = target.forward(cache, Pass(slot, [tree], [[0, 1]], wants_logits=True))
            np.testing.assert_array_equal(alone.wanted_logits[0], together.wanted_logits[slot])


@pytest.mark.long
def test_long_prompts_are_scored_in_smaller_chunks_where_scores_are_doubles(exported: Exported) -> None:
    exact, fast = (
        DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", attention, is_checked=False)), "cpu", 1)
        for attention in ("exact", "fast")
    )
    for target in (exact, fast):
        target.manifest = replace(target.manifest, num_heads=32)
    assert [exact.prefill_chunk(past) for past in (0, 1000, 4000, 100_000)] == [256, 256, 128, 64]
    assert {fast.prefill_chunk(past) for past in (0, 100_000)} == {256}


def test_decoding_on_a_device_emits_what_the_host_emits(package: ModelPackage) -> None:
    """Drafting, commits that move rows, and a batch whose slots change places."""
    assert decoded(DeviceTarget.open_on(package, "cpu", 1)) == decoded(HostTarget.open(package, 1))


def decoded(target: Target) -> list[list[int]]:
    """Answers of several lengths, more than a batch holds."""
    decoder = Decoder(target, RetrievalDrafter(DraftConfig()).wait(), EngineConfig(max_batch=2))
    sequences = [
        decoder.submit(prompt, GenerationConfig(max_tokens=size, ignores_eos=True))
        for prompt, size in zip([*PROMPTS, PROMPTS[0]], (30, 12, 20), strict=True)
    ]
    decoder.finish(*sequences)
    return [sequence.output_token_ids for sequence in sequences]


def test_a_size_that_comes_again_is_captured_once(exported: Exported) -> None:
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    cache = target.new_cache(1, 64)
    for size in (3, 4, 3, 4):
        target.forward(cache, Pass(0, [DraftTree.chain(list(range(size)))], [range(size)]))
    assert target.num_captured == 1
    target.forward(cache, Pass(0, [DraftTree.chain([1])], [[0]]))
    assert target.num_captured == 1, "a size seen once would not repay its capture"
    target.forward(cache, Pass(0, [DraftTree.chain([1])], [[0]]))
    assert target.num_captured == 2
    for _ in range(2):
        target.forward(cache, Pass(0, [DraftTree.chain(list(range(65)))], [[0]]))
    assert target.num_captured == 2, "prefill is not captured"


def test_a_cache_that_moved_is_bound_again(exported: Exported) -> None:
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    cache = target.new_cache(1, 64)
    tree = DraftTree.chain([5, 6, 7])
    for _ in range(2):
        before = target.forward(cache, Pass(0, [tree], [range(3)], wants_logits=True)).wanted_logits.copy()
    assert target.num_captured == 1
    cache.reserve(3, 64)
    for num_captured in (1, 2):
        again = target.forward(cache, Pass(0, [tree], [range(3)], wants_logits=True)).wanted_logits
        np.testing.assert_array_equal(again, before)
        assert target.num_captured == num_captured


def test_another_gpu_is_another_fact_of_its_times(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    facts = []
    for name in ("one GPU", "another GPU"):
        monkeypatch.setattr(device_target, "gpu_name", lambda name=name: name)
        facts.append(target.with_min_rows(1).pass_facts)
    assert facts[0] != facts[1]


def test_a_sibling_with_more_rows_shares_the_session_but_no_capture(exported: Exported) -> None:
    """Captures are numbered for the whole session: one of the sibling's must not be replayed as the other's."""
    alone = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    paired = alone.with_min_rows(2)
    assert paired.session is alone.session
    for target in (alone, paired, alone, paired):
        cache = target.new_cache(1, 64)
        for _ in range(2):
            result = target.forward(cache, Pass(0, [DraftTree.root(5)], [[0]]))
        assert result.top_ids.shape == (1, 1, 8)
    bound = [each.graph_id for target in (alone, paired) for each in target._passes.values()]
    assert len(set(bound)) == 2
    assert (alone.num_captured, paired.num_captured) == (2, 2)


def test_hidden_states_are_refused_in_one_sentence(exported: Exported) -> None:
    package = ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False))
    wanted = Pass(0, [DraftTree.root(5)], [[0]], wants_hidden_states=True)
    for target in (DeviceTarget.open_on(package, "cpu", 1), HostTarget.open(package, 1)):
        with pytest.raises(ProviderError, match=r"reports no hidden states: .*\.$"):
            target.forward(target.new_cache(1, 8), wanted)


def test_only_wanted_rows_come_back(exported: Exported) -> None:
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    cache = target.new_cache(1, 64)
    result = target.forward(cache, Pass(0, [DraftTree.chain([5, 6, 7])], [[2, 0, 1]], wants_logits=True))
    assert result.top_ids.shape == (1, 3, 8)
    assert result.wanted_logits.shape == (1, 3, 320)
    np.testing.assert_array_equal(result.top_ids[0, :, 0], result.wanted_logits[0].argmax(axis=1))


def test_log_probabilities_need_no_logits_row_from_a_device(package: ModelPackage) -> None:
    on_device, on_host = DeviceTarget.open_on(package, "cpu", 1), HostTarget.open(package, 1)
    wanted = Pass(0, [DraftTree.chain([5, 6, 7])], [range(3)], wants_log_sum_exp=True)
    found, computed = (target.forward(target.new_cache(1, 64), wanted) for target in (on_device, on_host))
    assert found.logits is None
    for row in range(3):
        best = int(found.top_ids[0, row, 0])
        assert found.log_probability(0, row, best) == pytest.approx(computed.log_probability(0, row, best), abs=1e-2)
    unlikely = int(computed.wanted_logits[0, 0].argmin())
    with pytest.raises(ValueError, match="did not ask for logits"):
        found.log_probability(0, 0, unlikely)
    found = on_device.forward(on_device.new_cache(1, 64), wanted._replace(wants_logits=True))
    assert found.log_probability(0, 0, unlikely) == pytest.approx(computed.log_probability(0, 0, unlikely), abs=1e-2)


@pytest.mark.parametrize("path", [[0, 1, 2], [0, 2, 3], [0, 3, 7, 8, 12], [0, 5]])
def test_the_commit_graph_moves_rows_as_numpy_does(path: list[int], exported: Exported) -> None:
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    on_device, on_host = target.new_cache(2, 64), HostCache(target.manifest, 2, 64)
    assert isinstance(on_device, DeviceCache)
    contents = _random(on_device.memory.shape)
    on_device.memory.write(contents)
    on_host.slab[:] = contents[:, :, :, : on_host.capacity]
    for cache in (on_device, on_host):
        cache.lengths[:] = [4, 20]
        cache.commit(1, path)
    assert on_device.lengths == on_host.lengths == [4, 20 + len(path)]
    kept = 20 + len(path)
    np.testing.assert_array_equal(on_device.memory.read()[:, 1, :, :kept], on_host.slab[:, 1, :, :kept])
    capacity = on_device.capacity  # behind it are rows that only padding uses
    np.testing.assert_array_equal(on_device.memory.read()[:, 0, :, :capacity], contents[:, 0, :, :capacity])


def test_rows_move_again_with_the_same_binding(exported: Exported) -> None:
    """Slots in turn, the last of them full."""
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    on_device, on_host = target.new_cache(2, 128), HostCache(target.manifest, 2, 128)
    assert isinstance(on_device, DeviceCache)
    assert on_device.capacity == on_host.capacity == 128
    contents = _random(on_device.memory.shape)
    on_device.memory.write(contents)
    on_host.slab[:] = contents[:, :, :, : on_host.capacity]
    for cache in (on_device, on_host):
        cache.lengths[:] = [4, 110]
        for slot, path in ((0, [0, 2, 5]), (1, [0, 3, 17]), (0, [0, 4]), (1, [0, 14])):
            cache.commit(slot, path)
    assert on_device.lengths == on_host.lengths
    for slot, length in enumerate(on_host.lengths):
        kept = on_device.memory.read()[:, slot, :, :length]
        np.testing.assert_array_equal(kept, on_host.slab[:, slot, :, :length])


def test_a_commit_graph_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["past_key.0"], ["present_key.0"])],
        "commit",
        [onnx.helper.make_tensor_value_info("past_key.0", onnx.TensorProto.FLOAT16, ["B", 2, "S", 16])],
        [onnx.helper.make_tensor_value_info("present_key.0", onnx.TensorProto.FLOAT16, ["B", 2, "S", 16])],
    )
    opset = onnx.helper.make_opsetid("", 24)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=11), tmp_path / "commit.onnx")
    with pytest.raises(ProviderError, match="export again"):
        CommitGraph(tmp_path / "commit.onnx", "cpu", CPU)


def test_slots_change_places_whole(exported: Exported) -> None:
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    cache = target.new_cache(3, 64)
    assert isinstance(cache, DeviceCache)
    contents = _random(cache.memory.shape)
    cache.memory.write(contents)
    cache.lengths[:] = [4, 5, 6]
    cache.swap(0, 2)
    assert cache.lengths == [6, 5, 4]
    np.testing.assert_array_equal(cache.memory.read(), contents[:, [2, 1, 0, 3]])


def test_a_slot_is_read_and_written_alone(exported: Exported) -> None:
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    cache = target.new_cache(3, 64)
    assert isinstance(cache, DeviceCache)
    contents = _random(cache.memory.shape)
    cache.memory.write(contents)
    cache.write_slot(0, cache.read_slot(2, 7))
    contents[:, 0, :, :7] = contents[:, 2, :, :7]
    np.testing.assert_array_equal(cache.memory.read(), contents)
    assert cache.lengths == [7, 0, 0]


def test_growing_keeps_what_was_there(exported: Exported) -> None:
    target = DeviceTarget.open_on(ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False)), "cpu", 1)
    cache = target.new_cache(1, 64)
    assert isinstance(cache, DeviceCache)
    contents = _random(cache.memory.shape)
    cache.memory.write(contents)
    cache.reserve(2, 64)
    np.testing.assert_array_equal(cache.memory.read()[:, 0], contents[:, 0])
    assert not cache.memory.read()[:, 1].any()
    assert cache.memory.shape[3] % 8 == 0
    with pytest.raises(ConfigError, match="context ends"):
        cache.reserve(1, 1000)


@pytest.mark.parametrize("data_type", ["float32", "int64", "float16", "bfloat16"])
def test_a_device_tensor_keeps_its_address(data_type: str) -> None:
    tensor = DeviceArray("cpu", data_type, (2, 3))
    address = tensor.address
    for values in (np.arange(6).reshape(2, 3), np.full((2, 3), 7)):
        tensor.write(values)
        np.testing.assert_array_equal(tensor.read(), values)
    assert tensor.address == address


def test_a_package_for_the_cpu_is_refused_on_a_device(demo_folder: Path) -> None:
    with pytest.raises(ProviderError, match=r"made for the CPU .* --precision fp16"):
        DeviceTarget.open_on(ModelPackage.open(demo_folder), "cuda")


def _tree_logits(target: Target) -> npt.NDArray[np.float32]:
    cache = target.new_cache(2, 32)
    for slot, prompt in enumerate(PROMPTS):
        target.forward(cache, Pass(slot, [DraftTree.chain(prompt)], [[0]]))
        cache.commit(slot, list(range(len(prompt))))
    return target.forward(cache, Pass(0, TREES, [range(5), range(3)], wants_logits=True)).wanted_logits.copy()


def _random(shape: tuple[int, ...]) -> npt.NDArray[np.float16]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float16)
