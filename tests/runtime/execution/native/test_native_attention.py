"""Native attention: the bits of its definition, at odd sizes and with extreme values, and the mean it should be."""

from pathlib import Path

import numpy as np
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from reader_edge_runtime.package.manifest import MASKED
from tests.runtime.execution.native_operator import (
    EXACT,
    EXACT_HALF,
    FORMS,
    INT8_CACHE,
    INTEGER,
    INTEGER_HALF,
    LARGEST_HALF,
    Attention,
    Operator,
    attention_feed,
    build_attention,
    cached_feed,
    halves,
    needs_kernels,
    read_rows,
    rotated_key,
    rounded_rows,
)

pytestmark = [needs_kernels, pytest.mark.usefixtures("instructions")]


@pytest.mark.parametrize("kind", FORMS, ids=str)
@pytest.mark.parametrize("past", [0, 40, 600])  # of the last, kernels of some sets use tiles
@pytest.mark.parametrize(  # the first is a latent of DeepSeek
    ("head_size", "group_size"), [(576, 20), (256, 1), (136, 1), (256, 2), (64, 1), (64, 7), (80, 3), (8, 2)]
)
def test_attention_keeps_the_bits(head_size: int, group_size: int, past: int, kind: Attention, tmp_path: Path) -> None:
    num_kv_heads = 2
    attention = _attention(tmp_path, head_size, num_kv_heads, group_size, kind)
    rng = np.random.default_rng(head_size + group_size)
    for num_nodes in (1, 2, 5, 17):
        feed = attention_feed(rng, past, num_nodes, num_kv_heads, group_size, head_size)
        attention.check(**cached_feed(feed, kind))


@pytest.mark.parametrize("kind", FORMS, ids=str)
@pytest.mark.parametrize("past", [130, 900])
def test_attention_of_extreme_values_keeps_the_bits(past: int, kind: Attention, tmp_path: Path) -> None:
    attention = _attention(tmp_path, 64, 2, 7, kind)
    rng = np.random.default_rng(0)
    num_nodes = 3
    values = rng.standard_normal((1, 2, past + num_nodes, 64), np.float32)
    values[:, :, ::5] = 0
    values *= 10.0 ** rng.integers(-40, 30, (1, 2, past + num_nodes, 1))
    feed = attention_feed(rng, past, num_nodes, 2, 7, 64) | {"past_value": values.astype(np.float32)}
    attention.check(**cached_feed(feed, kind))
    zeros = {"value": np.zeros_like(feed["value"]), "past_value": np.zeros_like(values, np.float32)}
    attention.check(**cached_feed(feed | zeros, kind))
    peaked = {"query": np.full((1, 14, num_nodes, 64), 300, np.float32)}  # all weight on few rows
    attention.check(**cached_feed(feed | peaked, kind))


@pytest.mark.parametrize("kind", FORMS, ids=str)
@pytest.mark.parametrize("past", [0, 130])
def test_queries_of_any_size_keep_the_bits(past: int, kind: Attention, tmp_path: Path) -> None:
    """Zero, too small for a scale, as large as scores allow, and with one number above all others."""
    attention = _attention(tmp_path, 64, 2, 7, kind)
    feed = attention_feed(np.random.default_rng(past), past, 4, 2, 7, 64)
    query = feed["query"] * np.array([[0], [1e-42], [3e15], [-1e-20]], np.float32)
    query[:, :, 3, 5] = 30
    attention.check(**cached_feed(feed | {"query": query.astype(np.float32)}, kind))
    tiny = {name: np.multiply(feed[name], 1e-42, dtype=np.float32) for name in ("key", "past_key")}
    attention.check(**cached_feed(feed | tiny, kind))


@pytest.mark.parametrize("sharpness", [2, 6, 20])
@pytest.mark.parametrize(("head_size", "num_nodes"), [(64, 1), (64, 8), (80, 3)])
def test_rows_that_hardly_count_keep_the_bits(head_size: int, num_nodes: int, sharpness: int, tmp_path: Path) -> None:
    """Of most rows a weight's upper byte, or all of it, is zero, and kernels leave it out."""
    past, group_size = 1100, 4
    attention = _attention(tmp_path, head_size, 2, group_size, INT8_CACHE)
    rng = np.random.default_rng(sharpness)
    feed = attention_feed(rng, past, num_nodes, 2, group_size, head_size)
    feed["query"] = (feed["query"] * sharpness).astype(np.float32)
    feed["past_key"][:, :, 4] = sharpness * feed["query"].mean(axis=(1, 2), dtype=np.float32)  # a sink
    attention.check(**cached_feed(feed, INT8_CACHE))


@pytest.mark.parametrize(
    ("kind", "limit"),
    [(EXACT, 1e-6), (EXACT_HALF, 1e-3), (INTEGER, 1e-3), (INTEGER_HALF, 2e-3), (INT8_CACHE, 2e-2)],
    ids=str,
)
def test_attention_is_the_softmax_mean_of_the_values(kind: Attention, limit: float, tmp_path: Path) -> None:
    past, num_nodes, num_kv_heads, group_size, head_size = 1000, 5, 2, 7, 64
    attention = _attention(tmp_path, head_size, num_kv_heads, group_size, kind)
    feed = attention_feed(np.random.default_rng(1), past, num_nodes, num_kv_heads, group_size, head_size)
    output = attention.check(**cached_feed(feed, kind))[0]
    keys, values = (
        np.concatenate([feed[f"past_{name}"][:, :, :past], feed[name]], axis=2).astype(np.float64)
        for name in ("key", "value")
    )
    query = feed["query"].reshape(1, num_kv_heads, group_size * num_nodes, head_size).astype(np.float64)
    scores = query @ keys.swapaxes(2, 3) * 1.1 * head_size**-0.5 + np.tile(feed["mask"], (1, 1, group_size, 1))
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights @ values / weights.sum(-1, keepdims=True)
    error = np.abs(output.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max()
    assert error < limit


@pytest.mark.parametrize("kind", [INTEGER_HALF, INT8_CACHE], ids=str)
@pytest.mark.parametrize("num_nodes", [1, 6, 70])
def test_runs_of_a_long_past_keep_the_bits_in_a_ragged_batch(num_nodes: int, kind: Attention, tmp_path: Path) -> None:
    attention = _attention(tmp_path, 64, 1, 2, kind)
    rng = np.random.default_rng(num_nodes)
    feeds = [attention_feed(rng, past, num_nodes, 1, 2, 64) for past in (1500, 200)]
    visible = 1500 + num_nodes
    feeds[1]["mask"] = np.pad(feeds[1]["mask"], ((0, 0), (0, 0), (0, 0), (0, 1300)), constant_values=MASKED)
    for name in ("past_key", "past_value"):
        feeds[1][name] = np.pad(feeds[1][name], ((0, 0), (0, 0), (0, 1300), (0, 0)))
    feed = {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]}
    assert feed["mask"].shape == (2, 1, num_nodes, visible)
    attention.check(**cached_feed(feed, kind))


@pytest.mark.parametrize("kind", FORMS, ids=str)
@pytest.mark.parametrize("window", [1000, 1 << 20])  # a part of the rows, and all
def test_attention_behind_tens_of_thousands_of_rows_keeps_the_bits(
    kind: Attention, window: int, tmp_path: Path
) -> None:
    """scripts/check_kernels has more widths and pasts (docs/explanation/processors.md)."""
    attention = Operator(tmp_path, *build_attention(16, 1, 2, has_sinks=True), kind)
    rng = np.random.default_rng(6)
    for past, num_nodes in ((32_700, 1), (20_001, 9)):
        feed = attention_feed(rng, past, num_nodes, 1, 2, 16) | {"sinks": rng.standard_normal(2, np.float32)}
        for node in range(num_nodes):
            feed["mask"][0, 0, node, : max(0, past + 1 + node - window)] = MASKED
        attention.check(**cached_feed(feed, kind))


@pytest.mark.parametrize("kind", FORMS, ids=str)
@pytest.mark.parametrize("has_sinks", [False, True])
def test_a_window_keeps_the_bits_and_nothing_before_it_is_read(
    kind: Attention, has_sinks: bool, tmp_path: Path
) -> None:
    """Of two texts, in whole steps of 64 rows; but where one node sees nothing, all rows count alike."""
    attention = Operator(tmp_path, *build_attention(64, 2, 3, has_sinks), kind)
    rng = np.random.default_rng(5)
    for num_nodes, windows in ((1, (8, 128)), (5, (130, 600)), (17, (1024, 3))):
        feeds = [attention_feed(rng, 1500, num_nodes, 2, 3, 64) for _ in windows]
        for feed, window in zip(feeds, windows, strict=True):
            for node in range(num_nodes):
                feed["mask"][0, 0, node, : max(0, 1501 + node - window)] = MASKED
        feed = {name: np.concatenate([each[name] for each in feeds]) for name in feeds[0]}
        feed |= {"sinks": rng.standard_normal(6, np.float32)} if has_sinks else {}
        cached = cached_feed(feed, kind)
        output = attention.check(**cached)[0]
        spoilt = {name: cached[name].copy() for name in ("past_key", "past_value")}
        for rows in spoilt.values():
            for b, window in enumerate(windows):
                rows[b, :, : (1501 - window) // 64 * 64] = 127 if kind == INT8_CACHE else np.nan
        unread = attention.run_native(cached | spoilt)[0]
        np.testing.assert_array_equal(unread.view(np.uint8), output.view(np.uint8))
        feed["mask"][0, 0, 0] = MASKED
        attention.check(**cached_feed(feed, kind))


@pytest.mark.parametrize("kind", FORMS, ids=str)
def test_a_prompt_keeps_the_bits_and_nothing_behind_a_run_of_its_nodes_is_read(kind: Attention, tmp_path: Path) -> None:
    past, num_nodes = 250, 140
    attention = _attention(tmp_path, 64, 1, 1, kind)
    feed = attention_feed(np.random.default_rng(3), past, num_nodes, 1, 1, 64)
    cached = cached_feed(feed, kind)
    output = attention.check(**cached)[0].reshape(num_nodes, 64)
    spoilt = {name: cached[name].copy() for name in ("key", "value")}
    for rows in spoilt.values():
        rows[..., 100:, :] = 127 if kind == INT8_CACHE else np.nan
    unread = attention.run_native(cached | spoilt)[0].reshape(num_nodes, 64)
    np.testing.assert_array_equal(unread[:40].view(np.uint8), output[:40].view(np.uint8))


@pytest.mark.parametrize("kind", FORMS, ids=str)
@pytest.mark.parametrize("past", [0, 40, 600])
@pytest.mark.parametrize(("head_size", "group_size"), [(64, 8), (64, 1), (80, 3)])
def test_sinks_keep_the_bits(head_size: int, group_size: int, past: int, kind: Attention, tmp_path: Path) -> None:
    """Those below all scores, among them and above them."""
    attention = Operator(tmp_path, *build_attention(head_size, 2, group_size, has_sinks=True), kind)
    rng = np.random.default_rng(head_size + past)
    for num_nodes, middle in ((1, 0), (2, -200), (5, 3), (17, 60)):
        feed = attention_feed(rng, past, num_nodes, 2, group_size, head_size)
        sinks = (middle + 2 * rng.standard_normal(2 * group_size)).astype(np.float32)
        attention.check(**cached_feed(feed | {"sinks": sinks}, kind))


@pytest.mark.parametrize("kind", FORMS, ids=str)
def test_sinks_take_their_share_and_give_nothing(kind: Attention, tmp_path: Path) -> None:
    """Far below all scores they change no bit; at a head's log of its weights' sum they halve its output."""
    feed = attention_feed(np.random.default_rng(3), 100, 5, 2, 3, 64)
    plain = _attention(tmp_path, 64, 2, 3, kind).run_native(cached_feed(feed, kind))[0]
    (tmp_path / "sinks").mkdir()
    attention = Operator(tmp_path / "sinks", *build_attention(64, 2, 3, has_sinks=True), kind)
    low = attention.run_native(cached_feed(feed | {"sinks": np.full(6, -1e4, np.float32)}, kind))[0]
    np.testing.assert_array_equal(low, plain)
    query = feed["query"][0].astype(np.float64)
    keys = np.concatenate([feed["past_key"][0, :, :100], feed["key"][0]], axis=1).repeat(3, 0).astype(np.float64)
    scores = query @ keys.swapaxes(1, 2) * 1.1 / 8 + feed["mask"][0]
    sinks = np.log(np.exp(scores[:, 4]).sum(-1)).astype(np.float32)  # of the last node
    halved = attention.run_native(cached_feed(feed | {"sinks": sinks}, kind))[0]
    merged = halved.ndim == 3
    last, whole = (each[:, 4] if merged else each[:, :, 4] for each in (halved, plain))
    np.testing.assert_allclose(2 * last, whole, atol=0.02)
    assert np.abs(whole).max() > 0.1


def test_sinks_that_do_not_fit_are_refused_when_they_come(tmp_path: Path) -> None:
    for kind in (EXACT, INT8_CACHE):
        folder = tmp_path / kind.kv_dtype
        folder.mkdir()
        sizes, build = build_attention(16, 2, 2, has_sinks=True)
        attention = Operator(folder, sizes | {"sinks": ("X",)}, build, kind)
        feed = cached_feed(attention_feed(np.random.default_rng(0), 5, 3, 2, 2, 16), kind)
        for sinks, words in ((np.zeros(3), "a sink for each head"), (np.array([0, 0, np.inf, 0]), "not all finite")):
            with pytest.raises(Fail, match=words):
                attention.run_native(feed | {"sinks": sinks.astype(np.float32)})


@pytest.mark.parametrize("head_size", [8, 64, 80, 136])
def test_rows_of_an_int8_cache_are_in_steps_of_their_largest(head_size: int, tmp_path: Path) -> None:
    attention = _attention(tmp_path, head_size, 2, 2, INT8_CACHE)
    rng = np.random.default_rng(head_size)
    feed = attention_feed(rng, 3, 20, 2, 2, head_size)
    scales = 10.0 ** rng.uniform(-40, 29, (1, 2, 20, 1))
    key, value = ((feed[name].astype(np.float64) * scales).astype(np.float32) for name in ("key", "value"))
    value[:, :, 3] = 0
    value[:, :, 4, 0] = 1024  # a power of two is its own magnitude
    value[:, :, 4, 1:] = 0
    _, keys, values = attention.check(**cached_feed(feed | {"key": key, "value": value}, INT8_CACHE))
    np.testing.assert_array_equal(values[:, :, 3:], rounded_rows(value))
    for rows, numbers in ((keys.astype(np.int8), rotated_key(key)), (values.astype(np.int8), value)):
        top = np.abs(numbers).max(axis=-1, keepdims=True)
        assert (np.abs(read_rows(rows[:, :, 3:]) - numbers) <= top * (65 / 64 / 254 * 1.001) + 1e-30).all()


def test_rows_of_an_fp16_cache_are_the_nearesthalves(tmp_path: Path) -> None:
    attention = _attention(tmp_path, 80, 2, 2, EXACT_HALF)
    rng = np.random.default_rng(0)
    feed = attention_feed(rng, 3, 20, 2, 2, 80)
    scales = 10.0 ** rng.uniform(-9, 6, (1, 2, 20, 1))
    key, value = ((feed[name].astype(np.float64) * scales).astype(np.float32) for name in ("key", "value"))
    _, keys, values = attention.check(**cached_feed(feed | {"key": key, "value": value}, EXACT_HALF))
    assert np.abs(key).max() > LARGEST_HALF
    for rows, numbers in ((keys, key), (values, value)):
        np.testing.assert_array_equal(rows[:, :, 3:], halves(numbers))


def test_masks_that_do_not_fit_are_refused_when_they_come(tmp_path: Path) -> None:
    attention = _attention(tmp_path, 16, 2, 2, EXACT)
    feed = attention_feed(np.random.default_rng(0), 5, 3, 2, 2, 16)
    for mask in (feed["mask"][:, :, :2], feed["mask"][..., :0], np.zeros((1, 1, 3, 99), np.float32)):
        with pytest.raises(Fail, match="attention: sizes"):
            attention.run_native(feed | {"mask": mask})


def _attention(folder: Path, head_size: int, num_kv_heads: int, group_size: int, kind: Attention) -> Operator:
    return Operator(folder, *build_attention(head_size, num_kv_heads, group_size), kind)
