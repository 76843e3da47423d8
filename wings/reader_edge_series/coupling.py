"""Exact couplings of Gaussians: a patch drawn from one becomes one drawn from another, and stays itself most often.

A draft x of q counts for the model's p with probability min(1, p(x) / q(x)), as often as any coupling can. Otherwise
another comes in its place, of the law of what p has beyond q, so that what comes has the law p, whatever q is:

- Where both have the same deviations it is x mirrored between the means (maximal reflection coupling). No loop.
- Else draws of p are thinned: one is kept with probability max(0, 1 - q / p). No pass of a model.
"""

import numpy as np

from reader_edge_runtime.arrays import BoolArray, Float64Array
from reader_edge_series.patch_distribution import Gaussian

_FIRST_DRAWS, _MOST_DRAWS = 4, 256  # of p at once, for each patch that is looked for


def log_ratio(bound: Gaussian, draft: Gaussian, patches: Float64Array) -> Float64Array:
    """ln p - ln q of patches (..., P), over all of their values: (...)."""
    own, others = (patches - bound.mean) / bound.scale, (patches - draft.mean) / draft.scale
    values = 0.5 * (others * others - own * own) + np.log(draft.scale / bound.scale)
    ratio: Float64Array = np.add.reduce(values, -1)
    return ratio


def drawn(gaussian: Gaussian, random: np.random.Generator) -> Float64Array:
    """Patches of Gaussians (..., P), drafts or the model's own: (..., P)."""
    return gaussian.drawn(random.standard_normal(gaussian.mean.shape))


def accepted(bound: Gaussian, draft: Gaussian, patches: Float64Array, random: np.random.Generator) -> BoolArray:
    """Which of the patches (..., P), drawn from `draft`, count as draws from `bound`."""
    ratio = log_ratio(bound, draft, patches)
    return -random.standard_exponential(ratio.shape) < ratio


def replaced(bound: Gaussian, draft: Gaussian, patches: Float64Array, random: np.random.Generator) -> Float64Array:
    """What comes in the place of patches (B, P) that did not count."""
    mirrored = np.logical_and.reduce(bound.scale == draft.scale, -1)
    if not mirrored.any():
        return _thinned(bound, draft, random)
    values = patches.copy()
    values[mirrored] = _reflected(bound.where(mirrored), draft.where(mirrored), patches[mirrored])
    values[~mirrored] = _thinned(bound.where(~mirrored), draft.where(~mirrored), random)
    return values


def _reflected(bound: Gaussian, draft: Gaussian, patches: Float64Array) -> Float64Array:
    apart = (bound.mean - draft.mean) / bound.scale
    noise = (patches - draft.mean) / draft.scale
    along = (noise * apart).sum(-1, keepdims=True) / (apart**2).sum(-1, keepdims=True)
    return bound.drawn(noise - 2 * along * apart)


def _thinned(bound: Gaussian, draft: Gaussian, random: np.random.Generator) -> Float64Array:
    values, missing, num_draws = np.empty_like(bound.mean), np.arange(len(bound.mean)), _FIRST_DRAWS
    while True:
        drawn = bound.drawn(random.standard_normal((num_draws, *bound.mean.shape)))
        is_kept = random.standard_exponential(drawn.shape[:2]) < log_ratio(bound, draft, drawn)
        firsts = is_kept.argmax(0), np.arange(len(missing))
        values[missing] = drawn[firsts]
        is_missing = ~is_kept[firsts]
        if not is_missing.any():
            return values
        missing, num_draws = missing[is_missing], min(4 * num_draws, _MOST_DRAWS)
        bound, draft = bound.where(is_missing), draft.where(is_missing)
