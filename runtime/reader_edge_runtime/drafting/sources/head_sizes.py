"""How large a head is, and which matrices it has then: a head's file holds these and nothing that runs."""

from dataclasses import dataclass

_UNBIASED = "second_guessed"  # whose sums are added to those of second_known


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """hidden: E of the target. ids: tokens that can be guessed; number `ids` stands for all others.

    embedded, inner, rank: numbers of a token, of a hidden layer, and between it and the ids.
    """

    hidden: int
    ids: int
    embedded: int = 128
    inner: int = 512
    rank: int = 128

    def matrices(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """The dtype and shape of each, by name; weights are in eight bits, with a scale for each column."""
        layers = {
            "first": (self.hidden + self.embedded, self.inner),
            "first_out": (self.inner, self.rank),
            "second_known": (self.inner, self.inner),
            "second_guessed": (self.embedded, self.inner),
            "second_out": (self.inner, self.rank),
            "vocabulary": (self.rank, self.ids + 1),
        }
        found: dict[str, tuple[str, tuple[int, ...]]] = {
            "mean": ("<f4", (self.hidden,)),
            "gain": ("<f4", (self.hidden,)),
            "embedding": ("<f2", (self.ids + 1, self.embedded)),
        }
        for name, (num_inputs, num_outputs) in layers.items():
            found[f"{name}.weight"] = "|i1", (num_inputs, num_outputs)
            found[f"{name}.scales"] = "<f4", (num_outputs,)
            if name != _UNBIASED:
                found[f"{name}.bias"] = "<f4", (num_outputs,)
        return found
