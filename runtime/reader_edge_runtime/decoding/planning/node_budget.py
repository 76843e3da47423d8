"""How many nodes a pass gets: as many as pay on this machine, and whether drafting is worth its own time."""

import math
from collections.abc import Sequence

from reader_edge_runtime.decoding.planning.draft_account import DraftAccount
from reader_edge_runtime.decoding.planning.draft_guard import DraftGuard
from reader_edge_runtime.decoding.planning.pass_times import PassTimes

# Drafting, checking and cutting cost with the nodes drafted: twice of what the last pass took leaves room to grow.
_FIRST_DRAFT = 16
_LEAST_DRAFT = 4
_TRIAL_WIDTH = 4  # a draft is made where such a pass could be afforded too

_MARGIN = 1.02  # drafting must promise so much more than plain decoding: estimates err
_VAIN_SHARE = 0.005  # of decoding time that drafts in vain take in the long run
_START_SHARE = 0.02  # of a request's coming plain steps that its drafting may take once
_PLAIN_EVERY = 64  # drafted steps after which one is plain, so that what plain decoding takes stays known

_FIRST_PLAIN_S = 5e-5
_FIRST_DRAFT_S = 1e-4
_FIRST_START_S = 3e-4
_FIRST_FINISH_S = 1e-4
_MEMORY = 0.1


class NodeBudget:
    """Chooses the width of each pass: argmax of expected tokens over seconds, per batch.

    times: of passes. plain_s, draft_s: seconds that a step takes beside its pass, and that drafting and learning add
    to it, both for each sequence, as measured of late. Choosing tokens takes as long a token either way and is left
    out. start_s, finish_s: what a request's first draft takes more, since it learns the prompt, and what learning its
    answer takes at the end. account: what drafting may still lose.
    """

    def __init__(self, max_width: int) -> None:
        self.times = PassTimes(max_width)
        self.plain_s = _FIRST_PLAIN_S
        self.draft_s = _FIRST_DRAFT_S
        self.start_s = _FIRST_START_S
        self.finish_s = _FIRST_FINISH_S
        self.max_drafted = _FIRST_DRAFT
        self.account = DraftAccount()
        self._num_drafted_steps = 0
        self._step_s = 0.0  # what a plain step took when last asked, and a pass of the trial width adds to it
        self._trial_s = 0.0
        self._saved_s = (0.0, 0.0)  # by the last chosen width: what an accepted token saves, what the wider pass takes
        self._last_guard = DraftGuard()

    def begin(self) -> DraftGuard:
        """The guard of a new request, which knows what the last one taught."""
        return self._last_guard.for_next()

    def end(self, guard: DraftGuard, seconds: float, has_drafted: bool) -> None:
        """A request ended, and its drafter took so long to finish."""
        self._last_guard = guard
        self.account.book(-seconds, self._step_s)
        if has_drafted:
            self.finish_s = _moved(self.finish_s, seconds)

    def pays_start(self, num_tokens: int) -> bool:
        """Whether what its drafting takes once is little for a request that may get so many more tokens."""
        once_s = self.start_s + self.finish_s
        return not self.times.is_measured or once_s <= _START_SHARE * num_tokens * self._step_s

    def affords(self, num_drafts: int, num_started: int) -> bool:
        """Whether so many drafts may be made now, should all be in vain; num_started: by requests that had none."""
        if not self.times.is_measured:
            return True
        return self.account.affords(num_drafts * self.draft_s + num_started * self.start_s + self._trial_s)

    def prefilled(self, past: int, seconds: float, num_tokens: int) -> None:
        """A prompt took so long, a share of which may be spent on drafts, which may help with so many tokens.

        Where drafting may start, a first draft may be in vain: a request must find out early what drafts are worth.
        """
        if self.times.is_measured:
            self._note_times(self.times.seconds(1, past), 1)
            self.account.pass_time(seconds, self._step_s)
            if num_tokens and self.pays_start(num_tokens):
                self.account.book(self.start_s + self.finish_s + self.draft_s + self._trial_s, self._step_s)

    def skipped(self, past: int) -> None:
        """A text is taken to have gone before that paid for drafts."""
        self._note_times(self.times.seconds(1, past), 1)
        self.account.fill(self._step_s)

    @property
    def is_plain_due(self) -> bool:
        """Whether the next step should be plain, only to measure it."""
        return self._num_drafted_steps >= _PLAIN_EVERY

    def choose(self, values: Sequence[Sequence[float]], guards: Sequence[DraftGuard | None], past: int) -> int:
        """The width N of the next pass, 1 for plain decoding; guards whose drafts are not worth it will rest.

        values: of each sequence's draft, the nodes' values, root first. guards: None for what was not drafted.
        A tree's expected tokens at n nodes are the sum of its n best values: each accepted node, and the bonus token.
        """
        num_drafted = sum(guard is not None for guard in guards)
        if not num_drafted:
            return 1
        times = self.times.seconds(len(values), past)
        gains = [_gains(*each) for each in zip(values, guards, strict=True)]
        self._note_times(times, len(values))
        plain_s = self._step_s
        limit_s = self.account.seconds - self._draft_s(num_drafted) + times[1] if self.times.is_measured else math.inf
        beside_s = self._plain_s(len(values)) + self._draft_s(num_drafted)
        chosen, expected, best = 1, float(len(values)), _MARGIN * len(values) / (times[1] + beside_s)
        for width in range(2, min(max(map(len, values)), len(times) - 1) + 1):
            expected += sum(each[width - 2] for each in gains if len(each) > width - 2)
            rate = expected / (times[width] + beside_s)
            if rate > best and times[width] <= limit_s:
                chosen, best = width, rate
        self.max_drafted = min(max(2 * chosen, _LEAST_DRAFT), self.times.max_width)
        token_s = plain_s / len(values)
        self._saved_s = token_s, times[chosen] - times[1]
        is_worth_it = chosen > 1 and best * token_s > 1
        longest = int(self._draft_s(num_drafted) / (_VAIN_SHARE * plain_s))
        for guard, each in zip(guards, gains, strict=True):
            if guard is not None:
                if is_worth_it and sum(each[: chosen - 1]) * token_s > self._draft_s(1):
                    guard.go_on()
                else:
                    guard.rest(longest)
        return chosen

    def learn(
        self,
        batch_size: int,
        width: int,
        past: int,
        pass_s: float,
        beside_s: float,
        num_drafted: int,
        num_started: int = 0,
        num_accepted: int = 0,
    ) -> None:
        """Learn what a step took: its pass, and all else but the choice of tokens; and what drafts gave.

        num_started: of the drafts, those that were their request's first.
        """
        self.times.learn(batch_size, width, past, pass_s)
        if num_drafted:
            spent = max(0.0, beside_s - batch_size * self.plain_s)
            token_s, wider_s = self._saved_s
            self.account.book(num_accepted * token_s - wider_s - spent, self._step_s)
            if num_started:
                self.start_s = _moved(self.start_s, max(0.0, spent - num_drafted * self.draft_s) / num_started)
            else:
                self.draft_s = _moved(self.draft_s, spent / num_drafted)
        else:
            self.plain_s = _moved(self.plain_s, beside_s / batch_size)
        self.account.pass_time(pass_s + beside_s, self._step_s or pass_s)
        self._num_drafted_steps = 0 if width == 1 else self._num_drafted_steps + 1

    def _note_times(self, times: Sequence[float], batch_size: int) -> None:
        self._step_s = times[1] + self._plain_s(batch_size)
        self._trial_s = times[min(_TRIAL_WIDTH, len(times) - 1)] - times[1]

    def _plain_s(self, batch_size: int) -> float:
        return batch_size * self.plain_s if self.times.is_measured else 0.0

    def _draft_s(self, num_drafted: int) -> float:
        return num_drafted * self.draft_s if self.times.is_measured else 0.0


def _moved(mean: float, value: float) -> float:
    """A mean that follows its newest values, but no outlier far."""
    return mean + _MEMORY * (min(value, 2 * mean) - mean)


def _gains(values: Sequence[float], guard: DraftGuard | None) -> list[float]:
    """Expected tokens that each further node of a tree adds, best first."""
    if guard is None:
        return []
    trust = guard.trust
    return [trust * value for value in sorted(values[1:], reverse=True)]
