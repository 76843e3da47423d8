"""The rule of views: what the mixed distribution chooses, counted against what the whole text alone would have."""

from collections.abc import Mapping, Sequence

from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.lossy.meter import Meter


class ViewsRule(AcceptanceRule):
    """Of one answer."""

    def __init__(self, meter: Meter) -> None:
        self.name = meter.rule
        self.meter = meter

    def next_token(self, choices: Choices, node: int) -> int:
        return choices.peek(node)

    def count(self, own: int, token_id: int, logits: Float32Array) -> None:
        """Hear of an emitted token. own: the whole text's choice there, by its logits (V,)."""
        if token_id != own:
            self.meter.change(float(logits[own] - logits[token_id]))

    def report(self, token_ids: Sequence[int]) -> Mapping[str, object]:
        return self.meter.report(token_ids).fields()
