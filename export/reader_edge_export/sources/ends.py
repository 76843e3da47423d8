"""Which tokens end an answer: one rule for folders and for GGUF files, so that one model ends alike from both.

Ends are the tokens that a source names, and those that are called as ends are, in the light of what else its vocabulary
has. Names and exceptions are those of llama.cpp (`special_eog_ids` in `src/llama-vocab.cpp`), which goes by names
because GGUF files name few ends; its tokens of infilling are left out, for no model's own files end answers there.
"""

from collections.abc import Collection, Iterable, Mapping

_ENDS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|endoftext|>", "<|end_of_text|>", "<end_of_turn>"),
    *("<|return|>", "<|call|>", "<|calls|>", "<|flush|>", "<turn|>", "<|tool_response>", "<end_of_utterance>"),
    *("<EOT>", "\u2581<EOT>", "[EOT]", "[EOS]", "<eos>", "[e~[", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
)
# Phi-3, whose vocabulary alone has the placeholder, ends an answer too where it would begin another.
_ENDS_BESIDE = {"<|assistant|>": "<|placeholder1|>"}
# With one of each, <|end|> ends a part of an answer, such as its thoughts.
_LAST_ENDS, _CALL_ENDS = {"<|return|>", "<|flush|>"}, {"<|call|>", "<|calls|>"}


def end_ids(named: Iterable[int], vocabulary: Mapping[str, int], special: Collection[int]) -> tuple[int, ...]:
    """Ids of the tokens that end an answer: those that the source names, in its order, and those that are called so.

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
