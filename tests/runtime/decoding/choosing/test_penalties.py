"""Frequency and presence penalties on a model: drafted answers are the plain ones, in batches and with all else."""

from collections import Counter
from dataclasses import replace

import pytest

from reader_edge_runtime import Engine, GenerationConfig, Grammar, SamplingConfig

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
