"""The written graph of a patch decoder against its module: cached passes say what a pass over the whole chain says."""

import numpy as np
import torch

from reader_edge_export.series.patch_module import PatchModule
from reader_edge_runtime.errors import ParityError
from reader_edge_runtime.series.patch_target import PatchTarget

MAX_ERROR = 1e-5
_PASSES = (24, 1, 4, 60, 3, 1, 30)  # patches at once; together more than a window
_NUM_CHAINS = 2


def check_patches(target: PatchTarget, module: PatchModule) -> float:
    """The largest difference of any number, over the largest number. Raises ParityError beyond MAX_ERROR."""
    sizes = target.sizes
    chains = np.random.default_rng(0).standard_normal((_NUM_CHAINS, sum(_PASSES), sizes.patch_size))
    patches = np.cumsum(0.3 * chains, axis=1).clip(-4, 4).astype(np.float32)
    with torch.no_grad():
        expected = module.said(torch.from_numpy(patches)).numpy()
    cache, found, start = target.new_cache(_NUM_CHAINS, 8), [], 0
    for number in _PASSES:
        rows = np.broadcast_to(np.arange(number), (_NUM_CHAINS, number))
        found.append(target.forward(cache, 0, patches[:, start : start + number], rows))
        for slot in range(_NUM_CHAINS):
            cache.commit(slot, range(number))
        start += number
    error = float(np.abs(np.concatenate(found, axis=1) - expected).max() / max(1.0, np.abs(expected).max()))
    if not error <= MAX_ERROR:
        raise ParityError(f"The graph strays by {error:.2g} from its module: please report it.")
    return error
