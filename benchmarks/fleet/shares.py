"""How a server's band and computing are divided among the users that it has.

A round of a user takes max(draft_s, link_s / y) + work_s / z seconds: it sends while it drafts, with a part y of the
band, and is verified with a part z of the server. All arrays are float64 (m,), one server's users.
"""

import numpy as np

from reader_edge_runtime.arrays import Float64Array


def uniform_shares(count: int) -> Float64Array:
    """The same for all."""
    return np.full(count, 1.0 / count)


def work_shares(work_s: Float64Array) -> Float64Array:
    """Of computing: those whose sum of work_s / z is least. They go with the roots of what is asked for."""
    return _normal(np.sqrt(work_s))


def band_shares(link_s: Float64Array, draft_s: Float64Array) -> Float64Array:
    """Of the band: those whose sum of max(draft_s, link_s / y) is least.

    Nobody needs more than lets it send while it drafts. Below that shares go with roots, all by one factor, which is
    found by bisection; what nobody needs is spread.
    """
    needs = np.divide(link_s, draft_s, out=np.full_like(link_s, np.inf), where=draft_s > 0)
    if needs.sum() <= 1:
        return _normal(needs)
    roots = np.sqrt(link_s)
    low, high = 0.0, 1.0 / roots.min()  # at which one share alone would be all
    for _ in range(100):
        middle = (low + high) / 2
        if np.minimum(needs, middle * roots).sum() < 1:
            low = middle
        else:
            high = middle
    return _normal(np.minimum(needs, high * roots))


def _normal(shares: Float64Array) -> Float64Array:
    normal: Float64Array = shares / shares.sum()
    return normal
