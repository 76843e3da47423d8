"""What drafts and sources of drafts cost here, what they bring, and whether that pays off.

One formula decides (`pays_off`): the tokens that something brings, times what a token takes, against what it takes
itself. Its three figures are learned while decoding: of one request's drafts (`AcceptanceEstimate`), of drafting beside
the passes (`Overheads`), of a source whose gain is measured (`SourceGain`), of a draft model (`DraftModelGain`).
"""

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from reader_edge_runtime.draft_tree import FORCED_SOURCE, DraftTree

_TIME_MEMORY = 0.1  # weight of the newest time in a mean


def pays_off(num_tokens: float, token_s: float, seconds: float) -> bool:
    """Whether tokens are worth the time that they take; where no token's time is known (0), they are."""
    return num_tokens * token_s >= seconds * (token_s > 0)


def moved(mean: float, value: float, weight: float = _TIME_MEMORY) -> float:
    """A mean that follows its newest values, but no outlier far."""
    return mean + weight * (min(value, 2 * mean) - mean)


_PRIOR_TOKENS = 1.0  # weight, in predicted tokens, of the first belief in a drafter
_FIRST_DOUBT = 0.5  # predicted tokens that count as refused before any draft was made
_MEMORY = 0.95  # weight that each draft leaves to those before it
_FIRST_PAYOFF_RATIO = 2.0  # of a drafter that is not known yet
_MOST_INHERITED = 3.0  # of that: texts differ, and from a high mean it takes many futile drafts to back off
_PAYOFF_RATIO_MEMORY = 0.85  # weight that each draft's payoff_ratio leaves to those before it
_MAX_BACKOFFS = 6  # in a row
_FIRST_BACKOFF = 16  # what the longest one is divided by: where a draft takes as long as a step, one step is too little
_INHERITED = 0.5  # weight that a request's drafts have for the next request
_MOST_DOUBLINGS = 30


@dataclass(slots=True)
class AcceptanceEstimate:
    """What a request's drafts have taught: how far they are believed, and when the request backs off from drafting.

    predicted, accepted: draft tokens that were expected to be accepted, and those that were, recent drafts most.
    payoff_ratio: the time that drafts promised to save, as a multiple of what drafting takes, recent drafts most.
    num_backoffs: in a row. backoff_left: steps that are still decoded plainly.
    """

    predicted: float = _FIRST_DOUBT
    accepted: float = 0.0
    payoff_ratio: float = _FIRST_PAYOFF_RATIO
    num_backoffs: int = 0
    backoff_left: int = 0

    @property
    def acceptance_factor(self) -> float:
        """What a draft's values are multiplied by: accepted over predicted tokens, at most 1."""
        return min(1.0, (self.accepted + _PRIOR_TOKENS) / (self.predicted + _PRIOR_TOKENS))

    @property
    def has_paid(self) -> bool:
        """Whether drafts paid off better than is believed of a drafter that is not known yet."""
        return self.payoff_ratio > _FIRST_PAYOFF_RATIO

    @property
    def is_wasted(self) -> bool:
        """Whether drafts have long promised too little, so that not even their evidence is worth collecting."""
        return self.num_backoffs > _MAX_BACKOFFS

    def for_next(self) -> "AcceptanceEstimate":
        """What the next request starts from: half the belief, and the same backoff."""
        predicted, accepted = _INHERITED * self.predicted, _INHERITED * self.accepted
        payoff_ratio = min(self.payoff_ratio, _MOST_INHERITED)
        return AcceptanceEstimate(predicted, accepted, payoff_ratio, self.num_backoffs, self.backoff_left)

    def weigh(self, payoff_ratio: float, longest: int) -> None:
        """Back off where recent drafts, and this one, promised less than they took.

        Each time twice as long, up to `longest` steps. A draft that pays is followed by another one, however few did
        before: what kept a request from drafting may be over.
        """
        self.payoff_ratio = _PAYOFF_RATIO_MEMORY * self.payoff_ratio + (1 - _PAYOFF_RATIO_MEMORY) * payoff_ratio
        if self.payoff_ratio >= 1:
            self.num_backoffs = 0
        elif payoff_ratio < 1:
            self.backoff_left = min(max(longest // _FIRST_BACKOFF, 1) << self.num_backoffs, longest)
            self.num_backoffs = min(self.num_backoffs + 1, _MOST_DOUBLINGS)

    def wake(self) -> None:
        """Draft again although the backoff has not ended; a futile draft leads back to it."""
        self.backoff_left, self.payoff_ratio = 0, max(self.payoff_ratio, 1.0)

    def learn(
        self, draft: DraftTree, tree: DraftTree, path: Sequence[int], next_token_id: int, is_forced: bool = False
    ) -> None:
        """Learn how a draft fared of which `tree` was verified.

        A draft that was not verified teaches too: the next token shows whether one of the root's children was right.
        path: walked nodes, the root first. is_forced: whether this is about the nodes that a constraint forced, or
        about the others.
        """

        def counts(source: str) -> bool:
            return (source == FORCED_SOURCE) == is_forced

        if len(tree) > 1:
            predicted = sum(v for v, name in zip(tree.values[1:], tree.sources[1:], strict=True) if counts(name))
            accepted = sum(counts(tree.sources[node]) for node in path[1:])
        else:
            children = [node for node in range(1, len(draft)) if draft.parents[node] == 0]
            predicted = sum(draft.values[node] for node in children if counts(draft.sources[node]))
            child = draft.child(0, next_token_id)
            accepted = int(child >= 0 and counts(draft.sources[child]))
        self.predicted = _MEMORY * self.predicted + predicted
        self.accepted = _MEMORY * self.accepted + accepted


_MOST_WATCHED = 4096  # tokens of a text that was not watched before


class Repetition:
    """Watches for a text that begins to repeat itself while nothing is drafted, in a hundredth of a draft's time.

    A token repeats the text if it followed the same two tokens when they last came.
    """

    def __init__(self) -> None:
        self._followers: dict[tuple[int, int], int] = {}
        self._num_seen = self._num_repeated = 0

    def is_shown_by(self, token_ids: Sequence[int], num_tokens: int) -> bool:
        """Whether a text, which has grown since the last call, repeated so many tokens since it was last found to."""
        for i in range(max(self._num_seen, len(token_ids) - _MOST_WATCHED, 2), len(token_ids)):
            pair, token_id = (token_ids[i - 2], token_ids[i - 1]), token_ids[i]
            self._num_repeated = self._num_repeated + 1 if self._followers.get(pair) == token_id else 0
            self._followers[pair] = token_id
        self._num_seen = len(token_ids)
        is_shown = self._num_repeated >= num_tokens
        self._num_repeated *= not is_shown
        return is_shown


@dataclass(slots=True)
class Overheads:
    """Moving means in seconds for one request. Choosing tokens takes as long with drafts as without, and is left out.

    plain_s: a step beside its pass. draft_s: what drafting, and learning from the draft, add to it.
    start_s: what a request's first draft takes beyond that, since it learns the prompt.
    finish_s: learning the answer when the request ends.
    """

    plain_s: float = 5e-5
    draft_s: float = 1e-4
    start_s: float = 3e-4
    finish_s: float = 1e-4

    @property
    def first_draft_s(self) -> float:
        """What a request's first draft takes, and what it takes at the end to have drafted."""
        return self.start_s + self.draft_s + self.finish_s

    def learn_step(self, seconds: float, batch_size: int, num_drafts: int, num_first_drafts: int) -> None:
        """Learn from the seconds that a step took beside its pass."""
        if not num_drafts:
            self.plain_s = moved(self.plain_s, seconds / batch_size)
            return
        drafting_s = max(0.0, seconds - batch_size * self.plain_s)
        if num_first_drafts:
            self.start_s = moved(self.start_s, max(0.0, drafting_s - num_drafts * self.draft_s) / num_first_drafts)
        else:
            self.draft_s = moved(self.draft_s, drafting_s / num_drafts)

    def learn_finish(self, seconds: float) -> None:
        """Learn from the seconds that the drafter took when a request ended."""
        self.finish_s = moved(self.finish_s, seconds)


# How sure the others are, by which steps are classed: where they know nothing a further source seldom knows more,
# and where they are sure it adds nothing.
_EDGES = (0.1, 0.3, 0.6)
_FIRST_GAINS = (0.2, 0.2, 0.15, 0.05)  # tokens a step, about what speculators add
_FIRST_STEPS = 20.0  # that each of these counts for: a single step tells little
_STEPS_MEMORY = 100.0  # steps of a kind that are remembered
_SECONDS_MEMORY = 0.05  # weight of the newest time in the mean
_SHARES_MEMORY = 0.02  # weight of the newest step in the shares of the kinds
_TRIED_SHARE = 0.005  # of decoding time, for trying a source that does not pay


class SourceGain:
    """Learns from steps in which a source was called, by how sure the others were of the likeliest next token.

    A source that does not pay falls silent, and is tried now and then: texts change.
    seconds: of asking for one request; 0 before the first call. first_gains: tokens a step, before any was seen.
    """

    def __init__(self, first_gains: Sequence[float] = _FIRST_GAINS) -> None:
        self.seconds = 0.0
        self._gained = [gain * _FIRST_STEPS for gain in first_gains]
        self._steps = [_FIRST_STEPS] * len(first_gains)
        self._shares = [1 / len(first_gains)] * len(first_gains)
        self._spare_s = 0.0

    def gain(self, top_probability: float) -> float:
        """Tokens that asking adds to a step in which the others are so sure."""
        kind = bisect(_EDGES, top_probability)
        return self._gained[kind] / self._steps[kind]

    def saved_s(self, token_s: float) -> float:
        """Seconds that it saves a step on average, if it is called only where that pays. token_s: as in `pays`."""
        gains = (gained / steps for gained, steps in zip(self._gained, self._steps, strict=True))
        return sum(
            share * max(gain * token_s - self.seconds, 0.0) for share, gain in zip(self._shares, gains, strict=True)
        )

    def pays(self, top_probability: float, token_s: float) -> bool:
        """Whether asking pays in this step, or shall be tried; called once a step.

        top_probability: how sure the others are. token_s: seconds that a further token saves; 0 where nothing was
        measured, and then it is called.
        """
        kind = bisect(_EDGES, top_probability)
        self._shares = [share + _SHARES_MEMORY * ((k == kind) - share) for k, share in enumerate(self._shares)]
        if pays_off(self.gain(top_probability), token_s, self.seconds):
            return True
        self._spare_s += _TRIED_SHARE * token_s
        if self._spare_s < self.seconds:
            return False
        self._spare_s = 0.0
        return True

    def learn(self, top_probability: float, num_gained: int, seconds: float) -> None:
        """Learn from a step. num_gained: tokens accepted beyond those of the others' draft of as many nodes."""
        kind, kept = bisect(_EDGES, top_probability), 1 - 1 / _STEPS_MEMORY
        self._gained[kind] = kept * self._gained[kind] + num_gained
        self._steps[kind] = kept * self._steps[kind] + 1
        self.seconds = moved(self.seconds, seconds, _SECONDS_MEMORY) if self.seconds else seconds


_FIRST_HITS = 0.6  # share of steps in which one of the first guesses is right, before any was seen
_HITS_MEMORY = 0.04  # weight of the newest guess in that share
_RENEWED = 0.02  # share of the distance to the first belief that each new request restores: texts change
_CLAIMS_MEMORY = 0.97  # weight that each claim leaves to those before it
_FEW_CLAIMS = 2.0  # claims that count as come true before any was seen
_INVESTED = 0.25  # share of what guesses may bring an answer that catching up with its text may take
_FIRST_ANSWER = 32.0  # tokens of an answer, before any was seen


class DraftModelGain:
    """What a draft model takes and brings: whether it is called, and for how many tokens.

    step_s: seconds of a pass of at most `narrow` tokens, for one request. token_s: of each further one in a wide pass.
    """

    def __init__(self, step_s: float, token_s: float, narrow: int) -> None:
        self.step_s = step_s
        self.token_s = token_s
        self.hits = _FIRST_HITS
        self._narrow = narrow
        self._answer_tokens = _FIRST_ANSWER
        self._claimed = self._came = _FEW_CLAIMS

    def gain_s(self, top_probability: float, plain_s: float) -> float:
        """Seconds that one step of the draft model saves; negative where it costs more than it brings.

        top_probability: how sure others are of the likeliest next token: it can only add where they fail. plain_s:
        seconds that a token takes without a draft.
        """
        return (1 - top_probability) * self.hits * plain_s - self.step_s

    def pays_to_catch_up(self, num_missing: int, gain_s: float, num_answered: int, num_left: int) -> bool:
        """Whether so many tokens are worth scoring for what guesses may save in the rest of an answer.

        num_answered: its tokens so far. num_left: those it may still have. An answer is taken to become as long as
        others, and one that is longer to have as much before it as behind.
        """
        num_coming = min(max(self._answer_tokens - num_answered, num_answered), num_left)
        return num_missing <= self._narrow or num_missing * self.token_s <= _INVESTED * gain_s * num_coming

    def goes_on(self, path: float, depth: int, plain_s: float) -> bool:
        """Whether a chain is worth another step. path: what the model gives to all its tokens together."""
        believed = path * (self._came / self._claimed) ** depth
        return pays_off(believed * self.hits, plain_s, self.step_s)

    def renew(self) -> None:
        """A request begins, on which the model may fare better or worse."""
        self.hits += _RENEWED * (_FIRST_HITS - self.hits)

    def learn_pass(self, seconds: float, num_tokens: int) -> None:
        """Learn what a pass took for one request."""
        if num_tokens <= self._narrow:
            self.step_s = moved(self.step_s, seconds)
        else:
            self.token_s = moved(self.token_s, max(0.0, seconds - self.step_s) / (num_tokens - 1))

    def learn_hit(self, is_hit: bool) -> None:
        """Learn whether one of the first guesses was right."""
        self.hits += _HITS_MEMORY * (is_hit - self.hits)

    def learn_claim(self, probability: float, is_right: bool) -> None:
        """Learn whether a token came that the model was so sure of."""
        self._claimed = _CLAIMS_MEMORY * self._claimed + probability
        self._came = min(_CLAIMS_MEMORY * self._came + is_right, self._claimed)

    def learn_answer(self, num_tokens: int) -> None:
        """Learn how long an answer became."""
        self._answer_tokens += _TIME_MEMORY * (num_tokens - self._answer_tokens)
