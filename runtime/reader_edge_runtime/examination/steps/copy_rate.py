"""How fast this machine moves memory: the bound of a pass, which reads every weight."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_BYTES = 32 << 20  # of a thread's copy, more than its share of the caches of most processors
_LEAST_ROUNDS = 3  # in the first, pages are made


def copy_rate(num_threads: int, max_seconds: float) -> float:
    """Bytes a second, read and written, that so many threads copy together; the best of several rounds."""
    arrays = [(np.ones(_BYTES, np.uint8), np.zeros(_BYTES, np.uint8)) for _ in range(num_threads)]
    seconds: list[float] = []
    start = time.perf_counter()
    with ThreadPoolExecutor(num_threads) as pool:
        while len(seconds) < _LEAST_ROUNDS or time.perf_counter() - start < max_seconds:
            began = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), arrays))
            seconds.append(time.perf_counter() - began)
    return 2 * _BYTES * num_threads / min(seconds)
