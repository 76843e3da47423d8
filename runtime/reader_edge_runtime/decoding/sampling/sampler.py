"""From logits to one token: the distribution, one draw from it, and log-probabilities as the target gives them."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from reader_edge_runtime.arrays import BoolArray, Float32Array, Float64Array, Int64Array
from reader_edge_runtime.config import SamplingConfig
from reader_edge_runtime.errors import ConfigError

_BLOCK = 512  # tokens that a draw from the whole vocabulary skips together
_LEAST_TEMPERATURE = 1e-20  # draws among the best tokens alone already; below it float32 divides by nothing
_ROUNDING = 1e-4  # more than float32 may lose where a token is ruled out before its exact probability is known


class Sampler:
    """The choices of one sequence.

    One random number belongs to each (seed, position), whatever is drafted: drawing a single token from the target's
    own distribution at a node, then walking to the child that bears it, is exact for drafters without probabilities.
    """

    def __init__(self, config: SamplingConfig, vocab_size: int, prompt_token_ids: Sequence[int]) -> None:
        self._config = config
        self._temperature = max(config.temperature, _LEAST_TEMPERATURE) if config.temperature else 0.0
        self._bias_ids = np.array(list(config.logit_bias), np.int64)
        self._bias = np.array(list(config.logit_bias.values()), np.float32)
        if self._bias_ids.size and self._bias_ids.max() >= vocab_size:
            problem = f"logit_bias names token {self._bias_ids.max()}, but the vocabulary has {vocab_size}"
            raise ConfigError(f"{problem}: name ids from 0 to {vocab_size - 1}.")
        self._seen = np.zeros(vocab_size if config.repetition_penalty != 1 else 0, np.bool_)
        if self._seen.size:
            self._seen[list(prompt_token_ids)] = True
        has_penalty = config.frequency_penalty != 0 or config.presence_penalty != 0
        self._counts: Counter[int] = Counter()  # of the answer's tokens
        self._penalties = np.zeros(vocab_size if has_penalty else 0, np.float32)  # which their counts come to

    @property
    def takes_best(self) -> bool:
        """Whether the choice is the highest logit, unchanged, the lowest id of equals; a child that chooses says so."""
        is_own = type(self).peek is Sampler.peek
        return is_own and self._temperature == 0 and not self._is_adjusting

    def peek_best(self, best_id: int, position: int) -> int:
        """What `peek` gives where it takes the best, for a caller who knows the best without the logits."""
        return best_id

    def peek(self, logits: Float32Array, position: int) -> int:
        """The token to choose at `position` (tokens before it), from logits (V,) of the node before."""
        if self._temperature == 0:
            return int(np.argmax(self._adjusted(logits)))
        return self._draw(self._adjusted(logits), random_unit(self._config.seed, position))

    def take(self, token_id: int) -> None:
        """A token was emitted, chosen here or not: hold it against the next choice. Not called where `takes_best`."""
        if self._seen.size:
            self._seen[token_id] = True
        if self._penalties.size:
            self._counts[token_id] += 1
            config = self._config
            self._penalties[token_id] = config.presence_penalty + config.frequency_penalty * self._counts[token_id]

    @property
    def _is_adjusting(self) -> bool:
        return bool(self._seen.size or self._penalties.size or self._bias_ids.size)

    def _draw(self, logits: Float32Array, unit: float) -> int:
        """The token at share `unit` of the distribution, tokens in the order of their ids."""
        if self._is_cut(logits):
            token_ids, weights = self._kept(logits)
            cumulative = np.cumsum(weights)
            return int(token_ids[_place(cumulative, unit * cumulative[-1])])
        # All tokens may be drawn: first a block of them, then one of the block.
        weights_of_all = self._weights(logits)
        masses = np.add.reduceat(weights_of_all, np.arange(0, len(logits), _BLOCK), dtype=np.float64)
        cumulative = np.cumsum(masses)
        draw = unit * cumulative[-1]
        block = _place(cumulative, draw)
        inside = np.cumsum(weights_of_all[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
        return block * _BLOCK + _place(inside, draw - (cumulative[block] - masses[block]))

    def _is_cut(self, logits: Float32Array) -> bool:
        config = self._config
        return 0 < config.top_k < len(logits) or config.top_p < 1 or config.min_p > 0

    def _weights(self, logits: Float32Array) -> Float32Array:
        """Probabilities (V,) relative to the most likely token's."""
        weights: Float32Array = np.exp((logits - logits.max()) / np.float32(self._temperature))
        return weights

    def _kept(self, logits: Float32Array) -> tuple[Int64Array, Float64Array]:
        """Ids, ascending, of the tokens that may be drawn, and their probabilities but for a common factor.

        Most of a vocabulary is ruled out by cheap comparisons before anything is sorted.
        """
        config = self._config
        best = logits.max()
        mass_left_out = 0.0
        if 0 < config.top_k < len(logits):
            token_ids = _top(logits, config.top_k)
        elif config.top_p < 1:
            token_ids, mass_left_out = _likely(self._weights(logits), config.top_p)
        else:
            token_ids = np.flatnonzero(logits >= best + self._temperature * math.log(config.min_p) - _ROUNDING)
        weights: Float64Array = np.exp((logits[token_ids].astype(np.float64) - best) / self._temperature)
        if config.top_p < 1:
            is_kept = _in_nucleus(weights / (weights.sum() + mass_left_out), config.top_p)
            token_ids, weights = token_ids[is_kept], weights[is_kept]
        if config.min_p > 0:
            is_kept = weights >= config.min_p * weights.max()
            token_ids, weights = token_ids[is_kept], weights[is_kept]
        return token_ids, weights

    def _adjusted(self, logits: Float32Array) -> Float32Array:
        if not self._is_adjusting:
            return logits
        adjusted = logits.copy()
        if self._seen.size:
            seen = adjusted[self._seen]
            penalty = np.float32(self._config.repetition_penalty)
            adjusted[self._seen] = np.where(seen > 0, seen / penalty, seen * penalty)
        if self._penalties.size:
            adjusted -= self._penalties
        adjusted[self._bias_ids] += self._bias
        return adjusted


def _place(cumulative: Float64Array, draw: float) -> int:
    """Where a draw from 0 to the total falls; rounding up to the total lands on the last that adds anything."""
    last = int(np.searchsorted(cumulative, cumulative[-1]))
    return min(int(np.searchsorted(cumulative, draw, side="right")), last)


def _top(logits: Float32Array, num: int) -> Int64Array:
    """Ids of the `num` highest logits, and of those equal to the last of them."""
    candidates: Int64Array = np.arange(len(logits))
    for distance in (4.0, 8.0, 12.0):
        near = np.flatnonzero(logits >= logits.max() - distance)
        if len(near) >= num:
            candidates = near
            break
    lowest = np.partition(logits[candidates], -num)[-num]
    top: Int64Array = candidates[logits[candidates] >= lowest]
    return top


def _likely(weights: Float32Array, top_p: float) -> tuple[Int64Array, float]:
    """Ids of tokens among which is the nucleus of `top_p`, and the weight of all others together."""
    total = float(weights.sum(dtype=np.float64))
    # All tokens below the last floor together hold less than 1 - top_p.
    for floor in (1e-3, 1e-5, (1 - top_p) / len(weights)):
        token_ids = np.flatnonzero(weights >= floor * total)
        mass = float(weights[token_ids].sum(dtype=np.float64))
        if mass > (top_p + _ROUNDING) * total:
            break
    return token_ids, total - mass


def _in_nucleus(probabilities: Float64Array, top_p: float) -> BoolArray:
    """Which are the most likely that reach the mass `top_p`, at least one; of equals, the first come first."""
    order = np.argsort(-probabilities, kind="stable")
    sorted_probabilities = probabilities[order]
    is_kept = np.zeros(len(probabilities), np.bool_)
    is_kept[order] = np.cumsum(sorted_probabilities) - sorted_probabilities < top_p
    is_kept[order[0]] = True
    return is_kept


def random_unit(seed: int, position: int) -> float:
    """The uniform number in [0, 1) of a (seed, position): Philox 4x64 (Salmon et al., SC 2011) as a counter."""
    return int(np.random.Philox(key=seed, counter=position).random_raw() >> 11) * 2.0**-53


class TokenLogprob(NamedTuple):
    """Natural logarithms of probabilities at temperature 1, before penalties and biases.

    logprob: of the token that was chosen. top: the most likely tokens' ids and logprobs, best first, equals by id.
    """

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(logits: Float32Array, token_id: int, num_top: int) -> TokenLogprob:
    """What logits (V,) give a token, and the `num_top` best: the same bits give the same numbers."""
    best = logits.max()
    total = float(np.log(np.exp(logits - best).sum(dtype=np.float64)))

    def logprob(each: int) -> float:
        return float(logits[each] - best) - total

    num_top = min(num_top, len(logits))
    if not num_top:
        return TokenLogprob(logprob(token_id))
    least = np.partition(logits, -num_top)[-num_top]
    candidates = np.flatnonzero(logits >= least)
    order = np.argsort(-logits[candidates], kind="stable")[:num_top]
    return TokenLogprob(logprob(token_id), tuple((int(each), logprob(int(each))) for each in candidates[order]))
