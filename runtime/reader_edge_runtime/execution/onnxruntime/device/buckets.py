"""Sizes that passes are padded to on a device: a captured pass can be replayed only at the sizes it was captured with.

Each size doubles the one before, or adds half of it: few enough to capture, and padding stays below the work itself.
"""

TREE_SIZES = (1, 2, 4, 8, 16, 32, 64)
MAX_CAPTURED = TREE_SIZES[-1]

_PREFILL_STEP = 64
_LEAST_VISIBLE = 64
ROW_STEP = 8  # attention kernels read masks in runs of eight


def tree_bucket(num_nodes: int) -> int:
    """Nodes, or logit rows, that a pass over `num_nodes` is padded to."""
    fitting = next((size for size in TREE_SIZES if size >= num_nodes), None)
    return round_up(num_nodes, _PREFILL_STEP) if fitting is None else fitting


def slot_bucket(num_slots: int) -> int:
    """Slots that a cache has memory for, and trees that a pass is padded to: rows in all are a power of two then."""
    return 1 << (num_slots - 1).bit_length()


def visible_bucket(num_visible: int, capacity: int) -> int:
    """Visible KV rows, a multiple of 8 within `capacity`, that a pass is padded to."""
    size = _LEAST_VISIBLE
    while size < num_visible:
        size = size * 3 // 2 if size & (size - 1) == 0 else size // 3 * 4
    return min(size, capacity)


def padding_rows(num_rows: int) -> int:
    """Rows that a slot of `num_rows` needs in all, so that padded nodes fit behind the last token."""
    return round_up(num_rows + MAX_CAPTURED, ROW_STEP)


def round_up(number: int, step: int) -> int:
    """The least multiple of `step` that is no less than `number`."""
    return -(-number // step) * step
