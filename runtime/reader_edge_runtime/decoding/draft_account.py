"""The account of drafting: what it has saved, what it has cost, and whether the next draft can be afforded."""

_SHARE = 0.01  # of all time that drafts in vain may take
_ADVANCE = 0.02  # of a request's coming plain steps
# In plain steps: what a request brings at most, what can be saved up for hard times, and what can be owed, since one
# slow draft must not end drafting.
_MOST_ADVANCED = 4
_MOST_SAVED = 100
_MOST_OWED = 1


class DraftAccount:
    """Seconds that drafting may still lose: a share of all the time that passes, an advance on that of each request,
    and what drafts saved.

    It begins empty, so that a short answer on a small model, which is over in the time of a few drafts, gets none.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def affords(self, cost_s: float) -> bool:
        """Whether as much may be lost now."""
        return self.seconds >= cost_s

    def pass_time(self, seconds: float, step_s: float) -> None:
        """A step, or a prompt, took so long. step_s: what a plain step takes, which bounds the account."""
        self.book(_SHARE * seconds, step_s)

    def advance(self, num_tokens: int, step_s: float) -> None:
        """A request begins that may get so many tokens: if drafts are any good, it must find out early."""
        self.book(min(_ADVANCE * num_tokens, _MOST_ADVANCED) * step_s, step_s)

    def pays_start(self, start_s: float, num_tokens: int, step_s: float) -> bool:
        """Whether what a request's drafting takes once is little beside the steps of so many tokens."""
        return start_s <= _ADVANCE * num_tokens * step_s

    def book(self, seconds: float, step_s: float) -> None:
        """Drafting saved so much, or lost it."""
        self.seconds = min(max(self.seconds + seconds, -_MOST_OWED * step_s), _MOST_SAVED * step_s)

    def fill(self, step_s: float) -> None:
        """Take it that as much as can be was saved up: for measurements amid a long text."""
        self.seconds = _MOST_SAVED * step_s
