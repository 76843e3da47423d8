"""Maps between the vocabulary of a speculator and that of its target, checked before anything is looked up by them."""

from collections.abc import Mapping
from pathlib import Path

import torch

from reader_edge_export.sources.folder.stored_tensors import StoredTensor
from reader_edge_runtime.errors import ExportError

_WHOLE = ("I64", "I32")


def read_vocabulary_map(
    folder: Path, maps: Mapping[str, StoredTensor], draft_vocab_size: int, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(d2t int64 (Vd,), t2d bool (V,)) as `SpeculatorModule` has them; the second follows from the first.

    Raises ExportError where d2t is missing, has another size or type, or leads out of the target's vocabulary or to
    one token twice, and where t2d says otherwise.
    """
    offsets = _read(folder, maps, "d2t", draft_vocab_size)
    if offsets is None:
        raise ExportError(
            f"The speculator in '{folder}' has {draft_vocab_size} of {vocab_size} tokens and lacks d2t, which tells "
            "them: fetch it again."
        )
    numbers = torch.arange(draft_vocab_size)
    # An offset of 64 bits may wrap around: compared before it is added.
    is_outside = (offsets < -numbers) | (offsets >= vocab_size - numbers)
    if is_outside.any():
        number = int(is_outside.nonzero()[0])
        raise ExportError(
            f"The speculator in '{folder}' leads token {number} by {int(offsets[number])} out of the {vocab_size} "
            "tokens of its target: it is for another model, or damaged."
        )
    known = torch.zeros(vocab_size, dtype=torch.bool)
    known[offsets + numbers] = True
    if int(known.sum()) < draft_vocab_size:
        raise ExportError(f"The speculator in '{folder}' has a token of its target twice in d2t: fetch it again.")
    stated = _read(folder, maps, "t2d", vocab_size)
    if stated is not None and not torch.equal(stated.bool(), known):
        raise ExportError(
            f"The maps d2t and t2d of the speculator in '{folder}' contradict each other: fetch it again."
        )
    return offsets, known


def check_identity(folder: Path, maps: Mapping[str, StoredTensor], vocab_size: int) -> None:
    """Raise ExportError where maps of a speculator that has all of its target's tokens change or lack any of them."""
    offsets, known = (_read(folder, maps, name, vocab_size) for name in ("d2t", "t2d"))
    if (offsets is not None and offsets.any()) or (known is not None and not known.all()):
        raise ExportError(
            f"The speculator in '{folder}' has all {vocab_size} tokens of its target and maps some of them to others: "
            "fetch it again."
        )


def _read(folder: Path, maps: Mapping[str, StoredTensor], name: str, size: int) -> torch.Tensor | None:
    tensor = maps.get(name)
    if tensor is None:
        return None
    types = _WHOLE if name == "d2t" else (*_WHOLE, "BOOL", "U8")
    if tensor.shape != (size,) or tensor.dtype not in types:
        raise ExportError(
            f"The speculator in '{folder}' holds {name} as {tensor.dtype} of the shape {tensor.shape}, which must be "
            f"({size},) whole numbers: fetch it again."
        )
    return tensor.read().long()
