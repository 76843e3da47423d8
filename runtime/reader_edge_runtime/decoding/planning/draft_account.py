"""The account of drafting: what it has saved, what it has cost, and whether the next draft can be afforded."""

_SHARE = 0.01  # of all time that drafts in vain may take
# In plain steps: what can be saved up for hard times, and what can be owed, since one slow draft must not end drafting.
_MOST_SAVED = 100
_MOST_OWED = 1


class DraftAccount:
    """Seconds that drafting may still lose: a share of all the time that passes, and what drafts saved.

    It begins empty; what a request's first draft takes is given to it where that is little.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def affords(self, cost_s: float) -> bool:
        """Whether as much may be lost now."""
        return self.seconds >= cost_s

    def pass_time(self, seconds: float, step_s: float) -> None:
        """A step, or a prompt, took so long. step_s: what a plain step takes, which bounds the account."""
        self.book(_SHARE * seconds, step_s)

    def book(self, seconds: float, step_s: float) -> None:
        """Drafting saved so much, or lost it."""
        self.seconds = min(max(self.seconds + seconds, -_MOST_OWED * step_s), _MOST_SAVED * step_s)

    def fill(self, step_s: float) -> None:
        """Take it that as much as can be was saved up: for measurements amid a long text."""
        self.seconds = _MOST_SAVED * step_s
