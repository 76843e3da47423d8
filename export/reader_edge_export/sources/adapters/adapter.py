"""An adapter that is merged: found for a source, and the factors of each parameter that it changes."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from reader_edge_export.sources.source import Source
from reader_edge_runtime.adapters.adapted_modules import open_adapter
from reader_edge_runtime.adapters.adapter import Adapter, Change, StoredFactors, own_name
from reader_edge_runtime.adapters.gguf_adapter import MULTIPLIED, GgufAdapter, is_written_as
from reader_edge_runtime.errors import AdapterError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from reader_edge_export.sources.gguf.placement import Placement

ReadFactors = Callable[[], StoredFactors]


class _Part(NamedTuple):
    """Rows of a parameter that a tensor's factors change, by rows of `up` from `first` on."""

    change: Change
    first: int
    rows: slice


def find_adapter(path: Path, source: Source) -> Adapter:
    """The adapter in a PEFT folder or a GGUF file, as far as it can be checked without the model's modules.

    Raises AdapterError, or GgufError for a broken file, with the remedy in one sentence.
    """
    found = open_adapter(path)
    if isinstance(found, GgufAdapter):
        _check_architecture(found, source)
    check_form(source, isinstance(found, GgufAdapter))
    found.check_base(source.short_name)
    return found


def check_form(source: Source, are_in_files: bool) -> None:
    """Raise AdapterError unless adapters in GGUF files, or those in folders, are of the weights that a source has."""
    from reader_edge_export.sources.gguf.gguf_source import GgufSource

    if source.architecture in MULTIPLIED and isinstance(source, GgufSource) != are_in_files:
        form = "GGUF file" if are_in_files else "folder"
        raise AdapterError(
            f"'{source.short_name}' takes no adapter in a {form}: GGUF files have the weights of a "
            f"{source.architecture} model multiplied by factors of its config; give the model as a {form}, too."
        )


def factors_of(adapter: Adapter, model: "PreTrainedModel") -> Mapping[str, ReadFactors]:
    """By the names of a model's parameters, what reads the factors of each matrix that is changed.

    Shapes are compared here, before anything is read. Raises AdapterError where it is for another model.
    """
    return _of_tensors(adapter, model) if isinstance(adapter, GgufAdapter) else _of_modules(adapter, model)


def _of_modules(adapter: Adapter, model: "PreTrainedModel") -> Mapping[str, ReadFactors]:
    from reader_edge_export.sources.adapters.merged_weights import MergeableMatrices
    from reader_edge_export.sources.folder.parameter_names import ParameterNames

    names, matrices = ParameterNames(model), MergeableMatrices(adapter, model)
    found: dict[str, ReadFactors] = {}
    for module, change in adapter.changes.items():
        name = names.name_of(own_name(f"{module}.weight"))
        adapter.check_shapes(module, matrices.shape_of(module, name))
        if name is None or name in found:
            raise AdapterError(f"'{adapter.path}' changes {name} by two names: fetch the adapter again.")
        found[name] = change.read
    return found


def _of_tensors(adapter: GgufAdapter, model: "PreTrainedModel") -> Mapping[str, ReadFactors]:
    from reader_edge_export.sources.adapters.merged_weights import MergeableMatrices
    from reader_edge_export.sources.gguf.gguf_file import GgufFile
    from reader_edge_export.sources.gguf.placement import Placement

    placement, matrices = Placement(GgufFile.open(adapter.path), model), MergeableMatrices(adapter, model)
    found: dict[str, list[_Part]] = {}
    for target, change in adapter.changes.items():
        places, first = placement.places(target), 0
        num_inputs = matrices.shape_of(target, places[0][0] if places else None)[1]
        adapter.check_shapes(target, (sum(rows.stop - rows.start for _, rows in places), num_inputs))
        for name, rows in places:
            matrices.shape_of(target, name)
            found.setdefault(name, []).append(_Part(change, first, rows))
            first += rows.stop - rows.start
    return {name: partial(_read, placement, name, parts) for name, parts in found.items()}


def _read(placement: "Placement", name: str, parts: Sequence[_Part]) -> StoredFactors:
    """As the parameter has its rows and columns; factors of several tensors in it are one of all their ranks."""
    ranks = [part.change.down[0] for part in parts]
    up = np.zeros((placement.stored_shape(name)[0], sum(ranks)), np.float32)
    downs, column = [], 0
    for part, rank in zip(parts, ranks, strict=True):
        factors, num_rows = part.change.read(), part.rows.stop - part.rows.start
        up[part.rows, column : column + rank] = factors.up[part.first : part.first + num_rows]
        downs.append(factors.down)
        column += rank
    down = np.concatenate(downs)
    rows, columns = placement.row_order(name), placement.column_order(name)
    return StoredFactors(up if rows is None else up[rows], down if columns is None else down[:, columns])


def _check_architecture(adapter: GgufAdapter, source: Source) -> None:
    from reader_edge_export.sources.gguf.config import model_type_of
    from reader_edge_export.sources.gguf.gguf_source import GgufSource
    from reader_edge_export.sources.gguf.layer_sizes import architecture_of

    architecture, model_type = adapter.architecture, source.architecture
    if isinstance(source, GgufSource):
        is_same = architecture_of(source.file) == architecture
    else:
        is_same = model_type_of(architecture) == model_type or is_written_as(model_type, architecture)
    if not is_same:
        raise AdapterError(
            f"'{adapter.path}' is an adapter for {architecture!r:.40}, and the model is a {model_type}: give the model "
            "that it was trained on."
        )
