"""The target model on TensorRT, its engines played on the CPU: few capacities, one engine at a time, same answers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.device.buckets import padding_rows
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass
from reader_edge_tensorrt.engine import shape_ranges
from reader_edge_tensorrt.tensorrt_target import TensorRtTarget
from tests.export.exported.played_engines import PlayedEngines
from tests.export.exported.test_device_target import decoded
from tests.tiny_models import MAX_CONTEXT

ROWS = padding_rows(MAX_CONTEXT)


@pytest.fixture
def package(exported: Callable[..., Path]) -> ModelPackage:
    return ModelPackage.open(exported("llama", "fp16", "fast", is_checked=False))


def test_decoding_emits_what_the_host_emits(package: ModelPackage) -> None:
    assert decoded(PlayedEngines(package).target()) == decoded(HostTarget.open(package, 1))


def test_caches_of_one_size_share_an_engine_and_another_size_has_its_own(package: ModelPackage) -> None:
    engines = PlayedEngines(package)
    target = engines.target()
    caches = [target.with_min_rows(2).new_cache(size, 64) for size in (1, 2, 8)]
    for cache in [*caches, target.new_cache(9, 64)]:
        target.forward(cache, Pass(0, [DraftTree.root(5)], [[0]]))
    assert engines.opened == [(8, ROWS), (16, ROWS)]
    assert target.num_captured == 0


def test_a_cache_that_grows_goes_on_with_another_engine(package: ModelPackage) -> None:
    """Capacities are powers of two, so that few engines are built."""
    package.manifest = replace(package.manifest, max_context=20_000)
    engines = PlayedEngines(package)
    target = engines.target()
    cache = target.new_cache(1, 1)
    wanted = Pass(0, [DraftTree.chain([5, 6, 7])], [range(3)], wants_logits=True)
    before = target.forward(cache, wanted).wanted_logits.copy()
    cache.reserve(1, 5000)
    assert cache.capacity == 8192
    assert cache.num_bytes_of([5000], 5000) == cache.num_bytes
    after = target.forward(cache, wanted).wanted_logits
    assert abs(after - before).max() <= 2e-3 * abs(before).max()
    assert engines.opened == [(8, padding_rows(4096)), (8, padding_rows(8192))]
    cache.reserve(1, 20_000)
    assert cache.capacity == 20_000, "all of the context is no power of two"


def test_the_version_of_what_builds_engines_is_a_fact_of_its_times(package: ModelPackage) -> None:
    assert "played" in PlayedEngines(package).target().pass_facts


def test_sizes_of_an_engine_begin_with_a_token_and_end_with_a_full_batch(package: ModelPackage) -> None:
    ranges = shape_ranges(package.manifest, 8, 2112)
    assert ranges["input_ids"] == ((1, 1), (1, 8), (8, 256))
    assert ranges["tree_mask"] == ((1, 1, 1, 64), (1, 1, 8, 1024), (8, 1, 256, 2112))
    assert ranges["past_key.0"] == ((1, 2, 2112, 16), (1, 2, 2112, 16), (8, 2, 2112, 16))
    assert all(least <= likely <= most for each in ranges.values() for least, likely, most in zip(*each, strict=True))


def test_exact_attention_is_refused_since_its_sums_would_be_in_float32(exported: Callable[..., Path]) -> None:
    with pytest.raises(ProviderError, match=r"sums in float64.* --attention fast, or use --provider cuda\.$"):
        TensorRtTarget.open(ModelPackage.open(exported("llama", "fp16", "exact", is_checked=False)))


def test_a_package_for_the_cpu_is_refused(demo_folder: Path) -> None:
    with pytest.raises(ProviderError, match="made for the CPU"):
        TensorRtTarget.open(ModelPackage.open(demo_folder))
