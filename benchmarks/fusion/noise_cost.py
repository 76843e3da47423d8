"""What one choice takes by today's draw, and by noise of a seed, a position and a token that a proposer can share.

    python -m benchmarks.fusion.noise_cost [--rounds 100]

The noise of a token is -log u of a uniform number u; the token with the least noise over probability is chosen, which
gives each its probability. Today's draw, `Sampler.peek`, takes one number a position. Ways:

- numpy: Philox's numbers for all tokens.
- each: a hash of a token and of a key of seed and position, for all tokens, in machine code.
- bounded: the same choice. -log u is at least 1 - u, and no token of a block is likelier than the block's best logit
  says: blocks in which not even the least noise would win are passed over, and in others the hashes are compared with
  one number. Only what is left over is computed.
- numpy, bounded: the same choice without machine code: the best token, then all for which the least noise would do.
- top-p draw: today's, of 0.95. Noise of the few tokens that are left takes next to nothing beside it.

Logits are normal, with a few likely tokens: steep ones (standard deviation 3, the best 18 to 20 above the mean) and
flat ones (1, and 3 to 5), where hardly anything can be ruled out before it is hashed.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar, cast

import numba
import numpy as np

from benchmarks.peers.tables import table
from reader_edge_runtime.arrays import Float32Array, Float64Array, Int64Array
from reader_edge_runtime.config import SamplingConfig
from reader_edge_runtime.decoding.choosing.sampler import Sampler

_P = ParamSpec("_P")
_R = TypeVar("_R")

TEMPERATURE = 0.7
_VOCABULARIES = 49_152, 151_936
_SHAPES = {"steep": (3.0, 20.0), "flat": (1.0, 5.0)}
_BLOCK = 64
_RANGE = 2.0**32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    random, rows = np.random.default_rng(0), []
    for size in _VOCABULARIES:
        for name, (deviation, best) in _SHAPES.items():
            logits = [random_logits(random, size, deviation, best) for _ in range(rounds)]
            took = [f"{micros(way, logits):.0f}" for way in ways(size).values()]
            rows.append([f"{size:,}", name, *took])
    print("\n".join(table(["vocabulary", "logits", *(f"{name}, µs" for name in ways(1))], rows)))


def random_logits(random: np.random.Generator, size: int, deviation: float, best: float) -> Float32Array:
    logits = (deviation * random.standard_normal(size)).astype(np.float32)
    logits[random.integers(0, size, 8)] = best - 2 * random.random(8)
    return logits


def ways(size: int) -> dict[str, Callable[[Float32Array, int], int]]:
    """To choose from logits (V,), with the key of a position."""
    config = SamplingConfig(temperature=TEMPERATURE, seed=1)
    plain, nucleus = (Sampler(each, size, []) for each in (config, SamplingConfig(TEMPERATURE, top_p=0.95, seed=1)))
    return {
        "draw": plain.peek,
        "numpy": by_numpy,
        "each": by_each,
        "bounded": by_bound,
        "numpy, bounded": by_numpy_bound,
        "top-p draw": nucleus.peek,
    }


def micros(way: Callable[[Float32Array, int], int], logits: Sequence[Float32Array]) -> float:
    """Median of a choice, in microseconds."""
    way(logits[0], 0)
    took = []
    for key, each in enumerate(logits):
        began = time.perf_counter()
        way(each, key)
        took.append(time.perf_counter() - began)
    return 1e6 * statistics.median(took)


def by_numpy(logits: Float32Array, key: int) -> int:
    raw = np.random.Philox(key=key).random_raw(len(logits))
    noise = -np.log(((raw >> 11) + 0.5) * 2.0**-53)
    weights = np.exp((logits - logits.max()) / np.float32(TEMPERATURE))
    return int(np.argmin(noise / np.maximum(weights, 1e-30)))


def by_numpy_bound(logits: Float32Array, key: int) -> int:
    likeliest = int(logits.argmax())
    best = logits[likeliest]
    least = float(_scores(logits, best, np.array([likeliest]), key)[0])
    tokens = np.flatnonzero(logits >= best - TEMPERATURE * (np.log(_RANGE) + 1 + np.log(least)))
    return int(tokens[_scores(logits, best, tokens, key).argmin()])


def _scores(logits: Float32Array, best: float, tokens: Int64Array, key: int) -> Float64Array:
    """Noise over probabilities relative to the best token's, of some tokens."""
    x = (tokens.astype(np.uint32) * np.uint32(0x9E3779B9)) ^ np.uint32(key)
    for _ in range(2):
        x ^= x >> np.uint32(16)
        x *= np.uint32(0x85EBCA6B)
        x ^= x >> np.uint32(13)
        x *= np.uint32(0xC2B2AE35)
        x ^= x >> np.uint32(16)
    noise = -np.log((x + 0.5) / _RANGE)
    scores: Float64Array = noise * np.exp((best - logits[tokens].astype(np.float64)) / TEMPERATURE)
    return scores


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    return cast(Callable[_P, _R], numba.njit(function))


def part(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """One that is inlined where others call it."""
    return cast(Callable[_P, _R], numba.njit(inline="always")(function))


@part
def _hash(token: int, key: int) -> np.uint32:
    """32 bits: the finalizer of MurmurHash3, twice."""
    x = (np.uint32(token) * np.uint32(0x9E3779B9)) ^ np.uint32(key)
    for _ in range(2):
        x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        x = np.uint32((x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        x = np.uint32(x ^ (x >> np.uint32(16)))
    return x


@part
def _score(logit: float, best: float, token: int, key: int) -> float:
    """Noise over the probability relative to the best token's."""
    return float(-np.log((float(_hash(token, key)) + 0.5) / _RANGE) * np.exp((best - logit) / TEMPERATURE))


@compiled
def by_each(logits: Float32Array, key: int) -> int:
    best, chosen, least = float(logits.max()), 0, np.inf
    for token in range(len(logits)):
        score = _score(float(logits[token]), best, token, key)
        if score < least:
            chosen, least = token, score
    return chosen


@compiled
def by_bound(logits: Float32Array, key: int) -> int:
    num_blocks = (len(logits) + _BLOCK - 1) // _BLOCK
    tops = np.empty(num_blocks, np.float32)
    for block in range(num_blocks):
        top = logits[block * _BLOCK]
        for token in range(block * _BLOCK, min((block + 1) * _BLOCK, len(logits))):
            top = max(top, logits[token])
        tops[block] = top
    likeliest = int(np.argmax(tops))
    best = float(tops[likeliest])
    chosen = likeliest * _BLOCK + int(np.argmax(logits[likeliest * _BLOCK : (likeliest + 1) * _BLOCK]))
    least = _score(best, best, chosen, key)  # a first choice, which bounds all others
    for block in range(num_blocks):
        if float(tops[block]) < best - TEMPERATURE * (np.log(_RANGE) + 1 + np.log(least)):
            continue
        # The number is rounded up: a token that is let through is computed.
        bound = np.uint32(min(least * np.exp((float(tops[block]) - best) / TEMPERATURE) * _RANGE + 1, _RANGE - 1))
        first, end = block * _BLOCK, min((block + 1) * _BLOCK, len(logits))
        num_left = np.uint32(0)
        for token in range(first, end):
            num_left += np.uint32(np.uint32(~_hash(token, key)) <= bound)
        if num_left == 0:
            continue
        for token in range(first, end):
            if np.uint32(~_hash(token, key)) <= bound:
                score = _score(float(logits[token]), best, token, key)
                if score < least or (score == least and token < chosen):
                    chosen, least = token, score
    return chosen


if __name__ == "__main__":
    main()
