"""Next-token counts after every suffix of up to ORDER tokens: the evidence of the context and history sources."""

from collections import deque
from collections.abc import Sequence

ORDER = 8


class Counts:
    """How often each token followed each run of 1 to ORDER tokens."""

    def __init__(self) -> None:
        self._rows: dict[tuple[int, ...], dict[int, int]] = {}
        self._tail: tuple[int, ...] = ()

    def extend(self, token_ids: Sequence[int]) -> None:
        """Count tokens that continue what was counted last."""
        rows, tail = self._rows, self._tail
        for token_id in token_ids:
            for start in range(len(tail)):
                suffix = tail[start:]
                row = rows.get(suffix)
                if row is None:
                    rows[suffix] = {token_id: 1}
                else:
                    row[token_id] = row.get(token_id, 0) + 1
            tail = (*tail[-(ORDER - 1) :], token_id)
        self._tail = tail

    def cut(self) -> None:
        """End a text: what is counted next does not follow it."""
        self._tail = ()

    def remove(self, token_ids: Sequence[int]) -> None:
        """Take back one whole text that was counted between two cuts."""
        tail: tuple[int, ...] = ()
        for token_id in token_ids:
            for start in range(len(tail)):
                suffix = tail[start:]
                row = self._rows[suffix]
                row[token_id] -= 1
                if not row[token_id]:
                    del row[token_id]
                if not row:
                    del self._rows[suffix]
            tail = (*tail[-(ORDER - 1) :], token_id)

    def row(self, suffix: tuple[int, ...]) -> dict[int, int] | None:
        """Token id -> count of what followed `suffix` (1 to ORDER tokens), None when it never occurred."""
        return self._rows.get(suffix)

    def __len__(self) -> int:
        return len(self._rows)


class History:
    """Counts over the last texts of an engine, bounded in tokens; the oldest text goes first."""

    def __init__(self, max_tokens: int) -> None:
        self.counts = Counts()
        self.num_tokens = 0
        self._max_tokens = max_tokens
        self._texts: deque[list[int]] = deque()

    def add(self, token_ids: Sequence[int]) -> None:
        """Remember one text; of a text longer than the bound, its end."""
        text = list(token_ids[-self._max_tokens :]) if self._max_tokens else []
        if not text:
            return
        self._texts.append(text)
        self.counts.extend(text)
        self.counts.cut()
        self.num_tokens += len(text)
        while self.num_tokens > self._max_tokens:
            oldest = self._texts.popleft()
            self.counts.remove(oldest)
            self.num_tokens -= len(oldest)
