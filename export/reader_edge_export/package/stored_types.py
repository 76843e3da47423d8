"""How many of a source's matrices stay in the types that it stores them in, and how many cannot."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from transformers.pytorch_utils import Conv1D

from reader_edge_export.sources.source_model import SourceModel


@dataclass(frozen=True, slots=True)
class StoredTypes:
    """num_kept, num_others: matrices by the names of their types. needs_calibration: whether products are among the
    others, which become int8."""

    num_kept: Mapping[str, int] = field(default_factory=dict)
    num_others: Mapping[str, int] = field(default_factory=dict)
    needs_calibration: bool = True

    @classmethod
    def of(cls, model: SourceModel) -> "StoredTypes":
        """Of a model that has any: its products, and its embeddings."""
        weights = model.weights
        modules = [module for module in model.skeleton.modules() if isinstance(module, torch.nn.Linear | Conv1D)]
        products = {model.names[id(module.weight)] for module in modules}
        products |= {each.name for experts in model.experts.values() for each in (experts.up, experts.down)}
        names = products | model.table_names
        kept = Counter(weights.stored_type(name) for name in names if weights.block_type(name) is not None)
        others = Counter(weights.stored_type(name) for name in names if weights.block_type(name) is None)
        return cls(dict(kept), dict(others), any(weights.block_type(name) is None for name in products))
