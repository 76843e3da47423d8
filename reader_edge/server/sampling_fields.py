"""How a request wants its tokens chosen, in OpenAI's words."""

import secrets
from dataclasses import replace

from reader_edge.server.api_error import ApiError, wrong_value
from reader_edge.server.fields import Fields
from reader_edge_runtime import GenerationConfig, SamplingConfig

_MAX_STOPS, _MAX_STOP_CHARACTERS, _MAX_BIASES = 16, 1000, 1024


def read_config(fields: Fields, max_tokens: int, wants_logprobs: bool, num_top_logprobs: int) -> GenerationConfig:
    """max_tokens: where the request names no number. Raises ApiError and ConfigError."""
    top_k = fields.integer("top_k", 0)
    sampling = SamplingConfig(
        repetition_penalty=fields.number("repetition_penalty", 1.0),
        logit_bias=_read_bias(fields),
        temperature=fields.number("temperature", 1.0),
        top_k=0 if top_k == -1 else top_k,  # as others write "off"
        top_p=fields.number("top_p", 1.0),
        min_p=fields.number("min_p", 0.0),
        seed=fields.integer("seed", secrets.randbits(63)) % 2**64,
    )
    return GenerationConfig(
        max_tokens=max_tokens,
        sampling=sampling,
        stop=_read_stop(fields),
        ignores_eos=fields.flag("ignore_eos"),
        wants_logprobs=wants_logprobs,
        num_top_logprobs=num_top_logprobs,
    )


def with_next_seed(config: GenerationConfig, distance: int) -> GenerationConfig:
    """The config of a further choice: the same, its random numbers others."""
    seed = (config.sampling.seed + distance) % 2**64
    return replace(config, sampling=replace(config.sampling, seed=seed))


def _read_stop(fields: Fields) -> tuple[str, ...]:
    value = fields.take("stop")
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > _MAX_STOPS:
        raise wrong_value("stop", value, f"a text or a list of at most {_MAX_STOPS} texts", "stop")
    if not all(isinstance(each, str) and 0 < len(each) <= _MAX_STOP_CHARACTERS for each in stops):
        raise wrong_value("stop", value, f"texts of 1 to {_MAX_STOP_CHARACTERS} characters", "stop")
    return tuple(stops)


def _read_bias(fields: Fields) -> dict[int, float]:
    values = fields.get("logit_bias", dict, {}, "an object of token ids and numbers")
    if len(values) > _MAX_BIASES:
        sentence = f"'logit_bias' names {len(values)} token ids, but may name {_MAX_BIASES} at most."
        raise ApiError(400, sentence, "logit_bias")
    try:
        return {int(token_id): value for token_id, value in values.items()}
    except ValueError:
        raise wrong_value("logit_bias", values, "token ids, each with a number", "logit_bias") from None
