"""Verification: which nodes of a draft tree one pass accepts, and which choices it leaves to another pass."""

from collections.abc import Callable
from typing import NamedTuple

from reader_edge_runtime.acceptance import AcceptanceRule, Choices
from reader_edge_runtime.measuring.width_probe import WidthReport

# Both logits of a margin move by up to the noise, and the few rows of a probe do not show the largest of it.
_SAFETY = 4.0


class Verification(NamedTuple):
    """The walk through one tree.

    path: walked nodes, the root first; their KV rows are kept.
    token_ids: emitted tokens: those of the path below the root, then the bonus token, which becomes pending.
    needs_recheck: the path's last node has no choice yet, so the bonus token is missing.
    waited_s: seconds that the walk waited for a second pass.
    """

    path: list[int]
    token_ids: list[int]
    needs_recheck: bool = False
    waited_s: float = 0.0

    def followed_by(self, other: "Verification") -> "Verification":
        """The walk that went on as another one."""
        waited_s = self.waited_s + other.waited_s
        return Verification(self.path + other.path, self.token_ids + other.token_ids, other.needs_recheck, waited_s)


def walk(
    rule: AcceptanceRule,
    choices: Choices,
    take: Callable[[int, int], bool],
    near_tie_margin: float = 0.0,
    start: int = 0,
) -> Verification:
    """Take one token behind the first node; while a child bears it, go there and take another.

    take: gets each node and the token emitted behind it; True ends the walk, and the token stays pending. start: the
    first node, where it is not the root.
    near_tie_margin: the least difference between the two best logits at which this pass is trusted; a closer choice is
    left undecided. Where a provider's bits depend on the width of a pass, two logits closer than that noise may change
    places between a drafted and a plain pass, and the decoder takes the choice from a single-token pass. It is no
    proof: the KV rows behind the choice still come from wide passes.
    """
    node, path, token_ids = start, [start], []
    while not (near_tie_margin and _is_near_tie(choices, node, near_tie_margin)):
        token_id = rule.next_token(choices, node)
        token_ids.append(token_id)
        if take(node, token_id) or (node := choices.tree.child(node, token_id)) < 0:
            return Verification(path, token_ids)
        path.append(node)
    return Verification(path, token_ids, needs_recheck=True)


def near_tie_margin(report: WidthReport) -> float:
    """The margin for a target with the noise of this report; 0 where widths do not matter."""
    return _SAFETY * report.max_difference


def _is_near_tie(choices: Choices, node: int, margin: float) -> bool:
    _, best = choices.successors(node)
    return len(best) > 1 and bool(best[0] - best[1] < margin)
