"""What is told of single tokens: log-probabilities in OpenAI's words, and what drafted them."""

import codecs
from collections import deque
from collections.abc import Sequence

from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.decoding.choosing.logprobs import TokenLogprob
from reader_edge_runtime.text.tokenizer import Tokenizer

Answered = GenerationChunk | GenerationResult
Json = dict[str, object]


def chat_logprobs(answered: Answered, tokenizer: Tokenizer) -> Json | None:
    """None where they were not asked for."""
    if not answered.logprobs:
        return None
    content = []
    for token_id, each in zip(answered.token_ids, answered.logprobs, strict=True):
        if tokenizer.token(token_id) is not None:  # the end of an answer has no text
            top = [_fields(other, logprob, tokenizer) for other, logprob in each.top]
            content.append(_fields(token_id, each.logprob, tokenizer) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _fields(token_id: int, logprob: float, tokenizer: Tokenizer) -> Json:
    spelled = tokenizer.token_bytes(token_id)
    return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}


def token_text(token_id: int, tokenizer: Tokenizer) -> str:
    """A token's text; a part of a character is a replacement character."""
    return tokenizer.token_bytes(token_id).decode(errors="replace")


class CompletionLogprobs:
    """Of one completion, whole or piece by piece. Offsets count characters from the beginning of its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._characters = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of_prompt(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> Json:
        """Those of a prompt that is told with its completion: one for each token, null for the first."""
        told = _nothing()
        is_first = True
        for token_id, each in zip(token_ids, logprobs, strict=True):
            has_text = self._tokenizer.token(token_id) is not None
            self._add(told, token_id, each, is_first and has_text)
            is_first = is_first and not has_text
        return told

    def of_answer(self, answered: Answered) -> Json | None:
        """None where they were not asked for."""
        if not answered.logprobs:
            return None
        told = _nothing()
        for token_id, each in zip(answered.token_ids, answered.logprobs, strict=True):
            if self._tokenizer.token(token_id) is not None:  # the end of an answer has no text
                self._add(told, token_id, each)
        return told

    def _add(self, told: Json, token_id: int, each: TokenLogprob | None, is_first: bool = False) -> None:
        spelled = self._tokenizer.token_bytes(token_id, is_first)
        values = {
            "tokens": _name(spelled),
            "token_logprobs": None if each is None else each.logprob,
            "top_logprobs": None if each is None else {self._named(other): logprob for other, logprob in each.top},
            "text_offset": self._offset,
        }
        for name, value in values.items():
            told[name].append(value)  # type: ignore[attr-defined]
        if self._tokenizer.token(token_id) is not None:
            self._offset += len(self._characters.decode(spelled))

    def _named(self, token_id: int) -> str:
        return _name(self._tokenizer.token_bytes(token_id))


class DraftSpans:
    """Follows one answer: its tokens come at once, and their text when it is certain."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ahead: deque[tuple[str, str]] = deque()  # texts and sources of tokens whose text has not come yet

    def push(self, chunk: GenerationChunk) -> list[tuple[str, str]]:
        """The chunk's text in pieces, each of a token, with what drafted it; "" where nothing did, or none can tell."""
        for token_id, source in zip(chunk.token_ids, chunk.sources, strict=True):
            self._ahead.append((token_text(token_id, self._tokenizer), source))
        text, spans = chunk.text, []
        while text and self._ahead:
            said, source = self._ahead.popleft()
            if not text.startswith(said) and not said.startswith(text):  # a part of a character, a space left out
                self._ahead.clear()
                break
            spans.append((text[: len(said)], source))
            if len(said) > len(text):
                self._ahead.appendleft((said[len(text) :], source))
            text = text[len(said) :]
        return [*spans, (text, "")] if text else [span for span in spans if span[0]]


def joined(first: Json | None, second: Json | None) -> Json | None:
    """Those of a prompt and of its completion in one."""
    if first is None or second is None:
        return first or second
    return {name: [*first[name], *second[name]] for name in first}  # type: ignore[misc]


def _nothing() -> Json:
    return {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


def _name(spelled: bytes) -> str:
    """A token's text; of a part of a character the bytes, as OpenAI writes them, so that no two are called alike."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)
