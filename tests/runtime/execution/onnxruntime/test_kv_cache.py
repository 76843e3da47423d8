"""The KV cache: commits keep the walked path, nothing else moves or is lost; what cannot fit is refused."""

import ctypes
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from reader_edge.cli import main
from reader_edge_runtime.errors import ConfigError, MemoryShortageError, ProviderError
from reader_edge_runtime.execution.onnxruntime.host import host_cache, host_graph, kv_slab, needed_memory
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import HAS_PAGES, PAGE_BYTES, PagedMemory, whole_pages
from reader_edge_runtime.execution.onnxruntime.host.needed_memory import check_memory, needed_bytes
from reader_edge_runtime.package.layer import Layer
from reader_edge_runtime.package.manifest import GRAPH_NAME, WEIGHTS_NAME, FileEntry, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from tests.fake_target import make_manifest

MANIFESTS = {
    kv_dtype: replace(make_manifest(max_context=64), kv_dtype=kv_dtype) for kv_dtype in ("float32", "float16", "int8")
}


of_each_type = pytest.mark.parametrize("kv_dtype", MANIFESTS)


def filled(kv_dtype: str, num_slots: int, capacity: int) -> HostCache:
    cache = HostCache(MANIFESTS[kv_dtype], num_slots, capacity)
    cache.slab[:] = np.random.default_rng(0).integers(-128, 128, cache.slab.shape)
    return cache


@of_each_type
@given(length=st.integers(0, 20), path=st.sets(st.integers(1, 11), max_size=8))
def test_commit_keeps_the_rows_of_the_path_in_order(kv_dtype: str, length: int, path: set[int]) -> None:
    cache = filled(kv_dtype, 2, 32)
    cache.lengths[1] = length
    before = cache.slab.copy()
    nodes = [0, *sorted(path)]
    cache.commit(1, nodes)
    assert cache.lengths == [0, length + len(nodes)]
    np.testing.assert_array_equal(cache.slab[:, 1, :, :length], before[:, 1, :, :length])
    for i, node in enumerate(nodes):
        np.testing.assert_array_equal(cache.slab[:, 1, :, length + i], before[:, 1, :, length + node])
    np.testing.assert_array_equal(cache.slab[:, 0], before[:, 0])


@of_each_type
def test_growth_is_geometric_bounded_and_keeps_committed_rows(kv_dtype: str) -> None:
    cache = filled(kv_dtype, 2, 8)
    cache.lengths[:] = [5, 8]
    before = cache.slab.copy()
    cache.reserve(2, 9)
    assert (cache.num_slots, cache.capacity) == (2, 16)
    cache.reserve(3, 60)
    assert (cache.num_slots, cache.capacity) == (3, 60)
    np.testing.assert_array_equal(cache.slab[:, 0, :, :5], before[:, 0, :, :5])
    np.testing.assert_array_equal(cache.slab[:, 1, :, :8], before[:, 1, :, :8])
    assert not cache.slab[:, 2].any()
    with pytest.raises(ConfigError, match="65"):
        cache.reserve(1, 65)


class Interrupted(int):
    """A length at whose comparison number `at` an interrupt comes."""

    at = 0

    def __gt__(self, other: int) -> bool:
        Interrupted.at -= 1
        if Interrupted.at == 0:
            raise KeyboardInterrupt
        return int(self) > other


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("size", [(1, 8), (3, 24)])
def test_an_interrupt_during_a_change_of_size_leaves_a_cache_of_one_size(size: tuple[int, int], at: int) -> None:
    cache = filled("float32", 2, 16)
    cache.lengths[:] = [Interrupted(12), 5]
    memory, Interrupted.at = cache.memory, at
    with pytest.raises(KeyboardInterrupt):
        cache.resize(*size)
    assert cache.memory is memory
    assert (cache.num_slots, cache.capacity, cache.lengths) == (2, 16, [12, 5])


@of_each_type
def test_swap_exchanges_contents_and_lengths(kv_dtype: str) -> None:
    cache = filled(kv_dtype, 3, 8)
    cache.lengths[:] = [2, 0, 7]
    before = cache.slab.copy()
    cache.swap(0, 2)
    assert cache.lengths == [7, 0, 2]
    np.testing.assert_array_equal(cache.slab[:, 0, :, :7], before[:, 2, :, :7])
    np.testing.assert_array_equal(cache.slab[:, 2, :, :2], before[:, 0, :, :2])
    np.testing.assert_array_equal(cache.slab[:, 1], before[:, 1])


@of_each_type
def test_layer_views_of_a_slot_range_share_the_slab(kv_dtype: str) -> None:
    cache = HostCache(MANIFESTS[kv_dtype], 4, 8)
    view = cache.tensors(1, 2)["past_value.0"]
    assert (*view.shape[:2], view.shape[3]) == (2, 1, {"float32": 2, "float16": 2, "int8": 4}[kv_dtype])
    assert view.flags.c_contiguous
    view[0, 0, 3] = 7
    assert (cache.slab[1, 1, 0, 3] == 7).all()


@pytest.mark.skipif(not HAS_PAGES, reason="elsewhere a cache takes memory of all its rows")
def test_a_slot_takes_the_pages_of_its_own_rows_and_gives_them_back() -> None:
    """As the system counts them: 3 layers, 2 heads, 62 rows of 66 bytes a page."""
    manifest = replace(MANIFESTS["int8"], num_layers=3, num_kv_heads=2, head_dim=64, max_context=5000)
    cache = HostCache(manifest, 1, 64)
    cache.reserve_addresses(4)
    memory = cache.memory
    cache.reserve(4, 4096)
    assert cache.memory is memory  # and growing copied nothing
    assert cache.num_bytes == resident_bytes(cache) == 0
    _write(cache, 0, 3000)
    _write(cache, 1, 50)
    pages = [-(-num_rows * 66 // PAGE_BYTES) for num_rows in (3000, 50, 3010)]
    assert cache.num_bytes == resident_bytes(cache) == 12 * PAGE_BYTES * (pages[0] + pages[1])
    before = cache.read_slot(0, 3000).rows[0].copy(), cache.read_slot(1, 50).rows[0].copy()
    cache.swap(0, 1)
    assert cache.num_bytes == resident_bytes(cache) == 12 * PAGE_BYTES * (pages[0] + pages[1])
    np.testing.assert_array_equal(cache.read_slot(1, 3000).rows[0], before[0])
    np.testing.assert_array_equal(cache.read_slot(0, 50).rows[0], before[1])
    cache.extend(1, 1, 10)  # nodes that were not kept
    cache.slab[:, 1, :, 3000:3010] = 1
    assert cache.num_bytes == resident_bytes(cache) == 12 * PAGE_BYTES * (pages[1] + pages[2])
    cache.lengths[1] = 50
    cache.trim(1)
    assert cache.num_bytes == resident_bytes(cache) == 12 * PAGE_BYTES * 2 * pages[1]
    np.testing.assert_array_equal(cache.read_slot(1, 50).rows[0], before[0][:, :, :50])
    assert not cache.slab[:, 1, :, 100 * PAGE_BYTES // 4096 :].any()  # zeros, which masked rows may be
    cache.resize(1, 4096)
    assert cache.num_bytes == 12 * PAGE_BYTES * pages[1]
    assert cache.num_bytes_of([3000, 50], 4096) == 2 * PAGE_BYTES * (6 * (pages[0] + pages[1]) + pages[0])


def _write(cache: HostCache, slot: int, num_rows: int) -> None:
    cache.extend(slot, 1, num_rows)
    rows = cache.slab[:, slot, :, :num_rows]
    rows[:] = np.random.default_rng(slot).integers(1, 100, rows.shape)
    cache.commit(slot, range(num_rows))


def resident_bytes(cache: HostCache) -> int:
    """Of the cache's pages, those that mincore(2) says are there."""
    is_there = (ctypes.c_ubyte * (cache.memory.nbytes // PAGE_BYTES))()
    address, size = ctypes.c_void_p(cache.memory.ctypes.data), ctypes.c_size_t(cache.memory.nbytes)
    assert ctypes.CDLL(None).mincore(address, size, is_there) == 0
    return PAGE_BYTES * sum(each & 1 for each in is_there)


LAYERS = Layer.attention(1, 8), Layer.none(), Layer.attention(2, 16), Layer.attention(1, 8, shares=0)
UNEQUAL = replace(make_manifest(max_context=5000), num_layers=4, layers=LAYERS)


def test_layers_whose_heads_differ_are_kept_side_by_side_and_shared_ones_once() -> None:
    cache = HostCache(UNEQUAL, 2, 16)
    names = ["past_key.0", "past_value.0", "past_key.2", "past_value.2"]
    assert list(cache.tensors(0, 2)) == names == UNEQUAL.past_names()
    assert [tensor.shape for tensor in cache.tensors(1, 1).values()] == [(1, 1, 16, 8)] * 2 + [(1, 2, 16, 16)] * 2
    for slab in cache.slabs:
        slab.memory[:] = np.random.default_rng(0).standard_normal(slab.memory.shape)
    before = [slab.memory.copy() for slab in cache.slabs]
    cache.assume(1, 5)
    cache.commit(1, [0, 2, 5])
    cache.swap(0, 1)
    cache.reserve(2, 40)
    rows = [*range(5), 5, 7, 10]
    assert cache.lengths == [8, 0]
    for kept, old in zip(cache.read_slot(0, 8).rows, before, strict=True):
        np.testing.assert_array_equal(kept, old[:, 1][:, :, rows])
    other = HostCache(UNEQUAL, 1, 16)
    other.write_slot(0, cache.read_slot(0, 8))
    for kept, old in zip(other.read_slot(0, 8).rows, cache.read_slot(0, 8).rows, strict=True):
        np.testing.assert_array_equal(kept, old)


@pytest.mark.skipif(not HAS_PAGES, reason="elsewhere a cache takes memory of all its rows")
def test_pages_of_layers_whose_heads_differ_are_counted_together() -> None:
    cache = HostCache(UNEQUAL, 1, 16)
    cache.reserve_addresses(3)
    cache.reserve(3, 2000)
    cache.extend(0, 1, 1000)
    spans = 2 * -(-1000 * 8 * 4 // PAGE_BYTES) + 4 * -(-1000 * 16 * 4 // PAGE_BYTES)
    assert cache.num_bytes == cache.num_bytes_of([1000], 2000) == spans * PAGE_BYTES
    cache.trim(0)
    assert cache.num_bytes == 0


def test_cache_too_large_for_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "zeros", no_memory)
    with pytest.raises(ConfigError, match="GB"):
        HostCache(MANIFESTS["float32"], 4, 8)


@pytest.mark.skipif(not HAS_PAGES, reason="elsewhere a cache takes memory of all its rows")
def test_a_text_that_cannot_fit_into_memory_is_refused_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is taken: 32,768 tokens of a 3B model."""
    heads = [Layer.attention(2, 128)] * 36
    manifest = replace(make_manifest(max_context=1 << 15), num_layers=36, layers=tuple(heads), kv_dtype="int8")
    gigabytes = 36 * 2 * 2 * (128 + 2) * 32_768 / 1e9
    cache = HostCache(manifest, 1, 256)
    monkeypatch.setattr(host_cache, "free_bytes", lambda: 10**8)
    with pytest.raises(ConfigError) as refusal:
        cache.reserve(1, 32_768)
    needed = f"32768 tokens need {gigabytes:.1f} GB of KV cache (int8), and 0.1 GB are free"
    assert str(refusal.value) == f"{needed}: shorten the prompt or end other programs."
    assert cache.capacity == 256
    cache.reserve(1, 4096)
    cache.extend(0, 1, 4000)
    monkeypatch.setattr(host_cache, "free_bytes", lambda: 10**7)
    cache.reserve(1, 4500)  # 4,000 rows are there
    cache.reserve(2, 4500)
    cache.extend(0, 1, 4000)
    cache.check_free(0, 4500)
    with pytest.raises(ConfigError, match=r"^4500 tokens need 0\.1 GB"):
        cache.check_free(1, 4500)
    monkeypatch.setattr(host_cache, "free_bytes", lambda: None)
    cache.check_free(1, 4500)
    cache.reserve(1, 32_768)


def test_a_cache_without_room_for_its_largest_size_moves_as_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(num_bytes: int) -> None:
        raise MemoryError

    monkeypatch.setattr(kv_slab, "PagedMemory", no_memory)
    cache = filled("float32", 1, 8)
    cache.lengths[0] = 5
    before = cache.slab.copy()
    cache.reserve_addresses(4)
    cache.reserve(4, 60)
    np.testing.assert_array_equal(cache.slab[:, 0, :, :5], before[:, 0, :, :5])
    assert cache.num_bytes == cache.memory.nbytes == cache.num_bytes_of([5, 5, 5, 5], 60)


@pytest.mark.parametrize("platform", [sys.platform, "win32"])
def test_pages_are_zeros_until_they_are_written(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    memory = PagedMemory(2 * PAGE_BYTES)
    array = memory.array((2, PAGE_BYTES // 4), "float32")
    assert not array.any()
    array[:] = 1
    memory.give_back(PAGE_BYTES, 2 * PAGE_BYTES)
    assert array[0].all()
    assert array[1].any() == (platform != "linux")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system says so in its own words")
@pytest.mark.parametrize("num_bytes", [1 << 62, 1 << 80])
def test_more_than_there_can_be_is_short_memory(num_bytes: int) -> None:
    with pytest.raises(MemoryError):
        PagedMemory(num_bytes)


def test_bytes_are_counted_in_whole_pages() -> None:
    assert [whole_pages(size) for size in (0, 1, PAGE_BYTES, PAGE_BYTES + 1)] == [
        0,
        PAGE_BYTES,
        PAGE_BYTES,
        2 * PAGE_BYTES,
    ]


GB = 10**9


@pytest.fixture
def manifest(demo_folder: Path) -> Manifest:
    """Of a model of seven billion parameters in eight bits, whose embedding is a matrix of its own."""
    return replace(
        ModelPackage.open(demo_folder).manifest,
        precision="int8",
        kv_dtype="int8",
        num_layers=28,
        num_kv_heads=4,
        head_dim=128,
        vocab_size=152_064,
        hidden_size=3584,
        max_context=32_768,
        files={GRAPH_NAME: FileEntry(10**6, ""), WEIGHTS_NAME: FileEntry(7_650_000_000, "")},
    )


def set_free(monkeypatch: pytest.MonkeyPatch, num_bytes: int | None) -> None:
    monkeypatch.setattr(needed_memory, "free_bytes", lambda: num_bytes)


def test_what_counts_is_certain(manifest: Manifest) -> None:
    embedding = 152_064 * 3584
    assert 7_650_000_000 - 1.1 * embedding < needed_bytes(manifest) < 7_650_000_000 - 0.9 * embedding
    wide = replace(manifest, precision="fp32")
    assert needed_bytes(manifest) - needed_bytes(wide) == pytest.approx(embedding * (4 - 1 - 4 / 64), rel=1e-6)
    assert needed_bytes(replace(manifest, hidden_size=None)) < 4 * GB  # for a device: its embedding is not known
    assert 0 < needed_bytes(replace(manifest, files={})) < 100_000_000


@pytest.mark.parametrize(
    ("free", "remedy"),
    [
        (3_290_000_000, "3.2 GB are free: end other programs, or take a model of about 5 billion parameters at"),
        (1_000_000_000, "1.0 GB are free: end other programs, or take a model of about 1 billion parameters at"),
        (500_000_000, "0.5 GB are free: end other programs, or take a model of about 600 million parameters at"),
        (0, "0.0 GB are free: end other programs, or take a smaller model."),
    ],
)
def test_a_package_that_cannot_fit_is_refused_with_what_would(
    manifest: Manifest, free: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_free(monkeypatch, free)
    with pytest.raises(MemoryShortageError, match=r"^'big' needs at least 7\.2 GB of memory and ") as refusal:
        check_memory(ModelPackage(Path("big"), manifest))
    assert remedy in str(refusal.value)


def test_a_package_that_may_fit_is_not_refused(manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    package = ModelPackage(Path("big"), manifest)
    for free in (None, needed_bytes(manifest), 8 * GB):
        set_free(monkeypatch, free)
        check_memory(package)
    set_free(monkeypatch, needed_bytes(manifest) - 1)
    with pytest.raises(ProviderError):
        check_memory(package)


def test_nothing_is_loaded_of_a_refused_package(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free(monkeypatch, 1000)
    monkeypatch.setattr(host_graph, "native_library", lambda: Path("kernels"))
    monkeypatch.setattr(host_graph, "open_session", None)  # calling it would fail
    with pytest.raises(MemoryShortageError):
        HostTarget.open(ModelPackage.open(demo_folder))
    result = CliRunner().invoke(main, ["run", str(demo_folder), "-p", "a", "-n", "1"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "GB are free: end other programs" in " ".join(result.stderr.split())


@pytest.mark.long
def test_without_kernels_weights_may_stay_in_the_file(demo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_free(monkeypatch, 1000)
    assert not HostTarget.open(ModelPackage.open(demo_folder), 1, uses_native=False).is_native
