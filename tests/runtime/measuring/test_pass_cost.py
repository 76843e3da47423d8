"""What a pass costs is measured over a grid; the width probe finds where bits depend on a pass's width."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge.verify.drafters import StressDrafter
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.inputs import pass_width
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring import pass_cost
from reader_edge_runtime.measuring.pass_cost import PassCost, measure_pass_cost
from reader_edge_runtime.measuring.width_probe import WidthReport, probe_width, settle_width
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.fake_images import SeeingTarget, seeing_manifest
from tests.fake_target import FakeTarget, make_manifest


@pytest.mark.long
def test_measurement_covers_the_grid_with_positive_times(demo_folder: Path) -> None:
    cost = measure_pass_cost(HostTarget.open(ModelPackage.open(demo_folder)), max_seconds=0.0)
    assert cost.widths[0] == 1
    assert cost.seconds.shape == (len(cost.pasts), len(cost.widths))
    assert (cost.seconds > 0).all()
    assert cost.row_s >= 0


@pytest.mark.parametrize(("batch_size", "longest"), [(1, 4096), (2, 4096), (8, 1024), (200, 64)])
def test_texts_of_large_batches_are_short_while_they_are_measured(
    batch_size: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pass_cost, "_seconds", lambda *_: 1.0)
    cost = measure_pass_cost(FakeTarget(make_manifest(6, max_context=8192)), batch_size, max_seconds=0.0)
    assert cost.pasts[-1] == longest


@pytest.mark.parametrize(
    ("node_s", "num_widths", "pasts", "num_passes"),
    [
        *((1e-6, 12, (64, 1024, 4096), 2), (0.004, 12, (64, 1024, 4096), 1), (0.015, 7, (64, 1024, 4096), 1)),
        *((0.03, 6, (64, 4096), 1), (0.5, 4, (64, 4096), 1)),
    ],
)
def test_a_slow_model_is_measured_at_fewer_points_and_once_each(
    node_s: float, num_widths: int, pasts: tuple[int, ...], num_passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[tuple[int, int]] = []

    def seconds(_target: object, _cache: object, past: int, trees: list[DraftTree], *_: object) -> float:
        passes.append((past, sum(map(len, trees))))
        return (9 + len(trees[0])) * node_s

    monkeypatch.setattr(pass_cost, "_seconds", seconds)
    cost = measure_pass_cost(FakeTarget(make_manifest(6, max_context=8192)), max_seconds=0.0)
    assert (len(cost.widths), cost.pasts) == (num_widths, pasts)
    assert cost.widths[-1] >= 8
    assert max(num_nodes for _, num_nodes in passes) == cost.widths[-1]  # no pass is wider than what is measured
    assert passes.count((cost.pasts[-1], 4)) == 2 * num_passes
    assert cost.seconds[0].tolist() == pytest.approx([(9 + width) * node_s for width in cost.widths])


def test_passes_that_are_timed_have_tokens_of_many_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of one token choose the same experts of a mixture, and would look cheaper than a draft's."""
    seen: list[list[int]] = []

    def seconds(_target: object, _cache: object, _past: int, trees: list[DraftTree], *_: object) -> float:
        seen.append([token_id for tree in trees for token_id in tree.token_ids])
        return 1e-6

    monkeypatch.setattr(pass_cost, "_seconds", seconds)
    measure_pass_cost(FakeTarget(make_manifest(50_000, max_context=8192)), 4, max_seconds=0.0)
    assert max(map(len, seen)) == 64
    assert all(len(set(token_ids)) == len(token_ids) for token_ids in seen)
    assert all(0 <= token_id < 50_000 for token_ids in seen for token_id in token_ids)


@pytest.mark.parametrize(("cost_of_padding", "share"), [(0.0, 0.0), (0.25, 0.25), (1.0, 1.0)])
def test_one_wide_tree_among_narrow_ones_shows_what_padding_takes(
    cost_of_padding: float, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(target: object, cache: object, past: int, trees: Sequence[DraftTree], *_: object) -> float:
        widest, num_nodes = max(map(len, trees)), sum(map(len, trees))
        return 1 + 0.1 * (num_nodes + cost_of_padding * (widest * len(trees) - num_nodes))

    monkeypatch.setattr(pass_cost, "_seconds", seconds)
    cost = measure_pass_cost(FakeTarget(make_manifest(6, max_context=8192)), max_seconds=0.0)
    assert cost.padding_share == pytest.approx(share)
    assert cost.text_s == pytest.approx((0.0, 0.0))


@pytest.mark.parametrize(("text_s", "found"), [(0.06, 0.06), (-0.06, 0.0)])
def test_a_pass_over_as_many_nodes_shows_what_a_text_adds(
    text_s: float, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def seconds(target: object, cache: object, past: int, trees: Sequence[DraftTree], *_: object) -> float:
        return 1 + 0.1 * sum(map(len, trees)) + text_s * (len(trees) - 1)

    monkeypatch.setattr(pass_cost, "_seconds", seconds)
    cost = measure_pass_cost(FakeTarget(make_manifest(6, max_context=8192)), max_seconds=0.0)
    assert cost.text_s == pytest.approx((found, found))


def test_a_context_too_short_for_as_many_nodes_leaves_batches_unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_cost, "_seconds", lambda *_: 1.0)
    cost = measure_pass_cost(FakeTarget(make_manifest(6, max_context=70)), max_seconds=0.0)
    assert (cost.padding_share, cost.text_s) == (1.0, (0.0, 0.0))


@pytest.mark.parametrize(
    ("node_s", "is_called_back", "level", "shown"),
    [
        (1e-6, False, logging.INFO, "about 1 s"),  # no wait to explain
        (5e-4, False, logging.WARNING, "about 4 s"),
        (5e-4, True, logging.INFO, "about 4 s"),
        (0.004, False, logging.WARNING, "about 8 s"),
    ],
)
def test_a_line_of_the_log_says_what_is_measured_and_about_how_long_it_takes(
    node_s: float,
    is_called_back: bool,
    level: int,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning, which is seen without any settings, of a wait of which nobody is called back."""
    calls: list[tuple[int, int]] = []

    def seconds(_target: object, _cache: object, _past: int, trees: list[DraftTree], *_: object) -> float:
        return (9 + len(trees[0])) * node_s

    def note(done: int, total: int) -> None:
        calls.append((done, total))

    monkeypatch.setattr(pass_cost, "_seconds", seconds)
    caplog.set_level(logging.INFO, "reader_edge")
    target = FakeTarget(make_manifest(6, max_context=8192))
    measure_pass_cost(target, on_progress=note if is_called_back else None)
    (line,) = caplog.records
    assert (line.name, line.levelno) == ("reader_edge.measuring", level)
    assert (
        line.getMessage()
        == f"Measuring what passes take on this machine, for later starts too: {shown}, more beside other work."
    )
    assert calls[:2] == [(0, 6), (1, 6)][: 2 * is_called_back]


def test_a_first_pass_that_other_work_slowed_down_makes_no_estimate_of_no_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pass_cost, "_seconds", lambda *given: 0.1 if len(given[3][0]) == 1 else 0.02)
    caplog.set_level(logging.INFO, "reader_edge")
    measure_pass_cost(FakeTarget(make_manifest(6, max_context=4096)), max_seconds=0.0)
    assert "about 10 s" in caplog.text  # as if wide passes took no less


@pytest.mark.parametrize(("slowdown", "is_in_doubt"), [(1.02, False), (1.5, True)])
def test_rounds_far_apart_leave_a_doubt(slowdown: float, is_in_doubt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds_done = 0

    def note(done: int, total: int) -> None:
        nonlocal rounds_done
        rounds_done = done

    monkeypatch.setattr(pass_cost, "_seconds", lambda *_: slowdown if rounds_done else 1.0)
    cost = measure_pass_cost(FakeTarget(make_manifest(6, max_context=8192)), max_seconds=0.0, on_progress=note)
    assert cost.is_in_doubt == is_in_doubt
    assert cost.spread == pytest.approx(slowdown - 1)


def test_longer_texts_than_were_measured_take_what_all_widths_say_of_a_further_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each width's own difference would be wrong by a third: of 10 % of its time, 3 % are chance."""
    rng = np.random.default_rng(0)

    def true(past: int, width: int) -> float:
        return 0.1 + 0.005 * width + past * (2e-6 + 1e-6 * width)

    def seconds(_target: object, _cache: object, past: int, trees: list[DraftTree], *_: object) -> float:
        return true(past, len(trees[0])) * (1 + 0.03 * abs(rng.normal()))

    monkeypatch.setattr(pass_cost, "_seconds", seconds)
    cost = measure_pass_cost(FakeTarget(make_manifest(6, max_context=1 << 15)), max_seconds=0.0)
    for past in (8192, 16_384, 32_000):
        wanted = [true(past, width) for width in cost.widths]
        assert cost.pass_seconds(past)[list(cost.widths)] == pytest.approx(np.array(wanted), rel=0.1)
    assert cost.attention(64) == (0.0, 0.0)
    assert cost.attention(16_384) == pytest.approx((16_320 * 2e-6, 16_320 * 1e-6), rel=0.2)


@pytest.mark.parametrize(("read_s", "node_s"), [(0.0, 1e-6), (1e-6, 0.0), (0.0, 0.0), (2e-6, 1e-6)])
def test_what_a_further_row_takes_is_never_less_than_nothing(read_s: float, node_s: float) -> None:
    widths = (1, 2, 8)
    rows = [[0.01 + past * (read_s + node_s * width) for width in widths] for past in (64, 512)]
    cost = PassCost(1, (64, 512), widths, np.array(rows))
    assert cost.pass_seconds(4096)[8] == pytest.approx(0.01 + 4096 * (read_s + 8 * node_s))
    falling = PassCost(1, (64, 512), widths, np.array(rows)[::-1])
    assert falling.pass_seconds(4096)[1:].tolist() == falling.pass_seconds(512)[1:].tolist()
    one = PassCost(1, (64, 512), (1,), np.array([[0.01], [0.02]]))
    assert one.pass_seconds(960)[1] == pytest.approx(0.03)


PROMPTS = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7)]


class OddTarget(FakeTarget):
    """Passes of certain numbers of rows have a kernel of their own, whose logits are others."""

    def __init__(self, odd: range, pass_sizes: tuple[int, ...] = ()) -> None:
        super().__init__(make_manifest())
        self.odd = odd
        self.pass_sizes = pass_sizes

    def logits_of(self, cache: Cache, wanted: Pass) -> Float32Array:
        logits = super().logits_of(cache, wanted)
        width = pass_width(wanted.trees, self.min_rows)
        width = next((size for size in self.pass_sizes if size >= width), width)
        if len(wanted.trees) * width in self.odd:
            logits += np.sin(np.arange(logits.size, dtype=np.float32)).reshape(logits.shape)
        return logits


def answers(
    target: Target, known: list[list[int]] | None, report: WidthReport | None = None, max_batch: int = 1
) -> list[list[int]]:
    drafter = StressDrafter(list(zip(PROMPTS, known or [[]] * 3, strict=True)), target.manifest.vocab_size)
    decoder = make_decoder(target, drafter, EngineConfig(max_batch=max_batch), report=report)
    config = GenerationConfig(max_tokens=60, is_drafted=known is not None)
    sequences = [decoder.submit(prompt, config) for prompt in PROMPTS]
    decoder.finish(*sequences)
    return [list(sequence.output_token_ids) for sequence in sequences]


def test_single_rows_with_a_kernel_of_their_own_get_company() -> None:
    target = OddTarget(range(1, 2))
    assert not probe_width(target).is_invariant
    settled, report = settle_width(target)
    assert report.is_invariant
    assert (target.min_rows, settled.min_rows) == (1, 2)
    plain = answers(settled, None)
    assert answers(settled, plain) == plain


class CutImages(SeeingTarget):
    """Other features in passes behind others."""

    def logits_of(self, cache: Cache, wanted: Pass) -> Float32Array:
        if wanted.images is not None and cache.lengths[0]:
            wanted = wanted._replace(images=wanted.images._replace(features=wanted.images.features + 1))
        return super().logits_of(cache, wanted)


@pytest.mark.parametrize("seen_whole", ["none", "all"])
def test_the_probe_sees_an_image_whose_rows_depend_on_where_passes_begin(seen_whole: str) -> None:
    manifest = seeing_manifest(seen_whole=seen_whole)
    assert probe_width(SeeingTarget(manifest)).is_invariant
    assert probe_width(CutImages(manifest)).num_equal == probe_width(CutImages(manifest)).num_rows - 1


def test_control_kernels_of_their_own_change_answers() -> None:
    target = OddTarget(range(1, 2))
    plain = answers(target, None)
    assert answers(target, plain) != plain
    target = OddTarget(range(9, 65), SIZES)
    plain = answers(target, None)
    assert answers(target, plain) != plain


@pytest.mark.parametrize("odd", [range(0), range(3, 9), range(12, 40)])
def test_other_targets_are_left_as_they_are(odd: range) -> None:
    target = OddTarget(odd)
    settled, report = settle_width(target)
    assert report.is_invariant == (not odd)
    assert settled is target


SIZES = (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize(("odd", "max_rows"), [(range(0), 64), (range(9, 65), 8), (range(33, 99), 32)])
def test_drafts_keep_to_passes_with_the_bits_of_one_node(odd: range, max_rows: int) -> None:
    """Of a padded target, in batches too."""
    target = OddTarget(odd, SIZES)
    settled, report = settle_width(target)
    assert (settled, report.is_invariant, report.max_rows) == (target, True, max_rows)
    plain = answers(target, None)
    for max_batch in (1, 2, 3):
        assert answers(target, plain, report, max_batch) == plain


@pytest.mark.parametrize(("max_context", "num_rows"), [(12, 0), (16, 8), (128, 16)])
def test_a_short_context_is_probed_as_far_as_it_goes(max_context: int, num_rows: int) -> None:
    target = FakeTarget(make_manifest(max_context=max_context))
    _, report = settle_width(target)
    assert (report.num_rows, report.is_invariant) == (num_rows, True)


def test_packages_without_promised_bits_and_batches_are_left_alone() -> None:
    target = OddTarget(range(9, 65), SIZES)
    target.manifest = replace(target.manifest, attention="fast")
    _, report = settle_width(target)
    assert (report.is_invariant, report.max_rows) == (False, None)
    trees = [DraftTree.root(7), DraftTree.root(8)]
    assert pass_width(trees, min_rows=2) == 1
    assert pass_width(trees[:1], min_rows=2) == 2


def test_a_second_row_changes_nothing_that_anybody_sees(demo_folder: Path) -> None:
    """Bits are those of single rows here, also for the last token that the context holds."""
    single = HostTarget.open(ModelPackage.open(demo_folder))
    end = single.manifest.max_context
    seen = []
    for target in (single, single.with_min_rows(2)):
        for past in (0, 40, end - 2):
            cache = target.new_cache(1, past)  # the pass makes room for itself
            cache.lengths[0] = past
            result = target.forward(cache, Pass(0, [DraftTree.root(7)], [[0]], wants_logits=True))
            assert cache.capacity >= past + target.min_rows
            seen.append((result.wanted_logits.tobytes(), cache.slab[:, 0, :, past].tobytes()))
    assert seen[:3] == seen[3:]
