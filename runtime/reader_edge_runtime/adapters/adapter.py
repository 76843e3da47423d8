"""An adapter of low rank (LoRA, https://arxiv.org/abs/2106.09685) as its files have it, whatever it is for.

peft_folder.py and gguf_adapter.py are the two kinds. An export merges one into its model's weights; `AdapterSet` has
one computed beside them.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import AdapterError

MERGE = "merge it into its model with peft's merge_and_unload, and give the merged one"
MOST = 1e6  # of a rank and of alpha
_USUAL_RANK = 512  # one rank for all matrices may be more than the small ones can have, such as of routers
_LONGEST = 256  # of a name: what is searched below takes the square of it, and no other thread runs meanwhile
_SIZE = re.compile(r"\d[\d.]*[bm]")
_NUMBER = re.compile(r"(?<![\d.vq_])\d[\d.]*[bm]?(?![\d.]*-?bit)")  # of a version and a size, not of a release
_TEXT_PREFIXES = {  # transformers 4 and the hub have the first, modules of transformers 5 the second
    "language_model.model.": "model.",
    "model.language_model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.text_model.": "model.",
}


class StoredFactors(NamedTuple):
    """What an adapter adds to a matrix (J, K), outputs first: up (J, r) times down (r, K), both fp32, r its rank.

    magnitude: of DoRA (https://arxiv.org/abs/2402.09353), fp32 (J,): the length that each output's weights then get.
    """

    up: Float32Array
    down: Float32Array
    magnitude: Float32Array | None = None


class Change(NamedTuple):
    """What an adapter does to one matrix: the shapes of its factors, and what reads them.

    magnitude: the shape of DoRA's lengths; None without them.
    """

    up: tuple[int, ...]
    down: tuple[int, ...]
    magnitude: tuple[int, ...] | None
    read: Callable[[], StoredFactors]


@dataclass(frozen=True, slots=True)
class Adapter(ABC):
    """One whose config and header were read and checked, and whose factors are read when they are needed.

    path: of its folder or file. base: the name of the model that it was trained on, "" where it names none.
    changes: by what the files call each matrix.
    """

    path: Path
    base: str
    changes: Mapping[str, Change]

    @property
    @abstractmethod
    def files(self) -> list[Path]:
        """All that is read of it."""

    @property
    def short_name(self) -> str:
        return "".join(char if char.isprintable() else "?" for char in self.path.absolute().name)

    def check_base(self, model: str) -> None:
        """Raise AdapterError where the names of its model and of another one tell of two models.

        Only numbers are compared, and only where both have the size of a model among them: one model has many names.
        """
        own, given = (re.split(r"[/\\]", name)[-1][:_LONGEST].lower() for name in (self.base, model))
        if not (_SIZE.search(own) and _SIZE.search(given)) or {*_NUMBER.findall(own)} <= {*_NUMBER.findall(given)}:
            return
        raise AdapterError(
            f"'{self.path}' was trained on {self.base!r:.100} and not on '{model}': give that model, or "
            "correct the name in the adapter if they are the same."
        )

    def check_shapes(self, target: str, wanted: tuple[int, ...]) -> None:
        """Raise AdapterError unless the factors of a target make a matrix (J, K) of the shape wanted, in a rank that
        it has use for: a sparse file may hold factors of any.
        """
        up, down, magnitude, _ = self.changes[target]
        is_of_one_rank = len(up) == len(down) == 2 and up[1] == down[0] > 0
        if not is_of_one_rank or (up[0], down[1]) != wanted:
            raise AdapterError(
                f"'{self.path}' changes {target!r:.100} by factors of the shapes {up} and {down}, where the "
                f"model has {wanted}: give the model that the adapter was trained on{self._trained_on()}."
            )
        if up[1] > max(min(wanted), _USUAL_RANK):
            raise AdapterError(
                f"'{self.path}' changes {target!r:.100} in rank {up[1]}, where a matrix of {wanted} has "
                f"{min(wanted)} at most: fetch the adapter again."
            )
        if magnitude is not None and magnitude != wanted[:1]:
            raise AdapterError(
                f"'{self.path}' has lengths of the shape {magnitude} for the {wanted[0]} outputs of "
                f"{target:.100}: fetch the adapter again."
            )

    def other(self, what: str, remedy: str = MERGE) -> AdapterError:
        """What is refused of one that changes what it cannot change here."""
        return AdapterError(f"'{self.path}' {what}, which is not done here: {remedy}.")

    def missing(self, target: str) -> AdapterError:
        """What is refused of one that changes what a model does not have."""
        return AdapterError(
            f"'{self.path}' changes {target!r:.100}, which the model does not have: give the model that the "
            f"adapter was trained on{self._trained_on()}."
        )

    def _trained_on(self) -> str:
        return f", {self.base!r:.100}" if self.base else ""


def fingerprint_of(factors: Iterable[tuple[str, tuple[Float32Array | None, ...]]]) -> str:
    """SHA-256 (hex) of factors by their names: of what was read, not of files, which may have been replaced since."""
    digest = sha256()
    for name, parts in factors:
        given = [part for part in parts if part is not None]
        digest.update(" ".join([name, *(str(part.shape) for part in given)]).encode() + b"\n")
        for part in given:
            digest.update(part.tobytes())
    return digest.hexdigest()


def own_name(name: str) -> str:
    """What the text model calls a tensor, or a module, of a folder that holds more."""
    prefix = next((prefix for prefix in _TEXT_PREFIXES if name.startswith(prefix)), "")
    return _TEXT_PREFIXES.get(prefix, "") + name.removeprefix(prefix)
