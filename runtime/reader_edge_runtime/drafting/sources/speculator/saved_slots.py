"""A speculator's texts and their rows, as arrays of a session."""

from collections.abc import Mapping

import numpy as np

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.cache import SlotContents
from reader_edge_runtime.drafting.sources.speculator.speculator_slots import SpeculatorSlots

_MOST_SLOTS = 1 << 10


def saved_slots(slots: SpeculatorSlots) -> dict[str, Array]:
    """Of each slot its text, where its rows start, and these; {} where nothing was read. None of a text with a salt."""
    arrays: dict[str, Array] = {}
    for number, slot in enumerate(slots.slots):
        slots.fit(slot)
        num_rows = 0 if slot.salt else slots.cache.lengths[slot.number]
        arrays[f"text/{number}"] = np.array(slot.token_ids if num_rows else [], np.int32)
        arrays[f"start/{number}"] = np.array([slot.start], np.int32)
        if num_rows:
            [arrays[f"rows/{number}"]] = slots.cache.read_slot(slot.number, num_rows).rows
    return arrays


def restore_slots(slots: SpeculatorSlots, arrays: Mapping[str, Array], vocab_size: int, max_context: int) -> None:
    """Have what `saved_slots` gave in place of all texts. Raises KeyError or ValueError for what it could not give."""
    texts: list[tuple[list[int], int, Array | None]] = []
    for number in range(min(sum(name.startswith("text/") for name in arrays), _MOST_SLOTS)):
        named, first = arrays[f"text/{number}"], arrays[f"start/{number}"]
        is_text = named.dtype == first.dtype == np.int32 and named.ndim == 1 and first.shape == (1,)
        if not is_text or len(named) > max_context or np.any((named < 0) | (named >= vocab_size)):
            raise ValueError("a speculator's text is none")
        if len(named) and not 0 < first[0] < len(named):
            raise ValueError("a speculator's rows start nowhere")
        texts.append((named.tolist(), int(first[0]), arrays[f"rows/{number}"] if len(named) else None))
    [like] = slots.cache.read_slot(0, 0).rows
    for text, start, rows in texts:
        if rows is not None:
            shape = (*like.shape[:2], len(text) - start, like.shape[3])
            if rows.dtype != like.dtype or rows.shape != shape or not np.isfinite(rows).all():
                raise ValueError("a speculator's rows are none")
    slots.forget()
    while len(slots.slots) < len(texts):
        slots.add()
    for slot, (text, start, rows) in zip(slots.slots, texts, strict=False):
        if rows is not None:
            slots.cache.reserve(slots.cache.num_slots, len(text) - start)
            slots.cache.write_slot(slot.number, SlotContents(len(text) - start, (rows,)))
            slot.token_ids, slot.start = text, start
