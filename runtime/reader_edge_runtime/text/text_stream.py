"""The text of one answer as it grows, ended by stop strings."""

from collections.abc import Sequence

from reader_edge_runtime.text.stream_decoder import StreamDecoder
from reader_edge_runtime.text.tokenizer import Tokenizer


class TextStream:
    """Decodes emitted tokens and watches for stop strings; text that may begin one is held back."""

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], stop: Sequence[str]) -> None:
        self._decoder = StreamDecoder(tokenizer, prompt_token_ids)
        self._stop = stop
        self._pending = ""
        self._ready: list[str] = []
        self._is_stopped = False

    def push(self, token_id: int) -> bool:
        """Take one emitted token; True when a stop string is complete."""
        self._add(self._decoder.push(token_id), is_end=False)
        return self._is_stopped

    def take(self) -> str:
        """Text that became certain since the last call."""
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def finish(self) -> None:
        """Release what is held back; the answer is over."""
        if not self._is_stopped:
            self._add(self._decoder.finish(), is_end=True)

    def _add(self, text: str, is_end: bool) -> None:
        self._pending += text
        found = [at for at in (self._pending.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self._is_stopped = True
            self._ready.append(self._pending[: min(found)])
            self._pending = ""
            return
        num_held = 0 if is_end else self._num_held()
        split = len(self._pending) - num_held
        self._ready.append(self._pending[:split])
        self._pending = self._pending[split:]

    def _num_held(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stop), default=0)
        for size in range(min(longest, len(self._pending)), 0, -1):
            if any(stop.startswith(self._pending[-size:]) for stop in self._stop):
                return size
        return 0
