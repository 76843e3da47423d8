"""How fast this machine moves memory: the bound of a pass, which reads every weight."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_BYTES = 64 << 20  # that all threads copy: with the copies more than most caches hold, and little of any memory
_LEAST_ROUNDS = 3  # in the first, pages are made


def copy_rate(num_threads: int, max_seconds: float) -> float:
    """Bytes a second, read and written, that so many threads copy together; the best of several rounds."""
    share = _BYTES // num_threads
    arrays = [(np.ones(share, np.uint8), np.zeros(share, np.uint8)) for _ in range(num_threads)]
    seconds: list[float] = []
    start = time.perf_counter()
    with ThreadPoolExecutor(num_threads) as pool:
        while len(seconds) < _LEAST_ROUNDS or time.perf_counter() - start < max_seconds:
            began = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), arrays))
            seconds.append(time.perf_counter() - began)
    return 2 * share * num_threads / min(seconds)
