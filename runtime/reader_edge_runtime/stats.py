"""Statistics of a request: tokens, passes, times, and the one definition of acceptance figures."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from reader_edge_runtime.draft_tree import DraftTree


@dataclass(slots=True)
class StepTimes:
    """Seconds of a step. verify_s: choosing tokens, text, stop strings and the wait for a second pass included;
    commit_s: moving KV rows."""

    draft_s: float = 0.0
    forward_s: float = 0.0
    verify_s: float = 0.0
    commit_s: float = 0.0
    learn_s: float = 0.0

    @property
    def beside_s(self) -> float:
        """Seconds beside the pass and the choice of tokens."""
        return self.draft_s + self.commit_s + self.learn_s


STEP_PARTS = tuple(part.name for part in fields(StepTimes))


@dataclass(slots=True)
class GenerationStats(StepTimes):
    """Counts and times of one request; sums of several through `total`.

    num_prompt_tokens: tokens of the prompt; num_reused_tokens of them were in the KV cache already.
    num_tokens: tokens emitted, end token included. num_reasoning_tokens: of these, what the model thinks, with its
        marks, where the config splits it off.
    num_steps: decoding passes of the target model, prefill not counted.
    num_drafted_tokens, num_accepted_tokens: draft tokens proposed, and those that verification accepted.
    drafted_by_source, accepted_by_source: the same, by the source that gave a node most of its weight.
    proposed_by_source: steps for which sources that take long (speculator, draft model) were called.
    steps_by_width: decoding passes by the nodes of their widest tree; 1 is plain.
    num_wasted_drafts: drafts that promised too little to verify: their pass was plain.
    num_backoff_steps: passes without a draft because drafts had been wasted; num_unready_steps: because the drafter was
        not loaded yet.
    num_redecided_tokens: near ties that a single-token pass decided again.
    log_probability: sum over the tokens of what the target gave them; None where they were not scored.
    accepted_by_depth: accepted draft tokens by their depth below the pending token (1 is a child of it).
    drafted_by_tenth, predicted_by_tenth, accepted_by_tenth: draft tokens by the tenth their predicted value falls in
        (0 is below 0.1), the sum of their values in thousandths, and how many were accepted.
    decode_s: all of the steps, each charged in full to every sequence of its batch; those of StepTimes are its parts.
    """

    num_prompt_tokens: int = 0
    num_reused_tokens: int = 0
    num_tokens: int = 0
    num_reasoning_tokens: int = 0
    num_steps: int = 0
    num_drafted_tokens: int = 0
    num_accepted_tokens: int = 0
    drafted_by_source: Counter[str] = field(default_factory=Counter)
    accepted_by_source: Counter[str] = field(default_factory=Counter)
    proposed_by_source: Counter[str] = field(default_factory=Counter)
    accepted_by_depth: Counter[int] = field(default_factory=Counter)
    drafted_by_tenth: Counter[int] = field(default_factory=Counter)
    predicted_by_tenth: Counter[int] = field(default_factory=Counter)
    accepted_by_tenth: Counter[int] = field(default_factory=Counter)
    steps_by_width: Counter[int] = field(default_factory=Counter)
    num_wasted_drafts: int = 0
    num_backoff_steps: int = 0
    num_unready_steps: int = 0
    num_redecided_tokens: int = 0
    log_probability: float | None = None
    prefill_s: float = 0.0
    decode_s: float = 0.0

    @property
    def num_decoded_tokens(self) -> int:
        """Tokens that decoding steps emitted: all but the one that the prefill gave."""
        return self.num_accepted_tokens + self.num_steps

    @property
    def acceptance_length(self) -> float:
        """Tokens emitted per step, the bonus token included (the literature's MAT); 0 before the first step."""
        return self.num_decoded_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted over drafted tokens; 0 when nothing was drafted."""
        return self.num_accepted_tokens / self.num_drafted_tokens if self.num_drafted_tokens else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens that decoding steps emitted, per second of `decode_s`; the prefill's own token is not counted."""
        return self.num_decoded_tokens / self.decode_s if self.decode_s else 0.0

    @property
    def perplexity(self) -> float | None:
        """How unsure the target was of its own answer: 1 is certain. None where the answer was not scored."""
        if self.log_probability is None or not self.num_tokens:
            return None
        return math.exp(-self.log_probability / self.num_tokens)

    def count_score(self, log_probability: float) -> None:
        """Count a token's log-probability."""
        self.log_probability = (self.log_probability or 0.0) + log_probability

    def count_step(self, width: int, times: StepTimes) -> None:
        """Count a step whose widest tree had `width` nodes."""
        self.num_steps += 1
        self.steps_by_width[width] += 1
        self.draft_s += times.draft_s
        self.forward_s += times.forward_s
        self.verify_s += times.verify_s
        self.commit_s += times.commit_s
        self.learn_s += times.learn_s
        self.decode_s += times.beside_s + times.forward_s + times.verify_s

    def count_tree(self, tree: DraftTree, path: Sequence[int]) -> None:
        """Count a step's tree, and the nodes of it that verification walked, the root first."""
        self.num_drafted_tokens += len(tree) - 1
        self.num_accepted_tokens += len(path) - 1
        for source, value in zip(tree.sources[1:], tree.values[1:], strict=True):
            tenth = _tenth(value)
            self.drafted_by_source[source] += 1
            self.drafted_by_tenth[tenth] += 1
            self.predicted_by_tenth[tenth] += round(1000 * value)
        for depth, node in enumerate(path[1:], start=1):
            self.accepted_by_source[tree.sources[node]] += 1
            self.accepted_by_depth[depth] += 1
            self.accepted_by_tenth[_tenth(tree.values[node])] += 1

    @classmethod
    def total(cls, several: Iterable["GenerationStats"]) -> "GenerationStats":
        """Counts and times of several requests together; they are scored where each of them is."""
        several, total = list(several), cls()
        for stats in several:
            for each in fields(cls):
                if each.name != "log_probability":
                    setattr(total, each.name, getattr(total, each.name) + getattr(stats, each.name))
        scores = [stats.log_probability for stats in several if stats.num_tokens]
        known = [score for score in scores if score is not None]
        total.log_probability = sum(known) if known and len(known) == len(scores) else None
        return total


def _tenth(value: float) -> int:
    return min(int(10 * value), 9)
