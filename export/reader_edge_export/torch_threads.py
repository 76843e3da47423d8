"""How many threads one call of PyTorch takes."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread_a_call() -> Iterator[None]:
    """While entered, a call runs on the thread that makes it: for work whose own threads keep all cores busy."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
