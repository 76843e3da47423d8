"""What steps take by a rule, for forecasts that may not depend on the clock."""

_ROW_BYTES = 2048  # of cached patches of the bundled model, beside whose passes the work around them was timed


class FixedCosts:
    """In undrafted steps, rather too much than too little.

    num_paths: that share a pass. row_bytes: of a cached patch, by which the size of the model is told. draft_cost: of
    each draft, beside its verification. work: that of the coupling. begin: what drafts take once a forecast.
    """

    def __init__(self, num_paths: int, row_bytes: int, draft_cost: float, work: float = 1.0) -> None:
        around = work * min(_ROW_BYTES / row_bytes, 1.0)  # what is beside passes counts for less beside larger ones
        self.begin = 2.0 if draft_cost else 0.0
        self._first = 0.3 * around
        verified = 0.05 + 0.3 * num_paths / (num_paths + 8)  # the more paths, the fewer units idle
        self._each = 0.12 * around + verified + draft_cost

    def of(self, length: int) -> float:
        """Of a step with so many drafts."""
        return 1.0 + (self._first + self._each * length if length else 0.0)
