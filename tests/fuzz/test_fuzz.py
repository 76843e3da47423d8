"""Whatever a file from outside holds: it is read, or refused with a ReaderEdgeError, within bounded memory.

`pytest tests/fuzz --fuzz-seconds 60` tries more, `--fuzz-inputs 100000 --timeout 0` so many. A failure names its input;
what broke something belongs in corpus.py.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.errors import ReaderEdgeError, StageLostError
from tests.fuzz.corpus import CORPUS
from tests.fuzz.mutation import memory_limit, mutated
from tests.fuzz.subjects import SUBJECTS
from tests.random_operations import check_random_operations
from tests.stages_here import CLIENT, StagesHere, pipeline_here, two_passes

MAX_BYTES = 512 << 20


@pytest.fixture(scope="module", autouse=True)
def _loaded() -> None:
    KernelLoader.shared().wait()  # which takes memory of its own


def read(kind: str, content: bytes, folder: Path) -> None:
    path = folder / kind
    path.write_bytes(content)
    with memory_limit(MAX_BYTES), suppress(ReaderEdgeError):
        SUBJECTS[kind].read(path)


@pytest.mark.parametrize("kind", SUBJECTS)
def test_good_files_are_read(kind: str, tmp_path: Path) -> None:
    """Else the tests below would prove nothing."""
    for content in SUBJECTS[kind].samples(tmp_path):
        path = tmp_path / kind
        path.write_bytes(content)
        SUBJECTS[kind].read(path)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, attacks in CORPUS.items() for name in attacks])
def test_known_attacks_end_in_a_result_or_an_error_of_ours(kind: str, name: str, tmp_path: Path) -> None:
    read(kind, CORPUS[kind][name], tmp_path)


@pytest.mark.parametrize("kind", SUBJECTS)
def test_spoilt_files_end_in_a_result_or_an_error(kind: str, tmp_path: Path, fuzz_numbers: Iterable[int]) -> None:
    subject = SUBJECTS[kind]
    samples = subject.samples(tmp_path)
    for number in fuzz_numbers:
        random = Random(f"{kind} {number}")
        content = subject.spoil(random.choice(samples), random)
        try:
            read(kind, content, tmp_path)
        except BaseException as error:
            pytest.fail(f"input {number} of {kind}, {len(content)} bytes, {content[:2000]!r}: {error!r}")


_REFUSED = ("adapter's config", "adapter's weights", "adapter in gguf", "fp8 config", "fp8 weights", "part of gguf")


@pytest.mark.long
@pytest.mark.parametrize("kind", _REFUSED)
def test_two_hundred_spoilt_files_are_refused_in_a_sentence(kind: str, tmp_path: Path) -> None:
    subject, refused = SUBJECTS[kind], dict[bytes, str]()
    samples = subject.samples(tmp_path)
    for number in range(2000):
        random = Random(f"{kind} {number}")
        content = subject.spoil(random.choice(samples), random)
        (tmp_path / kind).write_bytes(content)
        try:
            with memory_limit(MAX_BYTES):
                subject.read(tmp_path / kind)
        except ReaderEdgeError as refusal:
            refused[content] = str(refusal)
        if len(refused) == 200:
            break
    assert len(refused) == 200
    assert [sentence for sentence in refused.values() if not sentence.isprintable()] == []


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
