"""The width probe finds where bits depend on the width of a pass, and mends it where single rows alone are apart."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from reader_edge.proof.stress_drafter import StressDrafter
from reader_edge_runtime.config import EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_target import ForwardResult, TargetModel
from reader_edge_runtime.execution.onnxruntime.host.kv_cache import KVCache
from reader_edge_runtime.measuring.width_probe import probe_width, settle_width
from reader_edge_runtime.package.model_package import ModelPackage
from tests.fake_target import FakeTarget, make_manifest

PROMPTS = [(3, 1, 4, 1, 5), (9, 2, 6), (5, 3, 5, 8, 9, 7)]


class OddTarget(FakeTarget):
    """Passes of certain numbers of rows have a kernel of their own, whose logits are others."""

    def __init__(self, odd: range) -> None:
        super().__init__(make_manifest())
        self.odd = odd

    def forward(
        self, cache: KVCache, first_slot: int, trees: Sequence[DraftTree], logit_rows: Sequence[Sequence[int]]
    ) -> ForwardResult:
        result = super().forward(cache, first_slot, trees, logit_rows)
        if len(trees) * self.num_nodes(trees) not in self.odd:
            return result
        logits = result.logits + np.sin(np.arange(result.logits.size, dtype=np.float32)).reshape(result.logits.shape)
        top_ids = np.argsort(-logits, axis=-1, kind="stable")[..., : self.manifest.top_k]
        return ForwardResult(top_ids, np.take_along_axis(logits, top_ids, axis=-1), lambda: logits)


def answers(target: OddTarget, known: list[list[int]] | None) -> list[list[int]]:
    drafter = StressDrafter(dict(zip(PROMPTS, known or [[]] * 3, strict=True)), target.manifest.vocab_size)
    decoder = Decoder(cast(TargetModel, target), drafter, EngineConfig(max_batch=1))
    config = GenerationConfig(max_tokens=60, is_drafted=known is not None)
    sequences = [decoder.submit(prompt, config) for prompt in PROMPTS]
    while any(sequence.finish_reason is None for sequence in sequences):
        decoder.step()
    return [list(sequence.output_token_ids) for sequence in sequences]


def test_single_rows_with_a_kernel_of_their_own_get_company() -> None:
    target = OddTarget(range(1, 2))
    assert not probe_width(cast(TargetModel, target)).is_invariant
    assert settle_width(cast(TargetModel, target)).is_invariant
    assert target.min_rows == 2
    plain = answers(target, None)
    assert answers(target, plain) == plain


def test_control_alone_they_change_answers() -> None:
    target = OddTarget(range(1, 2))
    plain = answers(target, None)
    assert answers(target, plain) != plain


@pytest.mark.parametrize("odd", [range(0), range(3, 9), range(12, 40)])
def test_other_targets_are_left_as_they_are(odd: range) -> None:
    target = OddTarget(odd)
    report = settle_width(cast(TargetModel, target))
    assert report.is_invariant == (not odd)
    assert target.min_rows == 1


def test_a_second_row_changes_nothing_that_anybody_sees(demo_folder: Path) -> None:
    """Bits are those of single rows here, also for the last token that the context holds."""
    target = TargetModel.open(ModelPackage.open(demo_folder))
    end = target.manifest.max_context
    results = []
    for target.min_rows in (1, 2):
        for past in (0, 40, end - 2):
            cache = target.new_cache(1, end)
            cache.lengths[0] = past
            tree = DraftTree.root(7)
            assert target.build_inputs([past], [tree], [[0]])["input_ids"].shape == (1, target.min_rows)
            result = target.forward(cache, 0, [tree], [[0]])
            results.append((target.min_rows, result.logits.tobytes(), cache.slab[:, 0, :, past].tobytes()))
    single, paired = ([each[1:] for each in results if each[0] == rows] for rows in (1, 2))
    assert single == paired


def test_batches_are_wide_enough_already(demo_folder: Path) -> None:
    target = TargetModel.open(ModelPackage.open(demo_folder))
    target.min_rows = 2
    trees = [DraftTree.root(7), DraftTree.root(8)]
    assert target.num_nodes(trees) == 1
    assert target.num_nodes(trees[:1]) == 2
