"""A prompt's rows are harvested where what they save is worth the time they take."""

from dataclasses import replace

import numpy as np
import pytest

from reader_edge_runtime.config import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.planning import harvest
from reader_edge_runtime.decoding.planning.harvest import worthwhile_rows
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.measuring.verify_cost import VerifyCost
from reader_edge_runtime.target import Cache, ForwardResult, Pass
from tests.fake_target import FakeTarget, make_manifest

COST = VerifyCost(1, (64, 512), (1, 64), np.array([[0.01, 0.02], [0.02, 0.04]]), row_s=1e-4)


def test_dear_rows_are_not_read_and_cheap_or_unmeasured_ones_are() -> None:
    break_even = float(COST.pass_seconds(64)[harvest._TYPICAL_WIDTH]) / harvest._ROWS_A_PASS
    assert worthwhile_rows(replace(COST, row_s=0.99 * break_even), 64) == 64
    assert worthwhile_rows(replace(COST, row_s=1.01 * break_even), 64) == 0
    assert worthwhile_rows(replace(COST, row_s=0.0), 64) == 64


@pytest.mark.parametrize(("max_rows", "asked", "expected"), [(0, 64, 1), (5, 64, 5), (100, 7, 7)])
def test_a_prompt_is_read_at_so_many_rows(
    max_rows: int, asked: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FakeTarget(make_manifest(8))
    numbers: list[int] = []
    forward = target.forward

    def counted(cache: Cache, wanted: Pass) -> ForwardResult:
        numbers.append(len(wanted.rows[0]))
        return forward(cache, wanted)

    monkeypatch.setattr(target, "forward", counted)
    drafter = RetrievalDrafter(DraftConfig(max_harvested_tokens=asked)).wait()
    decoder = Decoder(target, drafter, EngineConfig())
    decoder.max_harvested_rows = max_rows
    decoder.submit([1, 2, 3, 4] * 8, GenerationConfig(max_tokens=2))
    decoder.step()
    assert numbers == [expected]
