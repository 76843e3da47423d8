"""How a model's maker recommends to choose tokens: read as transformers reads generation_config.json."""

from collections.abc import Mapping
from typing import Any

from reader_edge_runtime.errors import ConfigError, ExportError
from reader_edge_runtime.generation_config import OWN_SAMPLING, SamplingConfig
from reader_edge_runtime.untrusted.user_input import short_repr

# What transformers' `generate` takes where a file says nothing, tokens being drawn.
_DRAWN = {"temperature": 1.0, "top_k": 50, "top_p": 1.0}
# Other ways to choose, and to end, that a file may ask for, and what they are where they are off.
_OTHERS: Mapping[str, object] = {
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("min_length", "min_new_tokens", "frequency_penalty", "presence_penalty", "diversity_penalty"), 0),
    **dict.fromkeys(("typical_p", "encoder_repetition_penalty", "num_beams", "num_beam_groups"), 1),
    **dict.fromkeys(("top_h", "penalty_alpha", "bad_words_ids", "suppress_tokens", "begin_suppress_tokens"), None),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "sequence_bias", "guidance_scale"), None),
    **dict.fromkeys(("exponential_decay_length_penalty", "watermarking_config", "force_words_ids"), None),
    **dict.fromkeys(("constraints", "stop_strings", "max_time", "dola_layers"), None),
    "token_healing": False,
}


def own_sampling(given: Mapping[str, Any], place: str) -> dict[str, float]:
    """What a package recommends (`Manifest.sampling`): {} for greedy decoding without a penalty.

    given: by transformers' names; null is as good as nothing. Without do_sample no token is drawn.
    place: of these values, for errors. Raises ExportError for a value that cannot be meant.
    """
    is_drawn = given.get("do_sample") or False
    if not isinstance(is_drawn, bool):
        raise ExportError(f"{place} gives do_sample as {short_repr(is_drawn)}: true or false can be meant, correct it.")
    named = {name: given[name] for name in OWN_SAMPLING if given.get(name) is not None}
    if named.get("top_k") == -1:  # all tokens, as some write it
        named["top_k"] = 0
    try:
        read = SamplingConfig(**(_DRAWN | named))
    except ConfigError as error:
        raise ExportError(f"{place} cannot be meant: {str(error).removesuffix('.')}; correct it.") from None
    names = OWN_SAMPLING if is_drawn else ("repetition_penalty",)
    if not is_drawn and read.repetition_penalty == 1:
        return {}
    return {name: getattr(read, name) for name in names if name in named or (is_drawn and name in _DRAWN)}


def other_choices(given: Mapping[str, Any]) -> tuple[str, ...]:
    """What is recommended besides, which is not done here."""
    return tuple(name for name, off in _OTHERS.items() if given.get(name) not in (None, off))
