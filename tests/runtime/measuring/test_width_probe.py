"""The width probe finds where bits depend on the width of a pass, and mends it where single rows alone are apart."""

from pathlib import Path

import numpy as np
import pytest

from reader_edge.proof.stress_drafter import StressDrafter
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.inputs import pass_width
from reader_edge_runtime.execution.onnxruntime.host.host_target import HostTarget
from reader_edge_runtime.measuring.width_probe import probe_width, settle_width
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass, Target
from tests.fake_target import FakeTarget, make_manifest

PROMPTS = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7)]


class OddTarget(FakeTarget):
    """Passes of certain numbers of rows have a kernel of their own, whose logits are others."""

    def __init__(self, odd: range) -> None:
        super().__init__(make_manifest())
        self.odd = odd

    def logits_of(self, cache: Cache, wanted: Pass) -> Float32Array:
        logits = super().logits_of(cache, wanted)
        if len(wanted.trees) * pass_width(wanted.trees, self.min_rows) in self.odd:
            logits += np.sin(np.arange(logits.size, dtype=np.float32)).reshape(logits.shape)
        return logits


def answers(target: Target, known: list[list[int]] | None) -> list[list[int]]:
    drafter = StressDrafter(list(zip(PROMPTS, known or [[]] * 3, strict=True)), target.manifest.vocab_size)
    decoder = Decoder(target, drafter, EngineConfig(max_batch=1))
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
