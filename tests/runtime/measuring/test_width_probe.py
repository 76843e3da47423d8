"""The width probe finds where bits depend on the width of a pass, and mends it where single rows alone are apart."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge.verify.stress import StressDrafter
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import make_decoder
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.inputs import pass_width
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring.width_probe import WidthReport, probe_width, settle_width
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.fake_target import FakeTarget, make_manifest

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


def test_control_alone_they_change_answers() -> None:
    target = OddTarget(range(1, 2))
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


def test_control_wider_drafts_change_answers() -> None:
    target = OddTarget(range(9, 65), SIZES)
    plain = answers(target, None)
    assert answers(target, plain) != plain


def test_a_package_that_promises_no_bits_is_not_limited() -> None:
    target = OddTarget(range(9, 65), SIZES)
    target.manifest = replace(target.manifest, attention="fast")
    _, report = settle_width(target)
    assert (report.is_invariant, report.max_rows) == (False, None)


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


def test_batches_are_wide_enough_already() -> None:
    trees = [DraftTree.root(7), DraftTree.root(8)]
    assert pass_width(trees, min_rows=2) == 1
    assert pass_width(trees[:1], min_rows=2) == 2
