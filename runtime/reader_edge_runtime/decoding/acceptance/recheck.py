"""Near ties: choices that the noise between passes of different widths might tip.

Where a provider's bits depend on the width of a pass, two logits closer than that noise may change places between a
drafted and a plain pass. The recheck ends a walk before such a choice; the decoder then takes it from a single-token
pass, as plain decoding would. It is no proof: the KV rows behind the choice still come from wide passes.
"""

from dataclasses import dataclass

from reader_edge_runtime.decoding.acceptance.verification import AcceptanceRule, Choose, Emit, Verification
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.target import ForwardResult

# Both logits of a margin move by up to the noise, and the few rows of a probe do not show the largest of it.
_SAFETY = 4.0


@dataclass(frozen=True, slots=True)
class Recheck:
    """The rule that leaves near ties of wide passes undecided, and everything else to another rule.

    margin: the least difference between the two best logits at which a wide pass is trusted.
    """

    rule: AcceptanceRule
    margin: float

    def __call__(self, tree: DraftTree, result: ForwardResult, b: int, choose: Choose, emit: Emit) -> Verification:
        def choose_unless_tied(node: int) -> int | None:
            best = result.top_logits[b, node, :2]
            return None if len(best) == 2 and best[0] - best[1] < self.margin else choose(node)

        is_single = len(tree) == 1 and len(result.top_ids) == 1
        return self.rule(tree, result, b, choose if is_single else choose_unless_tied, emit)


def near_tie_margin(report: WidthReport) -> float:
    """The margin for a target with the noise of this report; 0 where widths do not matter."""
    return _SAFETY * report.max_difference
