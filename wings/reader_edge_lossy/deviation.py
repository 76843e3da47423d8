"""How far an answer deviates from the model's own choices, counted while it is decoded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers

_GRAM = 4


@dataclass(slots=True)
class DeviationMeter:
    """Of one answer.

    rule, figures: the acceptance rule's name and its figures. usual: other answers of the model, without the rule.
    num_changed: emitted tokens that are not the model's choice. nats: ln p(choice) - ln p(emitted), summed over these.
    """

    rule: str
    figures: Mapping[str, object]
    usual: WarmupAnswers | None = None
    num_changed: int = 0
    nats: float = 0.0

    def change(self, nats: float) -> None:
        """Count a token that is not the model's choice."""
        self.num_changed += 1
        self.nats += nats

    def report(self, token_ids: Sequence[int]) -> dict[str, object]:
        """Of the answer as it stands, ready for JSON.

        nats_per_token: over all tokens. repeated_4grams: share of the answer's runs of four tokens that came before in
        it: loops are easy to draft, so speed without this figure misleads. usual_repeated_4grams: the same of the
        model's own answers, cut to this one's length; None where the package has none.
        """
        num_tokens = len(token_ids)
        return {
            "rule": self.rule,
            "figures": self.figures,
            "num_tokens": num_tokens,
            "num_changed": self.num_changed,
            "nats_per_token": self.nats / num_tokens if num_tokens else 0.0,
            "repeated_4grams": repeated_share(token_ids),
            "usual_repeated_4grams": None if self.usual is None else usual_share(self.usual, num_tokens),
        }


def repeated_share(token_ids: Sequence[int]) -> float:
    """The share of a text's runs of four tokens that came before in it; 0 for a text without one."""
    grams = [tuple(token_ids[i : i + _GRAM]) for i in range(len(token_ids) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def usual_share(answers: WarmupAnswers, num_tokens: int) -> float:
    """The mean share of exact answers, each cut to so many tokens: longer texts repeat more."""
    shares = [repeated_share(text[:num_tokens].tolist()) for text in answers.texts]
    return sum(shares) / len(shares)
