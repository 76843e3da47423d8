"""Acceptance: what one pass decides about a draft tree, and the rules that decide it: exact, and wary of near ties."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.target import ForwardResult

# Both logits of a margin move by up to the noise, and the few rows of a probe do not show the largest of it.
_SAFETY = 4.0

Choose = Callable[[int], int | None]
Emit = Callable[[int], bool]


class Verification(NamedTuple):
    """The walk through one tree.

    path: walked nodes, the root first; their KV rows are kept.
    token_ids: emitted tokens: those of the path below the root, then the bonus token, which becomes pending.
    is_undecided: the path's last node has no choice yet, so the bonus token is missing.
    """

    path: list[int]
    token_ids: list[int]
    is_undecided: bool = False

    @property
    def num_accepted_tokens(self) -> int:
        return len(self.path) - 1


class AcceptanceRule(Protocol):
    """Decides which nodes of a scored tree are kept."""

    def __call__(self, tree: DraftTree, result: ForwardResult, b: int, choose: Choose, emit: Emit) -> Verification:
        """Walk tree b of a pass.

        choose: the target's token after a node, called once per emitted token, in order; None leaves the walk
        undecided. emit: told each emitted token; True ends the walk, and the token stays pending.
        """


def accept_exactly(tree: DraftTree, result: ForwardResult, b: int, choose: Choose, emit: Emit) -> Verification:
    """Choose one token at the root; while a child bears it, go there and choose again.

    Exact for greedy and sampled decoding alike: which tokens were drafted never changes which are chosen.
    """
    node, path, token_ids = 0, [0], []
    while (token_id := choose(node)) is not None:
        token_ids.append(token_id)
        if emit(token_id) or (node := tree.child(node, token_id)) < 0:
            return Verification(path, token_ids)
        path.append(node)
    return Verification(path, token_ids, is_undecided=True)


@dataclass(frozen=True, slots=True)
class Recheck:
    """The rule that leaves near ties of wide passes undecided, and everything else to another rule.

    Where a provider's bits depend on the width of a pass, two logits closer than that noise may change places between a
    drafted and a plain pass. The decoder takes such a choice from a single-token pass, as plain decoding would. It is
    no proof: the KV rows behind the choice still come from wide passes.
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
