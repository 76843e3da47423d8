"""The phases of a long task, announced and timed, and what is done of each."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OnPhase = Callable[[str], None]  # gets what begins
OnShare = Callable[[float, float], None]  # gets what is done of a phase, and how much it is in all
Advance = Callable[[float], None]  # gets how much more of a phase is done


class Progress:
    """seconds: wall time of each phase that has ended."""

    def __init__(self, on_phase: OnPhase | None = None, on_share: OnShare | None = None) -> None:
        self._on_phase = on_phase
        self._on_share = on_share
        self.seconds: dict[str, float] = {}

    @contextmanager
    def enter(self, name: str) -> Iterator[None]:
        if self._on_phase is not None:
            self._on_phase(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = time.perf_counter() - start

    def update(self, done: float, total: float) -> None:
        """Report how much of the phase is done."""
        if self._on_share is not None:
            self._on_share(min(done, total), total)

    def share(self, total: float) -> Advance:
        """A callback for how much more is done of a phase of so much in all."""
        done = 0.0

        def advance(more: float) -> None:
            nonlocal done
            done += more
            self.update(done, total)

        return advance


def unseen(_: float) -> None:
    """An `Advance` that nobody looks at."""
