"""Whether a source that takes long is worth asking: what it adds to what others draft, and what that takes here."""

_FIRST_GAIN = 0.3  # tokens a step, where the others know nothing
_FIRST_STEPS = 8.0  # that this counts for
_MEMORY = 200.0  # steps that are remembered
_TIME_MEMORY = 0.05  # weight of the newest time in the mean
_TRIED_SHARE = 0.005  # of decoding time, for trying a source that does not pay
_UNSURE = 0.5  # least doubt of the others in a step that tells much


class AskedGain:
    """Learns from each step in which the source was asked.

    It adds where the others fail, so its gain is taken to be in proportion to their doubt: one minus how sure they are
    of the likeliest next token. A source that does not pay falls silent, and is tried now and then: texts change.
    seconds: of asking for one request, drafting again included; 0 before it was asked.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._gained = _FIRST_GAIN * _FIRST_STEPS
        self._doubted = _FIRST_STEPS
        self._spare_s = 0.0

    @property
    def gain(self) -> float:
        """Tokens that asking adds to a step in which the others know nothing."""
        return self._gained / self._doubted

    def is_paid(self, promised: float, token_s: float) -> bool:
        """Whether asking pays in this step, or shall be tried.

        promised: how sure the others are. token_s: seconds that a token takes without a draft; 0 where nothing was
        measured, and then it is asked.
        """
        doubt = 1 - promised
        if doubt * self.gain * token_s >= self.seconds * (token_s > 0):
            return True
        self._spare_s += _TRIED_SHARE * token_s
        if self._spare_s < self.seconds or doubt < _UNSURE:
            return False
        self._spare_s = 0.0
        return True

    def learn(self, promised: float, num_gained: int, seconds: float) -> None:
        """Learn from a step. num_gained: tokens accepted beyond those of the others' draft of as many nodes."""
        kept = 1 - 1 / _MEMORY
        self._gained = kept * self._gained + num_gained
        self._doubted = kept * self._doubted + 1 - promised
        newest = min(seconds, 2 * self.seconds) if self.seconds else seconds  # an outlier moves nothing far
        self.seconds += (_TIME_MEMORY if self.seconds else 1.0) * (newest - self.seconds)
