"""What is reported of single tokens: log-probabilities in OpenAI's words, and what drafted them."""

from collections import deque

from reader_edge.server.completion_request import Json
from reader_edge_runtime import GenerationChunk, GenerationResult
from reader_edge_runtime.text.tokenizer import Tokenizer

Answered = GenerationChunk | GenerationResult


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
