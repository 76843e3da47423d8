"""Whatever frame comes to a stage: it is answered, or refused with a ReaderEdgeError, within bounded memory."""

from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ReaderEdgeError, StageLostError
from tests.fuzz.memory_limit import memory_limit
from tests.fuzz.mutation import mutated
from tests.random_operations import check_random_operations
from tests.stages_here import CLIENT, StagesHere, pipeline_here, two_passes

MAX_BYTES = 512 << 20
NUM_FRAMES = 12


def test_spoilt_frames_are_answered_or_refused(demo_folder: Path, tmp_path: Path, fuzz_numbers: Iterable[int]) -> None:
    """Each comes behind some that are not spoilt, so that there are rows which it may be about."""
    pytest.importorskip("onnx_ir", reason="the extra 'export' is not installed")
    from reader_edge_export.split.split_package import split_package

    split_package(demo_folder, tmp_path / "stages", 3)
    target = pipeline_here(tmp_path / "stages")
    following = target.in_flight.following
    assert isinstance(following, StagesHere)
    tree = DraftTree([5, 6, 7, 8, 9], [-1, 0, 1, 1, 0], [""] * 5)
    target.forward_two(target.new_cache(1, 16), *two_passes(tree, 2))  # two frames
    check_random_operations(target, seed=4, num_operations=NUM_FRAMES)
    (first, second), frames = following.stages, following.frames
    num_refused = 0
    for number in fuzz_numbers:
        random = Random(f"frame {number}")
        at = random.randrange(NUM_FRAMES)
        for frame in frames[:at]:
            second.answer(CLIENT, memoryview(frame), first.answer(CLIENT, memoryview(frame), None).data.cast("B"))
        spoilt = memoryview(mutated(frames[at], random))
        try:
            with memory_limit(MAX_BYTES):
                second.answer(CLIENT, spoilt, first.answer(CLIENT, spoilt, None).data.cast("B"))
        except ReaderEdgeError:
            num_refused += 1
        except BaseException as error:
            pytest.fail(f"frame {number}, {bytes(spoilt)[:2000]!r}: {error!r}")
        following.come_back(StageLostError("Each has stages that know nothing."))
    assert num_refused
