"""Options are checked when they are made: types, ranges, and one sentence that names the value."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from reader_edge_runtime.config import (
    DraftConfig,
    EngineConfig,
    GenerationConfig,
    SamplingConfig,
    ServingConfig,
)
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.plug_ins import provider_names


@pytest.mark.parametrize(
    ("make", "name", "value", "words"),
    [
        (EngineConfig, "threads", 1.5, "a whole number"),
        (EngineConfig, "max_batch", True, "a whole number"),
        (EngineConfig, "is_probed", 1, "True or False"),
        (EngineConfig, "provider", "tpu", f"one of {', '.join(provider_names())}"),
        (EngineConfig, "provider", np.array(["cpu", "cuda"]), f"one of {', '.join(provider_names())}"),
        (DraftConfig, "max_nodes", "64", "a whole number"),
        (DraftConfig, "max_depth", 256, "from 1 to 255"),
        (SamplingConfig, "temperature", math.nan, "from 0 to 100"),
        (SamplingConfig, "temperature", "0.5", "a number"),
        (SamplingConfig, "temperature", True, "a number"),
        (SamplingConfig, "top_p", 2, "from 0 to 1"),
        (SamplingConfig, "top_k", 1.5, "a whole number"),
        (SamplingConfig, "top_k", None, "a whole number"),
        (SamplingConfig, "seed", 2**64, "from 0 to 2**64 - 1"),
        (SamplingConfig, "logit_bias", [1], "a mapping of token ids to numbers"),
        (SamplingConfig, "logit_bias token id", {1.5: 1.0}, "a whole number"),
        (SamplingConfig, "logit_bias token id", {2**70: 1.0}, "from 0 to 2147483647"),
        (SamplingConfig, "logit_bias of token 1", {1: math.nan}, "from -10000 to 10000"),
        (GenerationConfig, "max_tokens", 1.5, "a whole number"),
        (GenerationConfig, "max_tokens", 0, "1 or more"),
        (GenerationConfig, "sampling", {}, "a SamplingConfig"),
        (GenerationConfig, "stop", "", "texts that are not empty"),
        (GenerationConfig, "stop", (10**5000,), "texts that are not empty"),
        (GenerationConfig, "stop", (5,), "texts that are not empty"),
        (GenerationConfig, "stop", ("",), "texts that are not empty"),
        (GenerationConfig, "stop_token_ids", 5, "a tuple of token ids"),
        (GenerationConfig, "stop_token_ids", "", "a tuple of token ids"),
        (GenerationConfig, "stop_token_ids", b"a", "a tuple of token ids"),
        (GenerationConfig, "stop", b"", "texts that are not empty"),
        (GenerationConfig, "stop_token_ids", (2.0,), "a whole number"),
        (GenerationConfig, "stop_token_ids", (-1,), "from 0 to 2147483647"),
    ],
)
def test_an_option_of_another_kind_or_outside_its_range_is_one_sentence(
    make: Callable[..., object], name: str, value: object, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        make(**{name.split()[0]: value})
    assert str(caught.value).startswith(f"{name} is ")
    assert str(caught.value).endswith(f", but must be {words}.")


@pytest.mark.parametrize("name", ["temperature", "top_k", "seed"])
def test_a_number_of_too_many_digits_to_show_is_one_sentence(name: str) -> None:
    choice: dict[str, Any] = {name: -(10**5000)}
    with pytest.raises(ConfigError, match=f"^{name} is too long to show, but must be "):
        SamplingConfig(**choice)


def test_a_refusal_shows_no_more_than_the_beginning_of_a_long_value() -> None:
    temperature: Any = "9" * 5000
    with pytest.raises(ConfigError, match=r"^temperature is '9{79}, but must be a number\.$"):
        SamplingConfig(temperature=temperature)


def test_numbers_of_numpy_and_lists_are_kept_as_plain_values() -> None:
    choices: dict[str, Any] = {
        "temperature": np.float32(0.5),
        "top_k": np.uint8(200),
        "logit_bias": {np.int64(3): np.float32(2)},
    }
    limits: dict[str, Any] = {"max_tokens": np.int64(7), "stop": ["a"], "stop_token_ids": [np.int32(4)]}
    sampling = SamplingConfig(**choices)
    config = GenerationConfig(sampling=sampling, **limits)
    plain = SamplingConfig(temperature=0.5, top_k=200, logit_bias={3: 2.0})
    assert config == GenerationConfig(max_tokens=7, sampling=plain, stop=("a",), stop_token_ids=(4,))
    assert type(config.max_tokens) is type(sampling.top_k) is int


@pytest.mark.parametrize(
    ("config", "field", "words"),
    [
        (GenerationConfig, "temperature", r"give sampling=SamplingConfig\(temperature=...\), or give it beside"),
        (GenerationConfig, "max_token", "no field of GenerationConfig 'max_token': do you mean 'max_tokens'"),
        (SamplingConfig, "temp", "no field of SamplingConfig 'temp': "),
        (EngineConfig, "thread", "do you mean 'threads'"),
        (DraftConfig, "nodes", "do you mean 'max_nodes'"),
        (ServingConfig, "waiting", "do you mean 'max_waiting'"),
    ],
)
def test_a_field_that_a_config_has_not_is_one_sentence(config: Any, field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config(**{field: 1})
