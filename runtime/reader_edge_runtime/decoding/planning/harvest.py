"""Whether a prompt's rows of logits are worth reading for the drafter: each takes time before the first token."""

from reader_edge_runtime.measuring.verify_cost import VerifyCost

# So many rows save an answer one pass, measured in docs/sources.md; about as many for a few rows as for hundreds.
_ROWS_A_PASS = 150
_TYPICAL_WIDTH = 8


def worthwhile_rows(cost: VerifyCost, max_rows: int) -> int:
    """max_rows where a row takes less time than it saves, or was not timed; else none."""
    times = cost.pass_seconds(cost.pasts[0])
    return max_rows if cost.row_s * _ROWS_A_PASS <= times[min(_TYPICAL_WIDTH, len(times) - 1)] else 0
