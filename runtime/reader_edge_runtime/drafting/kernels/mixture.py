"""From evidence to probabilities: a mixture of all inputs' log-odds, with weights learned online.

Logistic mixing as in the PAQ family of compressors (Mahoney, "Adaptive weighing of context models for lossless data
compression", 2005), for many candidates at once: a candidate's probability is the logistic function of the weighted
sum of the log-odds that inputs give it. An input's weight is the sum of four: one by support or match length, one of
each of two sets that the match state selects, and one that the token before selects. The log-odds of a claim are
learned too, from how often claims of its class came true (indirect modelling). A token has a bias of its own, and one
behind the token before it: some come less often than texts say, wherever they are named.

Path values are calibrated by how often paths of such values were accepted, in buckets of the predicted value's
log-odds; each value updates and reads the two nearest buckets.
"""

import math

import numpy as np

from reader_edge_runtime.drafting.kernels import layout
from reader_edge_runtime.drafting.kernels.arrays import Float32Vector, Int32Vector, Number
from reader_edge_runtime.drafting.kernels.kernel import part, small_part

NUM_CLASSES = layout.NUM_INPUTS * layout.CLASSES

# parameters: float32 (PARAMETERS,): CLASS_FIELDS numbers for each class, the last unused; weights; biases of the sets;
# then the calibration's sums of each bucket, accepted and expected; then biases of tokens and of pairs of tokens, and
# weights behind tokens, which no priors have, since their ids are one tokenizer's
LOG_ODDS, PROBABILITY, RATE = range(3)
CLASS_FIELDS = 4
WEIGHTS = NUM_CLASSES * CLASS_FIELDS
SET_WEIGHTS = WEIGHTS + layout.NUM_INPUTS * layout.LEVELS
SET_WEIGHTS_2 = SET_WEIGHTS + layout.NUM_SETS * layout.NUM_INPUTS
BIASES = SET_WEIGHTS_2 + layout.NUM_SETS_2 * layout.NUM_INPUTS
BIASES_2 = BIASES + layout.NUM_SETS
VALUE_BUCKETS = 33
VALUE_HITS = BIASES_2 + layout.NUM_SETS_2
VALUE_TRIALS = VALUE_HITS + VALUE_BUCKETS
NUM_TOKEN_BIASES = 1 << 13
TOKEN_BIASES = VALUE_TRIALS + VALUE_BUCKETS
PAIR_BIASES = TOKEN_BIASES + NUM_TOKEN_BIASES
NUM_TOKEN_SETS = 1 << 8
TOKEN_WEIGHTS = PAIR_BIASES + NUM_TOKEN_BIASES
PARAMETERS = TOKEN_WEIGHTS + NUM_TOKEN_SETS * layout.NUM_INPUTS

# scratch: float32 (SCRATCH,)
LOGITS = 0
BEST_LOG_ODDS = LOGITS + layout.MAX_CANDIDATES
ACTIVE_WEIGHT = BEST_LOG_ODDS + layout.MAX_CANDIDATES
ACTIVE_GRADIENT = ACTIVE_WEIGHT + layout.NUM_INPUTS
ACTIVE_UNNAMED = ACTIVE_GRADIENT + layout.NUM_INPUTS
ACTIVE_MISSES = ACTIVE_UNNAMED + layout.NUM_INPUTS
ACTIVE_MISSED = ACTIVE_MISSES + layout.NUM_INPUTS
PENDING_VALUE = ACTIVE_MISSED + layout.NUM_INPUTS
SCRATCH = PENDING_VALUE + 256

_MIN_P = np.float32(0.0005)
_MAX_P = np.float32(0.9995)
_MIN_RATE = np.float32(1 / 256)
_MAX_GRADIENT = np.float32(8)
_MAX_WEIGHT = np.float32(8)
_WEIGHT_RATE = np.float32(0.01)
_SET_RATE = np.float32(0.005)
_TOKEN_SET_RATE = np.float32(0.01)
_BIAS_RATE = np.float32(0.01)
_TOKEN_RATE = np.float32(0.08)
_MIN_ERROR = np.float32(0.005)
_LOWEST_BUCKET = np.float32(-9)
_BUCKETS_PER_UNIT = np.float32(2)
_BUCKET_MEMORY = np.float32(500)

_SIGMOID_STEPS = 4096
_x = (np.arange(_SIGMOID_STEPS) + 0.5 - _SIGMOID_STEPS / 2) * 24.0 / _SIGMOID_STEPS
_SIGMOID = (1 / (1 + np.exp(-_x))).astype(np.float32)
_SIGMOID_SCALE = np.float32(_SIGMOID_STEPS / 24.0)
_SIGMOID_MIDDLE = np.float32(_SIGMOID_STEPS / 2)

_LOG_ODDS_STEPS = 4096
_p = np.clip(np.arange(_LOG_ODDS_STEPS + 2) / _LOG_ODDS_STEPS, 1e-4, 1 - 1e-4)
_LOG_ODDS = np.log(_p / (1 - _p)).astype(np.float32)
_LOG_ODDS_SCALE = np.float32(_LOG_ODDS_STEPS)


@small_part
def sigmoid(x: Number) -> Number:
    """The logistic function, from a table, within 0.2 %."""
    step: Number = min(max(np.int64(x * _SIGMOID_SCALE + _SIGMOID_MIDDLE), 0), _SIGMOID_STEPS - 1)
    return _SIGMOID[step]


@small_part
def log_odds(p: Number) -> Number:
    """log(p / (1 - p)), interpolated from a table."""
    x = p * _LOG_ODDS_SCALE
    i = np.int64(x)
    return _LOG_ODDS[i] + (_LOG_ODDS[i + 1] - _LOG_ODDS[i]) * (x - np.float32(i))


@small_part
def _class_log_odds(parameters: Float32Vector, number: Number) -> Number:
    return parameters[number * CLASS_FIELDS + LOG_ODDS]


@small_part
def _parts_of(pair: Number) -> tuple[Number, Number, Number]:
    """Class, active input and candidate of a pair."""
    active = (pair >> layout.ACTIVE_SHIFT) & layout.ACTIVE_MASK
    return pair >> layout.CLASS_SHIFT, active, pair & layout.CANDIDATE_MASK


@small_part
def _token_bias(token: Number) -> Number:
    return TOKEN_BIASES + (token & (NUM_TOKEN_BIASES - 1))


@small_part
def _pair_bias(before: Number, token: Number) -> Number:
    mixed = np.int64(before) * 0x1B873593 + np.int64(token) * 0x2545F491
    return PAIR_BIASES + ((mixed >> 13) & (NUM_TOKEN_BIASES - 1))


@small_part
def _token_weights(before: Number) -> Number:
    return TOKEN_WEIGHTS + (before & (NUM_TOKEN_SETS - 1)) * layout.NUM_INPUTS


@part
def score(parameters: Float32Vector, evidence: Int32Vector, scratch: Float32Vector, work: Int32Vector) -> None:
    """Write each candidate's log-odds to scratch[LOGITS:], the input that raises it most to work[LEADING:]."""
    set_weights = SET_WEIGHTS + evidence[layout.SET] * layout.NUM_INPUTS
    set_weights_2 = SET_WEIGHTS_2 + evidence[layout.SET_2] * layout.NUM_INPUTS
    token_weights = _token_weights(evidence[layout.LAST_TOKEN])
    base = parameters[BIASES + evidence[layout.SET]] + parameters[BIASES_2 + evidence[layout.SET_2]]
    for s in range(evidence[layout.NUM_ACTIVE]):
        which = evidence[layout.WEIGHT + s] // layout.LEVELS
        weight = parameters[WEIGHTS + evidence[layout.WEIGHT + s]]
        weight += parameters[set_weights + which] + parameters[set_weights_2 + which]
        weight += parameters[token_weights + which]
        unnamed = _class_log_odds(parameters, evidence[layout.MISS + s])
        scratch[ACTIVE_WEIGHT + s] = weight
        scratch[ACTIVE_UNNAMED + s] = unnamed
        base += weight * unnamed
    for c in range(evidence[layout.NUM_CANDIDATES]):
        token = evidence[layout.CANDIDATES + c]
        scratch[LOGITS + c] = base + parameters[_token_bias(token)]
        scratch[LOGITS + c] += parameters[_pair_bias(evidence[layout.LAST_TOKEN], token)]
        scratch[BEST_LOG_ODDS + c] = -1e30
    for pair in range(evidence[layout.NUM_PAIRS]):
        number, s, c = _parts_of(evidence[layout.PAIRS + pair])
        raised_by = (_class_log_odds(parameters, number) - scratch[ACTIVE_UNNAMED + s]) * scratch[ACTIVE_WEIGHT + s]
        scratch[LOGITS + c] += raised_by
        if raised_by > scratch[BEST_LOG_ODDS + c]:
            scratch[BEST_LOG_ODDS + c] = raised_by
            work[layout.LEADING + c] = evidence[layout.WEIGHT + s] // layout.LEVELS


@small_part
def _update_class(parameters: Float32Vector, number: Number, outcome: Number) -> None:
    at = number * CLASS_FIELDS
    p = parameters[at + PROBABILITY]
    rate = parameters[at + RATE]
    p += (outcome - p) * rate
    p = min(max(p, _MIN_P), _MAX_P)
    parameters[at + PROBABILITY] = p
    parameters[at + LOG_ODDS] = log_odds(p)
    parameters[at + RATE] = max(rate / (np.float32(1) + rate), _MIN_RATE)


@small_part
def _update(parameters: Float32Vector, at: Number, step: Number) -> None:
    parameters[at] = min(max(parameters[at] + step, -_MAX_WEIGHT), _MAX_WEIGHT)


@part
def _errors(evidence: Int32Vector, scratch: Float32Vector, token: Number) -> tuple[Number, Number]:
    """Replace log-odds by errors, outcome minus probability. Returns their sum and the candidate that came, or -1."""
    total = np.float32(0)
    came = -1
    for c in range(evidence[layout.NUM_CANDIDATES]):
        error = -sigmoid(scratch[LOGITS + c])
        if evidence[layout.CANDIDATES + c] == token:
            came = c
            error += np.float32(1)
        scratch[LOGITS + c] = error
        total += error
    return total, came


@part
def learn_mixture(parameters: Float32Vector, evidence: Int32Vector, scratch: Float32Vector, token: Number) -> None:
    """Learn from the token that came, after `score` of the same evidence."""
    total, came = _errors(evidence, scratch, token)
    num_active = evidence[layout.NUM_ACTIVE]
    for s in range(num_active):
        scratch[ACTIVE_GRADIENT + s] = scratch[ACTIVE_UNNAMED + s] * total
        scratch[ACTIVE_MISSES + s] = evidence[layout.NUM_CANDIDATES]
        scratch[ACTIVE_MISSED + s] = 1 if came >= 0 else 0
    for pair in range(evidence[layout.NUM_PAIRS]):
        number, s, candidate = _parts_of(evidence[layout.PAIRS + pair])
        raised_by = _class_log_odds(parameters, number) - scratch[ACTIVE_UNNAMED + s]
        scratch[ACTIVE_GRADIENT + s] += scratch[LOGITS + candidate] * raised_by
        scratch[ACTIVE_MISSES + s] -= 1
        if candidate == came:
            scratch[ACTIVE_MISSED + s] = 0
    _update_weights(parameters, evidence, scratch, total)
    for c in range(evidence[layout.NUM_CANDIDATES]):
        error = scratch[LOGITS + c]
        if abs(error) > _MIN_ERROR:
            candidate = evidence[layout.CANDIDATES + c]
            _update(parameters, _token_bias(candidate), _TOKEN_RATE * error)
            _update(parameters, _pair_bias(evidence[layout.LAST_TOKEN], candidate), _TOKEN_RATE * error)
    for pair in range(evidence[layout.NUM_PAIRS]):
        number, _, candidate = _parts_of(evidence[layout.PAIRS + pair])
        outcome = np.float32(1) if candidate == came else np.float32(0)
        _update_class(parameters, number, outcome)


@small_part
def _update_weights(parameters: Float32Vector, evidence: Int32Vector, scratch: Float32Vector, total: Number) -> None:
    num_active = evidence[layout.NUM_ACTIVE]
    share = np.float32(1) / np.float32(math.sqrt(max(num_active, 1)))
    set_weights = SET_WEIGHTS + evidence[layout.SET] * layout.NUM_INPUTS
    set_weights_2 = SET_WEIGHTS_2 + evidence[layout.SET_2] * layout.NUM_INPUTS
    token_weights = _token_weights(evidence[layout.LAST_TOKEN])
    for s in range(num_active):
        which = evidence[layout.WEIGHT + s] // layout.LEVELS
        step = share * min(max(scratch[ACTIVE_GRADIENT + s], -_MAX_GRADIENT), _MAX_GRADIENT)
        _update(parameters, WEIGHTS + evidence[layout.WEIGHT + s], _WEIGHT_RATE * step)
        _update(parameters, set_weights + which, _SET_RATE * step)
        _update(parameters, set_weights_2 + which, _SET_RATE * step)
        _update(parameters, token_weights + which, _TOKEN_SET_RATE * step)
        if scratch[ACTIVE_MISSES + s] > 0:
            # the candidates that an input does not name share one class, which learns their mean outcome
            outcome = scratch[ACTIVE_MISSED + s] / scratch[ACTIVE_MISSES + s]
            _update_class(parameters, evidence[layout.MISS + s], outcome)
    _update(parameters, BIASES + evidence[layout.SET], _BIAS_RATE * total)
    _update(parameters, BIASES_2 + evidence[layout.SET_2], _BIAS_RATE * total)


@small_part
def _bucket(value: Number) -> Number:
    x = (log_odds(value) - _LOWEST_BUCKET) * _BUCKETS_PER_UNIT
    return min(max(x, np.float32(0)), np.float32(VALUE_BUCKETS - 1.001))


@small_part
def calibrated(parameters: Float32Vector, value: Number) -> Number:
    """How often paths of this predicted value were accepted."""
    x = _bucket(value)
    i = np.int64(x)
    near = x - np.float32(i)
    low = parameters[VALUE_HITS + i] / parameters[VALUE_TRIALS + i]
    high = parameters[VALUE_HITS + i + 1] / parameters[VALUE_TRIALS + i + 1]
    return min(value * (low + (high - low) * near), np.float32(1))


@small_part
def _learn_bucket(parameters: Float32Vector, i: Number, value: Number, is_hit: Number, share: Number) -> None:
    parameters[VALUE_HITS + i] += share * is_hit
    parameters[VALUE_TRIALS + i] += share * value
    if parameters[VALUE_TRIALS + i] > _BUCKET_MEMORY * value:
        keep = np.float32(1) - share / _BUCKET_MEMORY
        parameters[VALUE_HITS + i] *= keep
        parameters[VALUE_TRIALS + i] *= keep


@small_part
def learn_value(parameters: Float32Vector, value: Number, is_hit: Number) -> None:
    """Learn whether a node of this predicted value was accepted (1) or not (0)."""
    x = _bucket(value)
    i = np.int64(x)
    near = x - np.float32(i)
    _learn_bucket(parameters, i, value, is_hit, np.float32(1) - near)
    _learn_bucket(parameters, i + 1, value, is_hit, near)
