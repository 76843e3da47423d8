"""What a proof found: divergences, runs, and the report of all."""

from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace

from reader_edge.prompts import EvalPrompt, by_category
from reader_edge.verify.variants import Setting, Variant
from reader_edge_runtime.package.manifest import EXACT_ATTENTIONS


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where one drafted answer first left the plain one.

    prompt: its index. position: tokens of the answer before it. *_token_id: what each chose; None where an answer had
    ended already. logit_gap: drafted token's logit minus the plain token's, in the drafted run's row.
    """

    prompt: int
    position: int
    plain_token_id: int | None
    drafted_token_id: int | None
    logit_gap: float | None


@dataclass(frozen=True, slots=True)
class Counts:
    """What was compared, and with what result. An answer is compared up to its first divergence.

    logit_rows: rows whose bits were compared with plain decoding's; 0 where the variant reads none.
    top_rows, top_rows_agreeing: see WatchedTarget; 0 too where no logits were read, and for a single answer.
    answers_with_images: whose prompts have some.
    """

    tokens_compared: int = 0
    divergences: int = 0
    logit_rows: int = 0
    logit_rows_equal: int = 0
    top_rows: int = 0
    top_rows_agreeing: int = 0
    answers_with_images: int = 0

    @classmethod
    def total(cls, several: Iterable["Counts"]) -> "Counts":
        return cls(*map(sum, zip(*map(astuple, several), strict=True)))


@dataclass(frozen=True, slots=True)
class ProofRun:
    """What was found of one setting. answers: what was compared of each question's, by its index, all together.

    num_whole: questions whose answers were compared to their ends. nodes_by_source: verified ones but the pending
    tokens. accepted_by_source: of these.
    """

    setting: Setting
    counts: Counts
    answers: dict[int, Counts]
    num_whole: int
    acceptance_length: float
    nodes_by_source: dict[str, int]
    accepted_by_source: dict[str, int]
    divergences: tuple[Divergence, ...]

    @property
    def is_covered(self) -> bool:
        """Whether anything was compared."""
        return self.counts.tokens_compared > 0


@dataclass(frozen=True, slots=True)
class ProofReport:
    """What was compared, with what result, and on what.

    refusal: the error, naming the source, that stopped a source which proposed token ids outside the vocabulary; None
    where nothing stopped it, or another token than the plain one had come before. longest_text: tokens of the longest
    prompt with its answer, as far as that was compared. seconds: that it took. is_interrupted: whether the user ended
    it.
    """

    questions: tuple[EvalPrompt, ...]
    runs: tuple[ProofRun, ...]
    refusal: str | None
    provider: str
    attention: str
    precision: str
    longest_text: int = 0
    seconds: float = 0.0
    is_interrupted: bool = False

    @property
    def counts(self) -> Counts:
        """The counts of all runs together."""
        return Counts.total(run.counts for run in self.runs)

    def by_category(self) -> dict[str, Counts]:
        """Of the answers to each category's questions; empty where there are no categories."""
        numbers = range(len(self.questions))
        answers = [Counts.total(run.answers[i] for run in self.runs if i in run.answers) for i in numbers]
        return {name: Counts.total(several) for name, several in by_category(self.questions, answers).items()}

    def by_variant(self) -> dict[Variant, "ProofReport"]:
        """The part of this report that belongs to each variant."""
        variants = dict.fromkeys(run.setting.variant for run in self.runs)
        return {
            variant: replace(self, runs=tuple(run for run in self.runs if run.setting.variant == variant))
            for variant in variants
        }

    @property
    def num_drafted(self) -> int:
        """Nodes of drafts that were verified, in all runs."""
        return sum(sum(run.nodes_by_source.values()) for run in self.runs)

    @property
    def logit_rows_bit_equal(self) -> bool:
        """Whether every logit row compared has the very bits that plain decoding had."""
        return self.counts.logit_rows_equal == self.counts.logit_rows

    @property
    def is_promise_kept(self) -> bool:
        """Whether every token is the same, every bit where the attention is exact, the graph's best successors are
        those of its logits, and no foreign id got through."""
        counts = self.counts
        is_same = counts.divergences == 0 and (self.logit_rows_bit_equal or self.attention not in EXACT_ATTENTIONS)
        return is_same and counts.top_rows_agreeing == counts.top_rows and self.refusal is not None

    def first_divergences(self) -> list[tuple[ProofRun, Divergence]]:
        """For each prompt that diverged, the divergence earliest in its answer, one with a logit gap first."""
        found = [(run, divergence) for run in self.runs for divergence in run.divergences]
        found.sort(key=lambda pair: (pair[1].position, pair[1].logit_gap is None), reverse=True)
        earliest = {divergence.prompt: (run, divergence) for run, divergence in found}
        return [earliest[prompt] for prompt in sorted(earliest)]
