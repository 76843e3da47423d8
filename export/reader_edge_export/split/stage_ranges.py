"""Which layers each pipeline stage gets: contiguous, as machines have room, and the slowest stage as fast as can be."""

from collections.abc import Collection, Sequence
from itertools import accumulate, pairwise

from reader_edge_runtime.errors import ConfigError

PROCESS_BYTES = 256 << 20  # of a stage beside its weights: libraries, cache, passes


def stage_ends(
    costs: Sequence[float],
    num_stages: int,
    layer_bytes: Sequence[int] = (),
    box_bytes: Sequence[int] = (),
    cuts: Collection[int] | None = None,
) -> list[int]:
    """The layer behind each stage's last one: the longest stage is as short as memory allows, by what each layer takes.

    layer_bytes: of each layer's weights. box_bytes: memory of each stage's box; none where all are large enough. cuts:
    layers that may be the first of a stage; None for any. Raises ConfigError where there are more stages than layers,
    or a box is too small.
    """
    num_layers = len(costs)
    _check_number(num_stages, num_layers, sum(layer_bytes) + PROCESS_BYTES, box_bytes)
    taken, sizes = [0.0, *accumulate(costs)], [0, *accumulate(layer_bytes or [0] * num_layers)]
    rooms = [max(room - PROCESS_BYTES, 1) for room in box_bytes] or [max(sizes[-1], 1)] * num_stages
    ends = [end for end in range(1, num_layers) if cuts is None or end in cuts]
    # best[end]: how far the stages so far are beyond their rooms, 1 where none is, how long the longest takes, and
    # where each of them ends.
    best: dict[int, tuple[float, float, list[int]]] = {0: (1.0, 0.0, [])}
    for number, room in enumerate(rooms, 1):
        reached: dict[int, tuple[float, float, list[int]]] = {}
        for end in ends if number < num_stages else [num_layers]:
            found = [
                (
                    max(fullest, (sizes[end] - sizes[start]) / room),
                    max(longest, taken[end] - taken[start]),
                    [*before, end],
                )
                for start, (fullest, longest, before) in best.items()
                if start < end
            ]
            if found:
                reached[end] = min(found)
        best = reached
    if not best:
        places = ", ".join(map(str, ends)) or "none"
        raise ConfigError(f"This model can be cut in front of these layers alone: {places}. Give fewer stages.")
    fullest, _, chosen = best[num_layers]
    if box_bytes and fullest > 1:
        needs = [sizes[end] - sizes[start] for start, end in pairwise([0, *chosen])]
        worst = max(range(num_stages), key=lambda index: needs[index] / rooms[index])
        unit, scale = ("GB", 1e9) if box_bytes[worst] >= 1e9 else ("MB", 1e6)
        needed, there = (needs[worst] + PROCESS_BYTES) / scale, box_bytes[worst] / scale
        raise ConfigError(
            f"The model does not fit: stage {worst + 1} needs {needed:.2f} {unit}, of which "
            f"{PROCESS_BYTES / scale:.2f} {unit} are for its process beside weights, where its box has {there:.2f} "
            f"{unit}: give more or larger boxes, or export with fewer bits."
        )
    return chosen


def _check_number(num_stages: int, num_layers: int, num_bytes: int, box_bytes: Sequence[int]) -> None:
    """Raise ConfigError for what is no split. num_bytes: that the whole model takes on one box."""
    if num_stages == len(box_bytes) == 1:
        if num_bytes <= box_bytes[0]:
            raise ConfigError(
                f"One box holds it: the model needs {num_bytes / 1e9:.2f} GB where the box has "
                f"{box_bytes[0] / 1e9:.2f} GB, so no split is needed."
            )
    elif not 2 <= num_stages <= num_layers:
        raise ConfigError(f"A model of {num_layers} layers has no {num_stages} stages: give 2 to {num_layers}.")


def ranges(ends: Sequence[int]) -> list[range]:
    """Layers of each stage."""
    return [range(start, end) for start, end in pairwise([0, *ends])]
