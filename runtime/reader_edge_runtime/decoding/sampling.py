"""From logits to one token: the distribution, and one draw from it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.config import SamplingConfig
from reader_edge_runtime.errors import ConfigError

Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]


class Sampler:
    """The choices of one sequence.

    One random number belongs to each (seed, position), whatever is drafted: drawing a single token from the target's
    own distribution at a node, then walking to the child that bears it, is exact for drafters without probabilities.
    """

    def __init__(self, config: SamplingConfig, vocab_size: int, prompt_token_ids: Sequence[int]) -> None:
        self._config = config
        self._bias_ids = np.array(list(config.logit_bias), np.int64)
        self._bias = np.array(list(config.logit_bias.values()), np.float32)
        if self._bias_ids.size and self._bias_ids.max() >= vocab_size:
            raise ConfigError(f"logit_bias names token {self._bias_ids.max()}, the vocabulary has {vocab_size}.")
        self._seen = np.zeros(vocab_size if config.repetition_penalty != 1 else 0, np.bool_)
        if self._seen.size:
            self._seen[list(prompt_token_ids)] = True

    @property
    def takes_best(self) -> bool:
        """Whether the choice is the highest logit, unchanged, the lowest id of equals; a child that chooses says so."""
        is_own = type(self).choose is Sampler.choose
        return is_own and self._config.temperature == 0 and not self._seen.size and not self._bias_ids.size

    def take_best(self, best_id: int, position: int) -> int:
        """What `choose` gives where it takes the best, for a caller who knows the best without the logits."""
        return best_id

    def choose(self, logits: Float32Array, position: int) -> int:
        """The token at `position` (tokens before it), from logits (V,) of the node before; it counts as seen."""
        if self._config.temperature == 0:
            token_id = int(np.argmax(self._adjusted(logits)))
        else:
            cumulative = np.cumsum(self.probabilities(logits))
            draw = random_unit(self._config.seed, position) * cumulative[-1]
            last = int(np.searchsorted(cumulative, cumulative[-1]))  # where rounding up to the total must land
            token_id = min(int(np.searchsorted(cumulative, draw, side="right")), last)
        if self._seen.size:
            self._seen[token_id] = True
        return token_id

    def probabilities(self, logits: Float32Array) -> Float64Array:
        """The processed distribution over the vocabulary, float64 (V,), for a temperature above 0."""
        config = self._config
        scaled = self._adjusted(logits).astype(np.float64)
        scaled = (scaled - scaled.max()) / config.temperature
        if 0 < config.top_k < scaled.size:
            scaled[scaled < np.partition(scaled, -config.top_k)[-config.top_k]] = -np.inf
        probabilities: Float64Array = np.exp(scaled)
        probabilities /= probabilities.sum()
        if config.top_p < 1:
            _keep_nucleus(probabilities, config.top_p)
        if config.min_p > 0:
            probabilities[probabilities < config.min_p * probabilities.max()] = 0
        probabilities /= probabilities.sum()
        return probabilities

    def _adjusted(self, logits: Float32Array) -> Float32Array:
        if not self._seen.size and not self._bias_ids.size:
            return logits
        adjusted = logits.copy()
        if self._seen.size:
            seen = adjusted[self._seen]
            penalty = np.float32(self._config.repetition_penalty)
            adjusted[self._seen] = np.where(seen > 0, seen / penalty, seen * penalty)
        adjusted[self._bias_ids] += self._bias
        return adjusted


def _keep_nucleus(probabilities: Float64Array, top_p: float) -> None:
    """Zero all but the most likely tokens that reach the mass `top_p`, in place."""
    # All tokens below this floor together hold less than 1 - top_p, so only the others need sorting.
    candidates = np.flatnonzero(probabilities >= (1 - top_p) / probabilities.size)
    order = candidates[np.argsort(-probabilities[candidates], kind="stable")]
    mass_before = np.cumsum(probabilities[order]) - probabilities[order]
    kept = order[mass_before < top_p]
    masses = probabilities[kept]
    probabilities[:] = 0
    probabilities[kept] = masses


def random_unit(seed: int, position: int) -> float:
    """The uniform number in [0, 1) of a (seed, position): Philox 4x64 (Salmon et al., SC 2011) as a counter."""
    return int(np.random.Philox(key=seed, counter=position).random_raw() >> 11) * 2.0**-53
