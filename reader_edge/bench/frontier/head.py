"""What a trained head would have to know to pay for itself, beside the drafts that there are."""

from dataclasses import dataclass

from reader_edge_runtime.stats import GenerationStats

ACCURACIES = (0.2, 0.4, 0.6)  # how often a head may be right where the tree does not say the next token


@dataclass(frozen=True, slots=True)
class HeadNeed:
    """A head asked in every step for the next token, in place of the least likely node of the tree. Modelled.

    share: of a one-node pass that its step takes. acceptance: how often it must be right where the tree does not say
    the next token, for as many tokens a second as without it; above 1 it cannot pay. tokens_per_s: by ACCURACIES.
    """

    share: float
    acceptance: float
    tokens_per_s: tuple[float, ...]

    @property
    def can_pay(self) -> bool:
        return self.acceptance <= 1

    @classmethod
    def of(cls, stats: GenerationStats, step_s: float, share: float, plain_s: float) -> "HeadNeed":
        """step_s: of a drafted step, of which `stats` counts what came true. plain_s: of a one-node pass.

        A hit brings one token in a step that would have brought one: (a + missed * h) / (step + head) = a / step.
        """
        missed = 1 - stats.accepted_by_depth[1] / stats.num_steps
        needed = stats.acceptance_length * share * plain_s / step_s
        speeds = ((stats.acceptance_length + missed * right) / (step_s + share * plain_s) for right in ACCURACIES)
        return cls(share, needed / missed if missed else float("inf") if needed else 0.0, tuple(speeds))
