"""Which part of a series a forecasting model is trained on, and how long it must be; needs no torch."""

from collections.abc import Mapping
from itertools import count

from reader_edge_runtime.arrays import Float64Array
from reader_edge_runtime.errors import SeriesError
from reader_edge_runtime.untrusted.user_input import short_repr

PATCH_SIZE = 8
MAX_PROMPT = 72  # patches of a window that scale it, at most
COMING = 32  # patches of a window behind those that scale it, at least
LEAST_VALUES = (MAX_PROMPT + COMING) * PATCH_SIZE  # that are learned from


def learned_parts(series: Mapping[str, Float64Array], held_out: float) -> dict[str, Float64Array]:
    """Of each series all but its last part. held_out: that part's share. Raises SeriesError for one too short."""

    def size(num_values: int) -> int:
        return round(num_values * (1 - held_out))

    needed = next(number for number in count(LEAST_VALUES) if size(number) >= LEAST_VALUES)
    for name, values in series.items():
        if size(len(values)) < LEAST_VALUES:
            included = f", the {100 * held_out:g}% held out included" if held_out else ""
            found = f"Series {short_repr(name)} has {len(values)} values"
            raise SeriesError(f"{found}, but a training needs {needed}{included}: give a longer one.")
    return {name: values[: size(len(values))] for name, values in series.items()}
