"""Which layers each stage has: contiguous ranges, so that the fullest box is as empty as can be."""

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

from reader_edge_runtime.errors import ExportError

_PROCESS_BYTES = 256 << 20  # of a stage beside its weights: libraries, cache, passes


def stage_ends(
    costs: Sequence[float], num_stages: int, box_bytes: Sequence[int] = (), cuts: Collection[int] | None = None
) -> list[int]:
    """The layer behind each stage's last one, of layers that take so long, or whose weights have so many bytes.

    box_bytes: memory of each stage's box, costs being bytes; none where boxes are alike and large enough. cuts: layers
    that may be the first of a stage; None for any. Raises ExportError where there are more stages than layers, or a box
    is too small.
    """
    num_layers = len(costs)
    if not 2 <= num_stages <= num_layers:
        raise ExportError(f"A model of {num_layers} layers has no {num_stages} stages: give 2 to {num_layers}.")
    starts = [0, *accumulate(costs)]
    rooms: list[float] = [max(room - _PROCESS_BYTES, 1) for room in box_bytes] or [starts[-1] or 1] * num_stages
    ends = [end for end in range(1, num_layers) if cuts is None or end in cuts]
    # best[end]: how full the fullest of the stages so far is, and where each of them ends.
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for number, room in enumerate(rooms, 1):
        reached: dict[int, tuple[float, list[int]]] = {}
        for end in ends if number < num_stages else [num_layers]:
            found = [
                (max(fullest, (starts[end] - starts[start]) / room), [*before, end])
                for start, (fullest, before) in best.items()
                if start < end
            ]
            if found:
                reached[end] = min(found)
        best = reached
    if not best:
        places = ", ".join(map(str, ends)) or "none"
        raise ExportError(f"This model can be cut in front of these layers alone: {places}. Give fewer stages.")
    fullest, chosen = best[num_layers]
    if box_bytes and fullest > 1:
        sizes = [starts[end] - starts[start] for start, end in pairwise([0, *chosen])]
        worst = max(range(num_stages), key=lambda index: sizes[index] / rooms[index])
        raise ExportError(
            f"The model does not fit: stage {worst + 1} needs {(sizes[worst] + _PROCESS_BYTES) / 1e9:.2f} GB where its "
            f"box has {box_bytes[worst] / 1e9:.2f} GB: give more or larger boxes, or export with fewer bits."
        )
    return chosen


def ranges(ends: Sequence[int]) -> list[range]:
    """Layers of each stage."""
    return [range(start, end) for start, end in pairwise([0, *ends])]
