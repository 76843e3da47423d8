"""Keeps KL divergences of a model from its reference, text by text, so that a run that was cut short goes on."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from reader_edge_export.checks.quality import KlDivergence
from reader_edge_runtime.atomic_file import write_file

Float32Array = npt.NDArray[np.float32]


class DivergenceStore:
    """model: the file or folder that was measured; a model that changes has to change its name."""

    def __init__(self, model: Path) -> None:
        self._folder = model.with_name(f"{model.name}.divergence")

    def missing(self, sequences: Sequence[list[int]]) -> list[list[int]]:
        """Texts that were not measured yet, as token ids."""
        return [token_ids for token_ids in sequences if not self._path(token_ids).exists()]

    def keep(self, token_ids: list[int], expected: Float32Array, logits: Float32Array) -> None:
        """Measure one text, whose logits (N, V) the reference and the model gave."""
        divergence = KlDivergence()
        divergence.add(expected, logits)
        self._folder.mkdir(exist_ok=True)
        fields = {"kl_nats": divergence.kl_nats, "num_equal": divergence.num_equal}
        write_file(self._path(token_ids), json.dumps(fields).encode())

    def figures(self, sequences: Sequence[list[int]]) -> dict[str, float]:
        """The figures over all tokens of the texts; see `KlDivergence.figures`."""
        total = KlDivergence()
        for token_ids in sequences:
            fields = json.loads(self._path(token_ids).read_bytes())
            total.kl_nats += fields["kl_nats"]
            total.num_equal += fields["num_equal"]
        return total.figures()

    def _path(self, token_ids: list[int]) -> Path:
        return self._folder / f"{hashlib.sha256(json.dumps(token_ids).encode()).hexdigest()[:24]}.json"
