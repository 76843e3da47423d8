"""Sampling: the processed distribution, one number per position, and drafted draws from the exact distribution."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reader_edge_runtime import Engine, GenerationConfig, Grammar
from reader_edge_runtime.acceptance import EXACT, Choices
from reader_edge_runtime.arrays import Float32Array, Float64Array
from reader_edge_runtime.config import SamplingConfig
from reader_edge_runtime.decoding.sampling.sampler import Sampler, random_unit
from reader_edge_runtime.decoding.verification import walk
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.forward_result import ForwardResult
from tests.fake_target import FakeTarget, make_manifest
from tests.random_drafter import chosen

VOCAB_SIZE = 6
NUM_DRAWS = 6_000


# One level and two levels below the root, siblings and dead ends: the tokens a drafter might have guessed.
TREE = DraftTree([0, 1, 2, 4, 3, 1, 5, 0], [-1, 0, 0, 0, 1, 1, 2, 3], [""] + ["test"] * 7)
UNREAD = ForwardResult(np.empty((1, 0, 0), np.int64), np.empty((1, 0, 0), np.float32))


def softmax(values: Float64Array) -> Float64Array:
    exp: Float64Array = np.exp(values - values.max())
    exp /= exp.sum()
    return exp


def probabilities(sampler: Sampler, logits: Float32Array) -> Float64Array:
    """The distribution over the vocabulary that a sampler draws from, float64 (V,), for a temperature above 0."""
    found = np.zeros(len(logits))
    if sampler._is_cut(logits):
        token_ids, weights = sampler._kept(logits)
        found[token_ids] = weights
    else:
        found[:] = sampler._weights(logits)
    found /= found.sum()
    return found


def chi_square_p_value(counts: npt.NDArray[np.int64], probabilities: Float64Array) -> float:
    """Upper tail of the chi-square distribution, by Wilson and Hilferty's cube-root normal approximation."""
    from math import erfc, sqrt

    possible = probabilities > 0
    assert counts[~possible].sum() == 0, "a token of probability zero was drawn"
    expected = probabilities[possible] * counts.sum()
    assert expected.min() >= 5, "too few draws for the test to hold"
    statistic = float(((counts[possible] - expected) ** 2 / expected).sum())
    freedom = int(possible.sum()) - 1
    normal = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom))
    return 0.5 * erfc(normal / sqrt(2))


def tree_logits(target: FakeTarget) -> Float32Array:
    """Logits of each node of TREE, after the tokens on its own path."""
    paths: list[list[int]] = []
    for token_id, parent in zip(TREE.token_ids, TREE.parents, strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token_id])
    return np.stack([target.logits_after(path) for path in paths])


def count_pairs(draw_pair: Callable[[int], tuple[int, int]]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """How often each first token, and each pair of tokens, was drawn."""
    firsts, pairs = np.zeros(VOCAB_SIZE, np.int64), np.zeros((VOCAB_SIZE, VOCAB_SIZE), np.int64)
    for seed in range(NUM_DRAWS):
        first, second = draw_pair(seed)
        firsts[first] += 1
        pairs[first, second] += 1
    return firsts, pairs.ravel()


def exact_pairs(target: FakeTarget, config: SamplingConfig) -> tuple[Float64Array, Float64Array]:
    sampler = Sampler(config, VOCAB_SIZE, [])
    first = probabilities(sampler, target.logits_after([0]))
    seconds = [probabilities(sampler, target.logits_after([0, token_id])) for token_id in range(VOCAB_SIZE)]
    return first, (first[:, None] * np.stack(seconds)).ravel()


@pytest.mark.long
@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=1.0),
        SamplingConfig(temperature=0.7, top_k=5),
        SamplingConfig(temperature=1.4, top_p=0.9, min_p=0.02),
    ],
    ids=["temperature", "top_k", "top_p and min_p"],
)
def test_drafted_tokens_follow_the_exact_distribution(config: SamplingConfig) -> None:
    target = FakeTarget(make_manifest(VOCAB_SIZE), sharpness=0.6)
    logits = tree_logits(target)
    seconds = [target.logits_after([0, token_id]) for token_id in range(VOCAB_SIZE)]

    def draw_pair(seed: int) -> tuple[int, int]:
        sampler = Sampler(replace(config, seed=seed), VOCAB_SIZE, [])
        emitted: list[int] = []
        while len(emitted) < 2:
            if not emitted:
                choices = Choices(
                    TREE, UNREAD, 0, lambda node: sampler.peek(logits[node], 1 + len(emitted)), lambda _: True
                )
                found = walk(EXACT, choices, collect(emitted))
                assert found.token_ids == emitted
            else:
                emitted.append(chosen(sampler, seconds[emitted[0]], 1 + len(emitted)))
        return emitted[0], emitted[1]

    firsts, pairs = count_pairs(draw_pair)
    exact_firsts, exact_joint = exact_pairs(target, config)
    assert chi_square_p_value(firsts, exact_firsts) > 0.001
    assert chi_square_p_value(pairs, exact_joint) > 0.001


def collect(emitted: list[int]) -> Callable[[int, int], bool]:
    def is_last(node: int, token_id: int) -> bool:
        emitted.append(token_id)
        return False

    return is_last


def test_control_one_draw_per_candidate_row_fails_the_same_test() -> None:
    """The rule some tree decoders use: an own draw for each candidate path, the longest agreeing path wins."""
    target = FakeTarget(make_manifest(VOCAB_SIZE), sharpness=0.6)
    logits = tree_logits(target)
    sampler = Sampler(SamplingConfig(temperature=1.0), VOCAB_SIZE, [])
    first_probabilities = probabilities(sampler, logits[0])
    random = np.random.default_rng(0)
    children = [TREE.token_ids[node] for node in range(len(TREE)) if TREE.parents[node] == 0]

    def draw_first(seed: int) -> tuple[int, int]:
        draws = [int(random.choice(VOCAB_SIZE, p=first_probabilities)) for _ in children]
        accepted = [token_id for token_id, draw in zip(children, draws, strict=True) if token_id == draw]
        return (accepted[0] if accepted else draws[0]), 0

    firsts, _ = count_pairs(draw_first)
    assert chi_square_p_value(firsts, first_probabilities) < 1e-9


def test_one_number_per_seed_and_position_and_they_are_uniform() -> None:
    draws = np.array([random_unit(seed, position) for seed in range(60) for position in range(60)])
    assert len(np.unique(draws)) == draws.size
    assert 0 <= draws.min() < 0.01
    assert 0.99 < draws.max() < 1
    assert abs(draws.mean() - 0.5) < 0.02
    assert random_unit(7, 11) == random_unit(7, 11)
    assert random_unit(2**64 - 1, 2**40) < 1


@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=2, max_size=12),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.05, 1) | st.just(0.0),
    min_p=st.floats(0, 1),
    temperature=st.floats(0.1, 3),
)
@example(logits=[0.0, 0.5, 3.670507852939074e-32], top_k=2, top_p=0.5, min_p=0.0, temperature=1.0)
def test_probabilities_are_plain(
    logits: list[float], top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    config = SamplingConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    values = np.array(logits, np.float32)
    found = probabilities(Sampler(config, len(logits), []), values)

    wanted = softmax(values.astype(np.float64) / temperature)
    is_tied = False
    if 0 < top_k < len(logits):
        last_in, first_out = np.sort(wanted)[::-1][top_k - 1 : top_k + 1]
        is_tied = last_in - first_out <= 1e-6  # as probabilities; the sampler tells logits apart
        wanted[wanted < sorted(wanted)[-top_k]] = 0
        wanted /= wanted.sum()
    if top_p < 1:
        mass = 0.0
        for token_id in sorted(range(len(logits)), key=lambda i: (-wanted[i], i)):
            kept = mass < top_p or mass == 0
            mass += wanted[token_id]
            if not kept:
                wanted[token_id] = 0
    wanted[wanted < min_p * wanted.max()] = 0
    wanted /= wanted.sum()
    assert found.sum() == pytest.approx(1)
    np.testing.assert_allclose(found, wanted, atol=1 if is_tied or not _has_no_tie(wanted) else 1e-6)


@pytest.mark.parametrize(
    "config",
    [
        SamplingConfig(temperature=0.8),
        SamplingConfig(temperature=0.8, top_p=0.9),
        SamplingConfig(temperature=30.0, top_p=0.9),
        SamplingConfig(temperature=0.8, top_k=50),
        SamplingConfig(temperature=0.8, top_k=1999),
        SamplingConfig(temperature=0.8, min_p=0.05),
        SamplingConfig(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
    ],
    ids=str,
)
def test_a_large_vocabulary_is_drawn_from_as_its_probabilities_say(config: SamplingConfig) -> None:
    """Shortcuts past unlikely tokens lead where the whole distribution does."""
    random = np.random.default_rng(0)
    for position in range(40):
        logits = (3 * random.standard_normal(2000)).astype(np.float32)
        sampler = Sampler(replace(config, seed=5), 2000, [])
        cumulative = np.cumsum(probabilities(sampler, logits))
        wanted = int(np.searchsorted(cumulative, random_unit(5, position) * cumulative[-1], side="right"))
        assert chosen(sampler, logits, position) == wanted


def _has_no_tie(probabilities: Float64Array) -> bool:
    """Equal or nearly equal values may be cut on either side of a limit by rounding."""
    kept = np.sort(probabilities[probabilities > 0])
    return bool((np.diff(kept) > 1e-6).all())


def test_the_lowest_of_equals_is_taken_and_a_bias_on_an_unknown_token_refused() -> None:
    assert Sampler(SamplingConfig(), 4, []).peek(np.array([0, 3, 3, 1], np.float32), 0) == 1
    with pytest.raises(ConfigError, match="99"):
        Sampler(SamplingConfig(logit_bias={99: 1.0}), 4, [])


@given(
    logits=st.lists(st.integers(-20, 20), min_size=4, max_size=4),
    answer=st.lists(st.integers(0, 3), max_size=12),
    frequency=st.integers(-4, 4),
    presence=st.integers(-4, 4),
)
def test_penalties_equal_a_plain_reference(logits: list[int], answer: list[int], frequency: int, presence: int) -> None:
    config = SamplingConfig(
        repetition_penalty=2.0, frequency_penalty=frequency / 2, presence_penalty=presence / 2, logit_bias={1: 3.5}
    )
    sampler = Sampler(config, 4, [2])
    for position, token_id in enumerate(answer):
        one_hot = np.full(4, -1e6, np.float32)
        one_hot[token_id] = 1e6
        assert chosen(sampler, one_hot, position) == token_id
    wanted = []
    for token_id, logit in enumerate(logits):
        repeated = (logit / 2 if logit > 0 else logit * 2) if token_id in [2, *answer] else logit
        penalty = answer.count(token_id) * frequency / 2 + (token_id in answer) * presence / 2
        wanted.append(repeated - penalty + 3.5 * (token_id == 1))
    assert chosen(sampler, np.array(logits, np.float32), len(answer)) == int(np.argmax(wanted))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", -0.1), ("top_k", -1), ("top_p", -0.1), ("min_p", -0.1), ("repetition_penalty", 0.0)),
        *(("frequency_penalty", -2.1), ("presence_penalty", 2.1), ("presence_penalty", float("nan")), ("seed", -1)),
    ],
)
def test_option_outside_its_range_is_one_sentence_with_the_value(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^{name} is .*\.$"):
        SamplingConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [5e-324, 1e-50, 1e-30])
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.9}, {"top_k": 2}, {"min_p": 0.1}], ids=str)
def test_a_tiny_temperature_takes_the_best(temperature: float, cut: dict[str, float]) -> None:
    config = SamplingConfig(temperature=temperature, **cut)  # type: ignore[arg-type]
    logits = np.array([1.0, 1.0001, -1e4, -np.inf, 1e4, 9999.99], np.float32)
    sampler = Sampler(config, len(logits), [])
    assert {chosen(sampler, logits, position) for position in range(20)} == {4}


PROMPT = "# tar\n\n> Archiving utility."
BOTH = SamplingConfig(frequency_penalty=0.3, presence_penalty=0.2)
SAMPLINGS = {
    "greedy": BOTH,
    "negative": SamplingConfig(frequency_penalty=-0.5, presence_penalty=-0.5),
    "sampled": replace(BOTH, temperature=0.8, top_p=0.95, seed=3),
    "all together": replace(BOTH, repetition_penalty=1.05, logit_bias={10: -3.0, 40: 1.5}, temperature=0.6, seed=5),
}


def test_drafted_answers_are_the_plain_ones_alone_and_in_a_batch(engine: Engine) -> None:
    config = GenerationConfig(max_tokens=40, ignores_eos=True, wants_logprobs=True)
    configs = [replace(config, sampling=sampling) for sampling in SAMPLINGS.values()]
    together = engine.generate_batch([PROMPT] * len(configs), configs)
    for each, beside in zip(configs, together, strict=True):
        plain = engine.generate(PROMPT, replace(each, is_drafted=False))
        alone = engine.generate(PROMPT, each)
        assert alone.stats.num_drafted_tokens > 0
        assert (alone.token_ids, alone.logprobs) == (plain.token_ids, plain.logprobs)
        assert (beside.token_ids, beside.logprobs) == (plain.token_ids, plain.logprobs)


def test_penalties_hold_repetition_back_and_negative_ones_invite_it(engine: Engine) -> None:
    config = GenerationConfig(max_tokens=80, ignores_eos=True)

    def most_common(sampling: SamplingConfig) -> int:
        answer = engine.generate(PROMPT, replace(config, sampling=sampling)).token_ids
        return Counter(answer).most_common(1)[0][1]

    held, plain, invited = (
        most_common(SamplingConfig(frequency_penalty=penalty, presence_penalty=penalty)) for penalty in (2.0, 0.0, -2.0)
    )
    assert held < plain < invited


def test_a_grammar_and_penalties_hold_together(engine: Engine) -> None:
    pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
    grammar = Grammar("regex", r"([a-c]{2} ){10}")
    for sampling in SAMPLINGS.values():
        config = GenerationConfig(max_tokens=60, grammar=grammar, sampling=sampling)
        drafted = engine.generate(PROMPT, config)
        assert drafted.token_ids == engine.generate(PROMPT, replace(config, is_drafted=False)).token_ids
        assert len(drafted.text) == 30
