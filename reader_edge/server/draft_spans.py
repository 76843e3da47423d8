"""Which source drafted what of an answer's text."""

from collections import deque

from reader_edge.server.logprob_fields import token_text
from reader_edge_runtime import GenerationChunk
from reader_edge_runtime.text.tokenizer import Tokenizer


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
