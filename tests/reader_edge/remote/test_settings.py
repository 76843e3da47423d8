"""What is asked and told comes out as it went in."""

from dataclasses import fields

import pytest

from reader_edge.remote.frames import FrameError, opened, packed_facts
from reader_edge.remote.settings import config_of, conversation_facts, conversation_of, facts_of, stats_facts, stats_of
from reader_edge_runtime import Conversation, GenerationConfig, GenerationStats, Grammar, SamplingConfig
from reader_edge_runtime.errors import ConfigError
from tests.second_best import SecondBest

CONFIG = GenerationConfig(
    max_tokens=7,
    sampling=SamplingConfig(
        temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, seed=2**64 - 1, logit_bias={5: 1.5}, frequency_penalty=1
    ),
    stop=("a", "ä"),
    stop_token_ids=(4, 5),
    grammar=Grammar("regex", "a*", "mine"),
    prediction="b",
    ignores_eos=True,
    is_drafted=False,
    is_scored=True,
    cache_salt="mine",
)


def travelled(facts: dict[str, object]) -> dict[str, object]:
    return opened(packed_facts(70, facts))[1].facts()


def test_configs_come_out_as_they_went_in() -> None:
    for config in (CONFIG, GenerationConfig(sampling=SamplingConfig())):
        assert config_of(travelled(facts_of(config))) == config


def test_what_tells_more_than_tokens_is_not_asked_for() -> None:
    for config in (
        GenerationConfig(wants_logprobs=True),
        GenerationConfig(wants_prompt_logprobs=True),
        GenerationConfig(splits_thinking=True),
        GenerationConfig(acceptance=SecondBest()),
    ):
        with pytest.raises(ConfigError, match="leave it out"):
            facts_of(config)


def test_conversations_come_out_as_they_went_in() -> None:
    chat = Conversation([{"role": "user", "content": "a"}], template_args={"b": 1}, continues_final_message=True)
    found = conversation_of(travelled(conversation_facts(chat)))
    assert (found.messages, found.template_args, found.continues_final_message) == ([*chat.messages], {"b": 1}, True)


def test_statistics_come_out_as_they_went_in() -> None:
    stats = GenerationStats(num_tokens=5, log_probability=-1.5, decode_s=2)
    stats.accepted_by_source["device"] += 3
    stats.steps_by_width[4] += 1
    found = stats_of(travelled(stats_facts(stats)))
    assert found == stats
    assert isinstance(found.decode_s, float)
    assert stats_of(travelled(stats_facts(GenerationStats(num_tokens=5)))).perplexity is None


@pytest.mark.parametrize(
    "facts",
    [
        None,
        [],
        {"num_tokens": "5"},
        {"num_tokens": True},
        {"steps_by_width": 5},
        {"steps_by_width": [[1]]},
        {"steps_by_width": [[[], 1]]},
        {"steps_by_width": [["a", 1]]},
        {"steps_by_width": [[1, -1]]},
        {"steps_by_width": [[1, 10**4000]]},
        {"accepted_by_source": [["a", 1], [2, 1]]},
    ],
)
def test_what_is_no_statistics_is_refused(facts: object) -> None:
    told = facts if not isinstance(facts, dict) else stats_facts(GenerationStats()) | facts
    with pytest.raises(FrameError, match=f"as {next(iter(facts))}" if isinstance(facts, dict) else "no statistics"):
        stats_of(told)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"stop": ["a"] * 17}, "stop has 17 members, but may have 16 at most"),
        ({"stop": ["a" * 1001]}, "1001 characters, but may have 1000 at most"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids has 1025 members"),
        ({"sampling": {"logit_bias": [[1, 1]] * 1025}}, "logit_bias has 1025 members"),
    ],
)
def test_no_more_is_asked_than_of_the_servers_other_paths(facts: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of(facts)


@pytest.mark.parametrize("stop", [5, None, [5], [""]])
def test_what_no_stop_string_can_be_is_refused(stop: object) -> None:
    with pytest.raises(ConfigError, match="stop is"):
        config_of({"stop": stop})


def test_counts_are_by_names_or_by_numbers() -> None:
    counts = {name: value for name, value in stats_facts(GenerationStats()).items() if isinstance(value, list)}
    named = {name for name in counts if name.endswith("_by_source")}
    for name in counts:
        key = "a" if name in named else 1
        assert getattr(stats_of(counts | {name: [[key, 1]]}), name) == {key: 1}


def test_every_field_of_statistics_travels() -> None:
    assert set(stats_facts(GenerationStats())) == {field.name for field in fields(GenerationStats)}
