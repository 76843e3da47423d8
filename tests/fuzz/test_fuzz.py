"""Whatever a file from outside holds: it is read, or refused with a ReaderEdgeError, within bounded memory.

`pytest tests/fuzz --fuzz-seconds 60` tries more, `--fuzz-inputs 100000 --timeout 0` so many. A failure names its input;
what broke something belongs in corpus.py.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from reader_edge_runtime.drafting.kernel_loader import KernelLoader
from reader_edge_runtime.errors import ReaderEdgeError
from tests.fuzz.corpus import CORPUS
from tests.fuzz.memory_limit import memory_limit
from tests.fuzz.subjects import SUBJECTS

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
def test_spoilt_files_end_in_a_result_or_an_error_of_ours(
    kind: str, tmp_path: Path, fuzz_numbers: Iterable[int]
) -> None:
    subject = SUBJECTS[kind]
    samples = subject.samples(tmp_path)
    for number in fuzz_numbers:
        random = Random(f"{kind} {number}")
        content = subject.spoil(random.choice(samples), random)
        try:
            read(kind, content, tmp_path)
        except BaseException as error:
            pytest.fail(f"input {number} of {kind}, {len(content)} bytes, {content[:2000]!r}: {error!r}")
