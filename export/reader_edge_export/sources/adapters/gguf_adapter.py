"""A LoRA in a GGUF file, as llama.cpp's convert_lora_to_gguf.py writes it: a tensor's name and .lora_a or .lora_b."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reader_edge_export.sources.adapters.adapter import MERGE, Adapter, Factors, ReadFactors
from reader_edge_export.sources.gguf.config import model_type_of
from reader_edge_export.sources.gguf.gguf_file import GgufFile, is_dequantizable
from reader_edge_export.sources.gguf.gguf_header import Tensor
from reader_edge_export.sources.gguf.gguf_source import GgufSource
from reader_edge_export.sources.gguf.layer_sizes import architecture_of
from reader_edge_export.sources.source import Source

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from reader_edge_export.sources.gguf.placement import Placement

_DOWN, _UP = ".lora_a", ".lora_b"
_AGAIN = "fetch the adapter again"
_MOST = 1e6  # of alpha
_IN_FILES = {  # models that converters write as other ones
    **{"mistral": "llama", "olmo3": "olmo2", "deepseek_v3": "deepseek_v2", "glm4_moe_lite": "deepseek_v2"}
}


class Pair(NamedTuple):
    """The factors of a tensor: up (J, r), down (r, K)."""

    up: Tensor
    down: Tensor


class _Part(NamedTuple):
    """Rows of a parameter that a pair changes, by rows of `up` from `first` on."""

    pair: Pair
    first: int
    rows: slice


@dataclass(frozen=True, slots=True)
class GgufAdapter(Adapter):
    """alpha: over the rank, what a product is multiplied by; 0 for nothing. pairs: by the name of the tensor."""

    file: GgufFile
    alpha: float
    pairs: Mapping[str, Pair]

    @classmethod
    def open(cls, path: Path, source: Source) -> "GgufAdapter":
        """Raises GgufError, also where the file is for another architecture than the source's."""
        file = GgufFile.open(path)
        for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
            if file.metadata.get(key) != wanted:
                raise file.error(f"has the {key} {file.metadata.get(key)!r:.40}, where {wanted!r} is read", MERGE)
        if file.metadata.get("adapter.alora.invocation_tokens"):
            raise file.error("changes texts from certain tokens on alone (aLoRA)", "give another adapter")
        alpha = file.metadata.get("adapter.lora.alpha", 0.0)
        if not isinstance(alpha, float) or not 0 <= alpha <= _MOST:
            raise file.error(f"gives adapter.lora.alpha as {alpha!r:.40}", _AGAIN)
        _check_architecture(file, source)
        base = file.metadata.get("general.base_model.0.name")
        return cls(path, base if isinstance(base, str) else "", file, alpha, _pairs(file))

    @property
    def files(self) -> list[Path]:
        return self.file.paths

    def factors(self, model: "PreTrainedModel") -> Mapping[str, ReadFactors]:
        from reader_edge_export.sources.adapters.merged_weights import MergeableMatrices
        from reader_edge_export.sources.gguf.placement import Placement

        placement, matrices = Placement(self.file, model), MergeableMatrices(self, model)
        found: dict[str, list[_Part]] = {}
        for target, pair in self.pairs.items():
            places, first = placement.places(target), 0
            num_inputs = matrices.shape_of(target, places[0][0] if places else None)[1]
            wanted = sum(rows.stop - rows.start for _, rows in places), num_inputs
            matrices.check(target, wanted, pair.up.shape, pair.down.shape)
            for name, rows in places:
                matrices.shape_of(target, name)
                found.setdefault(name, []).append(_Part(pair, first, rows))
                first += rows.stop - rows.start
        return {name: partial(self._read, placement, name, parts) for name, parts in found.items()}

    def _read(self, placement: "Placement", name: str, parts: Sequence[_Part]) -> Factors:
        """As the parameter has its rows and columns; factors of several tensors in it are one of all their ranks."""
        ranks = [part.pair.down.shape[0] for part in parts]
        up = np.zeros((placement.stored_shape(name)[0], sum(ranks)), np.float32)
        column = 0
        for part, rank in zip(parts, ranks, strict=True):
            num_rows = part.rows.stop - part.rows.start
            values = self.file.values(part.pair.up.name)[part.first : part.first + num_rows]
            up[part.rows, column : column + rank] = values * np.float32(self.alpha / rank if self.alpha else 1)
            column += rank
        down = np.concatenate([self.file.values(part.pair.down.name) for part in parts])
        rows, columns = placement.row_order(name), placement.column_order(name)
        return Factors(up if rows is None else up[rows], down if columns is None else down[:, columns])


def _check_architecture(file: GgufFile, source: Source) -> None:
    architecture, model_type = architecture_of(file), source.architecture
    if isinstance(source, GgufSource):
        is_same = architecture_of(source.file) == architecture
    else:
        is_same = model_type_of(architecture) in (model_type, _IN_FILES.get(model_type, model_type))
    if not is_same:
        raise file.error(
            f"is an adapter for {architecture!r:.40}, and the model is a {model_type}",
            "give the model that it was trained on",
        )


def _pairs(file: GgufFile) -> dict[str, Pair]:
    for name, tensor in file.tensors.items():
        if not name.endswith((_UP, _DOWN)):
            raise file.error(f"holds {name!r:.80}, which is no factor, and nothing else is read of adapters", MERGE)
        if not is_dequantizable(tensor.kind):
            raise file.error(f"has factors of the type {tensor.kind.name}, whose values are not known", _AGAIN)
    names = {name.removesuffix(_UP).removesuffix(_DOWN) for name in file.tensors}
    if not names:
        raise file.error("holds no factors", _AGAIN)
    for name in sorted(names):
        for end in (_UP, _DOWN):
            if name + end not in file.tensors:
                raise file.error(f"holds one factor of {name!r:.80} and lacks {end}", _AGAIN)
    return {name: Pair(file.tensors[name + _UP], file.tensors[name + _DOWN]) for name in sorted(names)}
