"""Log-probabilities in OpenAI's words."""

from collections.abc import Iterator

from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.decoding.choosing.logprobs import TokenLogprob
from reader_edge_runtime.text.tokenizer import Tokenizer

Answered = GenerationChunk | GenerationResult
_WORD_START = "\N{LOWER ONE EIGHTH BLOCK}"  # how SentencePiece spells a space, which decoding leaves out at the start
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def chat_logprobs(answered: Answered, tokenizer: Tokenizer) -> dict[str, object] | None:
    """None where they were not asked for."""
    if not answered.logprobs:
        return None
    content = []
    for token_id, each in _shown(answered, tokenizer):
        top = [_fields(other, logprob, tokenizer) for other, logprob in each.top]
        content.append(_fields(token_id, each.logprob, tokenizer) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(answered: Answered, tokenizer: Tokenizer) -> dict[str, object] | None:
    """None where they were not asked for. Offsets count from the beginning of the text that comes with them."""
    if not answered.logprobs:
        return None
    tokens, offsets, logprobs, tops = [], [], [], []
    offset = 0
    for token_id, each in _shown(answered, tokenizer):
        tokens.append(token_text(token_id, tokenizer))
        offsets.append(offset)
        logprobs.append(each.logprob)
        tops.append({token_text(other, tokenizer): logprob for other, logprob in each.top})
        offset += len(tokens[-1])
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def _shown(answered: Answered, tokenizer: Tokenizer) -> Iterator[tuple[int, TokenLogprob]]:
    """The tokens that have a text, as the end of an answer has none."""
    for token_id, each in zip(answered.token_ids, answered.logprobs, strict=True):
        if tokenizer.token(token_id) is not None:
            yield token_id, each


def _fields(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, object]:
    text = token_text(token_id, tokenizer)
    is_whole = _REPLACEMENT not in text  # else a part of a character, whose bytes are not known here
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()) if is_whole else None}


def token_text(token_id: int, tokenizer: Tokenizer) -> str:
    spelled = tokenizer.token(token_id)
    text = tokenizer.decode([token_id])
    has_lost_space = spelled is not None and spelled.startswith(_WORD_START) and not text.startswith(" ")
    return f" {text}" if has_lost_space else text
