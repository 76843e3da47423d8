"""A full disk, for as long as a block runs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def small_disk(num_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond so many bytes.

    No fixture, as those end behind the test's report: where that goes into a longer file, the whole run would end.
    """
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
