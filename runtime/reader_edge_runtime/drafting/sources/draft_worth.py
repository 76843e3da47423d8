"""What a draft model takes and brings here, learned while it drafts: whether it is asked, and for how many tokens."""

from reader_edge_runtime.drafting.sources.draft_model import NARROW

_FIRST_HITS = 0.6  # share of steps in which one of the first guesses is right, before any was seen
_HITS_MEMORY = 0.04  # weight of the newest guess in that share
_RENEWED = 0.02  # share of the distance to the first belief that each new request restores: texts change
_TIME_MEMORY = 0.1  # weight of the newest pass in a time
_CLAIMS_MEMORY = 0.97  # weight that each claim leaves to those before it
_FEW_CLAIMS = 2.0  # claims that count as come true before any was seen
_INVESTED = 0.25  # share of what guesses may bring an answer that catching up with its text may take
_FIRST_ANSWER = 32.0  # tokens of an answer, before any was seen


class DraftWorth:
    """step_s: seconds of a pass of one token, for one request. token_s: of each further one in a wide pass."""

    def __init__(self, step_s: float, token_s: float) -> None:
        self.step_s = step_s
        self.token_s = token_s
        self.hits = _FIRST_HITS
        self._answer_tokens = _FIRST_ANSWER
        self._claimed = self._came = _FEW_CLAIMS

    def gain_s(self, promised: float, plain_s: float) -> float:
        """Seconds that one step of the draft model saves; negative where it costs more than it brings.

        promised: how sure others are of the likeliest next token: it can only add where they fail. plain_s: seconds
        that a token takes without a draft.
        """
        return (1 - promised) * self.hits * plain_s - self.step_s

    def pays_to_catch_up(self, num_missing: int, gain_s: float, num_answered: int, num_left: int) -> bool:
        """Whether so many tokens are worth scoring for what guesses may save in the rest of an answer.

        num_answered: its tokens so far. num_left: those it may still have. An answer is taken to become as long as
        others, and one that is longer to have as much before it as behind.
        """
        num_coming = min(max(self._answer_tokens - num_answered, num_answered), num_left)
        return num_missing <= NARROW or num_missing * self.token_s <= _INVESTED * gain_s * num_coming

    def goes_on(self, path: float, depth: int, plain_s: float) -> bool:
        """Whether a chain is worth another step. path: what the model gives to all its tokens together."""
        believed = path * (self._came / self._claimed) ** depth
        return believed * self.hits * plain_s >= self.step_s * (plain_s > 0)

    def renew(self) -> None:
        """A request begins, on which the model may fare better or worse."""
        self.hits += _RENEWED * (_FIRST_HITS - self.hits)

    def learn_pass(self, seconds: float, num_tokens: int) -> None:
        """Learn what a pass took for one request; an outlier moves nothing far."""
        if num_tokens <= NARROW:
            self.step_s = _moved(self.step_s, seconds)
        else:
            self.token_s = _moved(self.token_s, max(0.0, seconds - self.step_s) / (num_tokens - 1))

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


def _moved(mean: float, value: float) -> float:
    """A mean that follows its newest values, but no outlier far."""
    return mean + _TIME_MEMORY * (min(value, 2 * mean) - mean)
