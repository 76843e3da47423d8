"""Whether a source that takes long is worth asking: what it adds to what others draft, and what that takes here."""

from bisect import bisect

# How sure the others are, by which steps are told apart: where they know nothing a further source seldom knows more,
# and where they are sure it adds nothing.
_EDGES = (0.1, 0.3, 0.6)
_FIRST_GAINS = (0.2, 0.2, 0.15, 0.05)  # tokens a step, about what trained heads add
_FIRST_STEPS = 20.0  # that each of these counts for: a single step tells little
_MEMORY = 100.0  # steps of a kind that are remembered
_TIME_MEMORY = 0.05  # weight of the newest time in the mean
_TRIED_SHARE = 0.005  # of decoding time, for trying a source that does not pay


class AskedGain:
    """Learns from steps in which the source was asked, apart by how sure the others were of the likeliest next token.

    A source that does not pay falls silent, and is tried now and then: texts change.
    seconds: of asking for one request; 0 before it was asked.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._gained = [gain * _FIRST_STEPS for gain in _FIRST_GAINS]
        self._steps = [_FIRST_STEPS] * len(_FIRST_GAINS)
        self._spare_s = 0.0

    def gain(self, promised: float) -> float:
        """Tokens that asking adds to a step in which the others are so sure."""
        kind = bisect(_EDGES, promised)
        return self._gained[kind] / self._steps[kind]

    def is_paid(self, promised: float, token_s: float) -> bool:
        """Whether asking pays in this step, or shall be tried.

        promised: how sure the others are. token_s: seconds that a further token saves; 0 where nothing was measured,
        and then it is asked.
        """
        if self.gain(promised) * token_s >= self.seconds * (token_s > 0):
            return True
        self._spare_s += _TRIED_SHARE * token_s
        if self._spare_s < self.seconds:
            return False
        self._spare_s = 0.0
        return True

    def learn(self, promised: float, num_gained: int, seconds: float) -> None:
        """Learn from a step. num_gained: tokens accepted beyond those of the others' draft of as many nodes."""
        kind, kept = bisect(_EDGES, promised), 1 - 1 / _MEMORY
        self._gained[kind] = kept * self._gained[kind] + num_gained
        self._steps[kind] = kept * self._steps[kind] + 1
        newest = min(seconds, 2 * self.seconds) if self.seconds else seconds  # an outlier moves nothing far
        self.seconds += (_TIME_MEMORY if self.seconds else 1.0) * (newest - self.seconds)
