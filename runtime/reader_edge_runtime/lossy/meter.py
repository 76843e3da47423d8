"""What a lossy answer gave up: counted while it is decoded, and told with it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from reader_edge_runtime.drafting.sources.own_answers import OwnAnswers

_GRAM = 4


@dataclass(slots=True)
class Meter:
    """Of one answer.

    rule, strength: its acceptance rule by name, and what was asked of it. usual: what the model itself said elsewhere,
    which tells how much it repeats without the rule.
    num_changed: emitted tokens that are not the model's choice. nats: ln p(choice) - ln p(emitted), summed over these.
    """

    rule: str
    strength: Mapping[str, object]
    usual: OwnAnswers | None = None
    num_changed: int = 0
    nats: float = 0.0

    def change(self, nats: float) -> None:
        """Count a token that is not the model's choice."""
        self.num_changed += 1
        self.nats += nats

    def report(self, token_ids: Sequence[int]) -> "GivenUp":
        """Of the answer as it stands."""
        num_tokens = len(token_ids)
        usual = None if self.usual is None else usual_share(self.usual, num_tokens)
        nats = self.nats / num_tokens if num_tokens else 0.0
        repeated = repeated_share(token_ids)
        return GivenUp(self.rule, self.strength, num_tokens, self.num_changed, nats, repeated, usual)


@dataclass(frozen=True, slots=True)
class GivenUp:
    """What an answer gave up.

    num_changed: of its num_tokens, those that are not the model's choice after the tokens before them.
    nats_per_token: mean of ln p(choice) - ln p(emitted), choices that were kept included.
    repeated_4grams: share of the answer's runs of four tokens that came before in it: loops are easy to draft, so speed
    without this figure lies. usual_repeated_4grams: the same of the model's own answers, cut to this one's length; None
    where the package has none.
    """

    rule: str
    strength: Mapping[str, object]
    num_tokens: int
    num_changed: int
    nats_per_token: float
    repeated_4grams: float
    usual_repeated_4grams: float | None

    def fields(self) -> dict[str, object]:
        """Ready for JSON."""
        return asdict(self)


def repeated_share(token_ids: Sequence[int]) -> float:
    """The share of a text's runs of four tokens that came before in it; 0 for a text without one."""
    grams = [tuple(token_ids[i : i + _GRAM]) for i in range(len(token_ids) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def usual_share(answers: OwnAnswers, num_tokens: int) -> float:
    """The mean share of exact answers, each cut to so many tokens: longer texts repeat more."""
    shares = [repeated_share(text[:num_tokens].tolist()) for text in answers.texts]
    return sum(shares) / len(shares)
