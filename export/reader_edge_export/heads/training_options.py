"""How long to train, and on how much, whatever is trained."""

from dataclasses import dataclass

_SHARE_OF_WRITING = 0.6  # of the time, where that is limited


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """num_tokens: that the target writes, if there are prompts enough; more where one answer must be held out.

    minutes: for all of it; None for no limit.

    force: train also where what is trained cannot pay.
    """

    num_tokens: int = 200_000
    minutes: float | None = None
    force: bool = False

    @property
    def seconds(self) -> float:
        """For all of it."""
        return float("inf") if self.minutes is None else 60 * self.minutes

    @property
    def seconds_of_writing(self) -> float:
        """Of these at most."""
        return _SHARE_OF_WRITING * self.seconds
