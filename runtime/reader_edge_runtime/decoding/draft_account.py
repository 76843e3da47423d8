"""The account of drafting: what it has saved, what it has cost, and whether the next draft can be afforded."""

_SHARE = 0.005  # of all time that drafts in vain may take
_MOST_DRAFTS = 8  # so many drafts in vain can be saved up for, or owed


class DraftAccount:
    """Seconds that drafting may still lose: a share of all the time that passes, and what drafts saved.

    It begins empty, so an engine's first steps are plain until there is enough for one draft: hundreds of steps where
    a pass takes less than drafting does, one where it takes much more.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def affords(self, cost_s: float) -> bool:
        """Whether as much may be lost now."""
        return self.seconds >= cost_s

    def pass_time(self, seconds: float, draft_s: float) -> None:
        """A step, or a prompt, took so long. draft_s: what one draft takes, which bounds the account."""
        self.book(_SHARE * seconds, draft_s)

    def book(self, seconds: float, draft_s: float) -> None:
        """Drafting saved so much, or lost it."""
        bound = _MOST_DRAFTS * draft_s
        self.seconds = min(max(self.seconds + seconds, -bound), bound)
