"""What drafted each piece of an answer's text: tokens come at once, and their text when it is certain."""

from collections import deque

from reader_edge_runtime import GenerationChunk
from reader_edge_runtime.text.tokenizer import Tokenizer


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
            piece, source = self._ahead.popleft()
            if not text.startswith(piece) and not piece.startswith(text):  # a part of a character, a space left out
                self._ahead.clear()
                break
            spans.append((text[: len(piece)], source))
            if len(piece) > len(text):
                self._ahead.appendleft((piece[len(text) :], source))
            text = text[len(piece) :]
        return [*spans, (text, "")] if text else [span for span in spans if span[0]]
