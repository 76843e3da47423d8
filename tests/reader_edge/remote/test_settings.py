"""Settings and results come out as they went in."""

import json

import pytest

from reader_edge.remote.settings import Settings
from reader_edge_runtime import Conversation, GenerationConfig, Grammar, SamplingConfig
from reader_edge_runtime.errors import ConfigError
from tests.random_drafter import SecondBest
from tests.wrong_fields import assert_each_is_named

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


def test_configs_come_out_as_they_went_in() -> None:
    for config in (CONFIG, GenerationConfig(sampling=SamplingConfig())):
        assert Settings.decoded(Settings.of(config).encoded()).config() == config


def test_options_for_more_than_tokens_are_refused() -> None:
    for config in (
        GenerationConfig(wants_logprobs=True),
        GenerationConfig(wants_prompt_logprobs=True),
        GenerationConfig(splits_thinking=True),
        GenerationConfig(acceptance=SecondBest()),
    ):
        with pytest.raises(ConfigError, match="leave it out"):
            Settings.of(config)


def test_conversations_come_out_as_they_went_in() -> None:
    chat = Conversation([{"role": "user", "content": "a"}], template_args={"b": 1}, continues_final_message=True)
    found = Settings.decoded(Settings.of(CONFIG, chat).encoded()).chat()
    assert found is not None
    assert (found.messages, found.template_args, found.continues_final_message) == ([*chat.messages], {"b": 1}, True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stop": ["a"] * 17}, "stop .*; expected array of length <= 16"),
        ({"stop": ["a" * 1001]}, r"stop\[0\] .*; expected str of length <= 1000"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids .*length <= 1024"),
        ({"sampling": {"logit_bias": [[1, 1]] * 1025}}, "sampling.logit_bias .*length <= 1024"),
        ({"stop": 5}, "stop "),
        ({"conversation": 5}, "conversation "),
    ],
)
def test_settings_have_the_bounds_of_the_servers_other_paths(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=f"The request has an unusable {words}"):
        Settings.decoded(json.dumps(settings).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"[" * 100_000, b'{"max_tokens": NaN}'])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="The request is"):
        Settings.decoded(data)


def test_half_a_character_is_not_sent() -> None:
    with pytest.raises(ConfigError, match="The request cannot be sent"):
        Settings.of(GenerationConfig(prediction="\ud800")).encoded()


def test_every_setting_is_named_where_it_is_wrong() -> None:
    fields = json.loads(Settings.of(CONFIG, Conversation([{"role": "user", "content": "a"}])).encoded())
    assert_each_is_named(Settings, fields | {"conversation": {"continues_final_message": True}})
