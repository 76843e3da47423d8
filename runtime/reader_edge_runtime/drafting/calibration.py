"""Calibration: how often the target went on as a class of evidence said, learned online."""

MAX_SUPPORT = 4
_MEMORY = 512.0

# Trials that a class's prior counts for; high enough that one miss does not silence a class.
_PRIOR_TRIALS = 4.0


class Calibration:
    """Acceptance per class (source, match length, support), with a decaying memory.

    The prior grows with the match: measured on recordings of chat, code and retrieval answers, a row after one token
    holds the next token about a third of the time, a row after eight about nine times in ten.
    """

    def __init__(self) -> None:
        self._hits: dict[tuple[int, int, int], float] = {}
        self._trials: dict[tuple[int, int, int], float] = {}

    def confidence(self, source: int, match_len: int, support: int) -> float:
        """Estimated probability that the next token is in a row of this class."""
        key = (source, match_len, min(support, MAX_SUPPORT))
        prior = _prior(match_len)
        return (self._hits.get(key, 0.0) + prior * _PRIOR_TRIALS) / (self._trials.get(key, 0.0) + _PRIOR_TRIALS)

    def observe(self, source: int, match_len: int, support: int, is_hit: bool) -> None:
        """Learn whether a row of this class held the token that came."""
        key = (source, match_len, min(support, MAX_SUPPORT))
        decay = 1.0 - 1.0 / _MEMORY
        self._hits[key] = self._hits.get(key, 0.0) * decay + is_hit
        self._trials[key] = self._trials.get(key, 0.0) * decay + 1.0


def _prior(match_len: int) -> float:
    return 1.0 - 0.65 / match_len
