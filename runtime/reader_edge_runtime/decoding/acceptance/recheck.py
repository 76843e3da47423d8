"""Near ties: choices that the noise between passes of different widths might tip.

Where a provider's bits depend on the width of a pass, two logits closer than that noise may change places between a
drafted and a plain pass. The guard ends a walk before such a choice, and takes it from a single-token pass, as plain
decoding would. It is no proof: the KV rows behind the choice still come from wide passes.
"""

from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.target import ForwardResult

# Both logits of a margin move by up to the noise, and the few rows that a probe sees hold not the largest of it.
_SAFETY = 4.0


def near_tie_margin(report: WidthReport) -> float:
    """The margin between the two best logits below which a wide pass is not trusted; 0 where widths do not matter."""
    return _SAFETY * report.max_difference


def is_near_tie(result: ForwardResult, b: int, row: int, margin: float) -> bool:
    """Whether the two best logits of row (b, row) are closer than a margin."""
    if margin == 0:
        return False
    best = result.top_logits[b, row, :2]
    return len(best) == 2 and bool(best[0] - best[1] < margin)
