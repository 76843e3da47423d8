"""Generation defaults of a source: which tokens end answers, and how its maker recommends to sample."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from reader_edge_runtime.errors import ConfigError, ExportError
from reader_edge_runtime.generation_config import OWN_SAMPLING, SamplingConfig
from reader_edge_runtime.untrusted.user_input import short_repr

_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"),
    *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<turn|>", "<|tool_response>", "<end_of_utterance>"),
    *("<EOT>", "\u2581<EOT>", "[EOT]", "[EOS]", "<eos>", "[e~[", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)
# Names and exceptions are those of llama.cpp (`special_eog_ids` in `src/llama-vocab.cpp`), since GGUF files name few
# ends; its tokens of infilling are left out, for no model's own files end answers there.
# Phi-3, whose vocabulary alone has the placeholder, ends an answer too where it would begin another.
_ENDS_BESIDE = {"<|assistant|>": "<|placeholder1|>"}
# With one of each, <|end|> ends a part of an answer, such as its thoughts.
_LAST_ENDS, _CALL_ENDS = {"<|return|>", "<|flush|>"}, {"<|call|>", "<|calls|>"}
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


def end_ids(named: Iterable[int], vocabulary: Mapping[str, int], special: Collection[int]) -> tuple[int, ...]:
    """Ids of the tokens that end an answer: those that the source names, in its order, and those that are called so.

    One rule for folders and GGUF files, so that one model ends alike from both.

    vocabulary: token -> id. special: ids of control tokens.
    """
    called = [token for token in _ENDS if token in vocabulary]
    called += [token for token, beside in _ENDS_BESIDE.items() if {token, beside} <= vocabulary.keys()]
    # Gemma writes HTML, of which this is a tag.
    if vocabulary.get("</s>") in special and "<|tool_response>" not in vocabulary:
        called.append("</s>")
    ids = dict.fromkeys([*named, *sorted(vocabulary[token] for token in called)])
    if _LAST_ENDS & vocabulary.keys() and _CALL_ENDS & vocabulary.keys():
        ids.pop(vocabulary.get("<|end|>", -1), None)
    return tuple(ids)


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
