"""The mixture's parameters as they are before a drafter has seen anything: by formula, or learned on recordings.

`priors.npz` was made by `scripts/learn_priors` from recordings of chat, code, mathematics, retrieval and tool use, and
from answers of a real model with its likely successors: only statistics of how evidence of each class fared, no text.
"""

import math
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Float32Array, Float64Array
from reader_edge_runtime.drafting.kernels import layout, mixture, successors
from reader_edge_runtime.drafting.proposals import BLOCK_CLASSES, PROBABILITY_BUCKETS, SHARE_EDGES

PRIORS = Path(__file__).with_name("priors.npz")
_FIRST_RATE = 0.18
_FIRST_WEIGHT = 0.25
_FIRST_BIAS = -0.25

# How often successors recorded at probability p came, roughly, on the demo model's answers: (at p = 0, per p) of the
# best and the share of p of others; where the token further back was another, and where it was the same.
_LOGITS_TRUST = {
    layout.AFTER_TOKEN: ((0.2, 0.3, 0.7), (0.5, 0.4, 0.4)),
    layout.AFTER_PAIR: ((0.3, 0.45, 0.7), (0.55, 0.4, 0.4)),
}
_UNNAMED_PROBABILITY = 0.003
_LOGITS_RATE = 0.05
_LOGITS_WEIGHT = 0.5
_DATASTORE_WEIGHT = 0.5
_PROPOSAL_WEIGHT = 0.75  # of 0.25 to 1.3 the best for a trained head
_AFTER_DEVIATIONS = (1.0, 0.6, 0.35)  # of a block, by how often the path left its own best: it knew of another one

# Trials that a prior counts for, so that a request's own evidence soon outweighs it.
_PRIOR_RATE = 1 / 22


def cold_parameters() -> Float32Array:
    """Parameters that have seen no text at all."""
    parameters = np.zeros(mixture.PARAMETERS, np.float32)
    probability = np.clip(_first_probabilities(), 0.002, 0.995)
    classes = _classes(parameters)
    classes[:, mixture.PROBABILITY] = probability.ravel()
    classes[:, mixture.LOG_ODDS] = np.log(probability / (1 - probability)).ravel()
    classes[:, mixture.RATE] = _FIRST_RATE
    parameters[mixture.WEIGHTS : mixture.SET_WEIGHTS] = _FIRST_WEIGHT
    parameters[mixture.BIASES : mixture.VALUE_HITS] = _FIRST_BIAS
    parameters[mixture.VALUE_HITS : mixture.TOKEN_BIASES] = 5.0
    _set_logits_priors(parameters)
    _set_unrecorded_priors(parameters)
    return parameters


def shipped_parameters() -> Float32Array:
    """Parameters learned on recordings."""
    priors: Float32Array = np.zeros(mixture.PARAMETERS, np.float32)
    with np.load(PRIORS, allow_pickle=False) as file:
        priors[: mixture.TOKEN_BIASES] = file["parameters"]
    _set_unrecorded_priors(priors)
    return priors


def as_priors(parameters: Float32Array) -> Float32Array:
    """Learned parameters made ready to be started from: they adapt to new text as fast as priors should."""
    priors = parameters.copy()
    classes = _classes(priors)
    classes[:, mixture.RATE] = np.maximum(classes[:, mixture.RATE], _PRIOR_RATE)
    trials = priors[mixture.VALUE_TRIALS : mixture.TOKEN_BIASES]
    share = np.minimum(1.0, 20.0 / trials)
    priors[mixture.VALUE_HITS : mixture.VALUE_TRIALS] *= share
    trials *= share
    priors[mixture.TOKEN_BIASES :] = 0
    return priors


def _classes(parameters: Float32Array) -> Float32Array:
    """(NUM_CLASSES, CLASS_FIELDS): a view."""
    return parameters[: mixture.WEIGHTS].reshape(mixture.NUM_CLASSES, mixture.CLASS_FIELDS)


def _set_logits_priors(parameters: Float32Array) -> None:
    """Of successors from logits: what learning begins with."""
    classes, weights = _inputs(parameters)
    probability = classes[..., mixture.PROBABILITY]
    buckets = np.arange(successors.LOG_ODDS_BUCKETS) + 0.5
    recorded = 1 / (1 + np.exp(-(successors.LOWEST_LOG_ODDS + successors.LOG_ODDS_STEP * buckets)))
    for which, trust in _LOGITS_TRUST.items():
        at = layout.LOGITS_INPUTS + which
        probability[at] = _UNNAMED_PROBABILITY
        for flag, (least, slope, share) in enumerate(trust):
            best = least + slope * recorded
            named = np.concatenate([best, np.tile(share * recorded, successors.NUM_RANKS - 1)])
            first = successors.FIRST_NAMED_CLASS + flag
            probability[at, first : first + 2 * len(named) : 2] = named
        classes[at, :, mixture.RATE], weights[at] = _LOGITS_RATE, _LOGITS_WEIGHT
        _set_log_odds(classes[at])


def _set_unrecorded_priors(parameters: Float32Array) -> None:
    """Of what recordings cannot teach: proposals, and datastores, which start like counts."""
    classes, weights = _inputs(parameters)
    at = layout.DATASTORE_INPUTS
    classes[at, :, mixture.PROBABILITY] = np.clip(_row_probabilities(), 0.002, 0.995)
    classes[at, :, mixture.RATE], weights[at] = _FIRST_RATE, _DATASTORE_WEIGHT
    _set_log_odds(classes[at])
    for at in layout.PROPOSAL_INPUTS:
        classes[at, :, mixture.PROBABILITY] = np.clip(_proposal_probabilities(), 0.002, 0.995)
        classes[at, :, mixture.RATE], weights[at] = _FIRST_RATE, _PROPOSAL_WEIGHT
        _set_log_odds(classes[at])


def _inputs(parameters: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Classes (NUM_INPUTS, CLASSES, CLASS_FIELDS) and weights (NUM_INPUTS, LEVELS): views."""
    classes = _classes(parameters).reshape(layout.NUM_INPUTS, layout.CLASSES, mixture.CLASS_FIELDS)
    return classes, parameters[mixture.WEIGHTS : mixture.SET_WEIGHTS].reshape(layout.NUM_INPUTS, layout.LEVELS)


def _set_log_odds(classes: Float32Array) -> None:
    """Those of an input's probabilities, (CLASSES, CLASS_FIELDS)."""
    probability = classes[:, mixture.PROBABILITY]
    classes[:, mixture.LOG_ODDS] = np.log(probability / (1 - probability))


def _first_probabilities() -> Float32Array:
    """(NUM_INPUTS, CLASSES): rows by absolute discounting, matches by their length."""
    p = np.full((layout.NUM_INPUTS, layout.CLASSES), 0.3, np.float32)
    length, agreed = np.arange(20), np.arange(64) & 7
    comes = np.where(length > 0, 1 - 0.7 / (length + 0.5), 0.3)
    for first in (layout.CONTEXT_INPUTS, layout.HISTORY_INPUTS):
        store = p[first : first + layout.RESUMED + 1]
        store[: layout.SINGLE] = _row_probabilities()
        store[[layout.SINGLE, layout.COPY], : 2 * len(length)] = _in_turn(0.04 * (1 - comes) + 0.002, comes)
        store[layout.RESUMED, : 2 * len(agreed)] = _in_turn(np.full(64, 0.02), 0.3 + 0.5 * agreed / 7)
    return p


def _proposal_probabilities() -> Float32Array:
    """(CLASSES,): a source is as sure as it says; what it does not name seldom comes."""
    p = np.full(layout.CLASSES, 0.3, np.float32)
    p[0] = 0.02
    p[1 : 1 + PROBABILITY_BUCKETS] = (np.arange(PROBABILITY_BUCKETS) + 0.5) / PROBABILITY_BUCKETS
    edges = np.array([0.0, *SHARE_EDGES, 1.0])
    in_block = np.array(_AFTER_DEVIATIONS)[:, None, None, None] * (edges[1:] + edges[:-1]) / 2
    first = 1 + PROBABILITY_BUCKETS
    p[first : first + math.prod(BLOCK_CLASSES)] = np.broadcast_to(in_block, BLOCK_CLASSES).ravel()
    return p


def _row_probabilities() -> Float32Array:
    """(CLASSES,): how often a token came that was counted so often of so many."""
    total, bucket = np.array(layout.TOTALS)[:, None], np.arange(layout.COUNT_BUCKETS)
    ratio = np.array([0, *layout.RATIOS, layout.RATIOS[-1]])
    count = np.where(total <= 4, np.minimum(bucket, total), np.maximum(1.0, ratio * total))
    value = np.where(bucket == 0, 0.05 / (total + 0.5), (count - 0.2) / (total + 0.3))
    p = np.full(layout.CLASSES, 0.3, np.float32)
    p[: 2 * value.size] = _in_turn(value, value)
    return p


def _in_turn(first: Float64Array, second: Float64Array) -> Float64Array:
    """One number of each by turns: the classes of a claim come in pairs."""
    return np.stack([first, second], axis=-1).ravel()
