"""A replayed request whose answer is known: its drafts can be judged, and better ones made."""

from collections.abc import Sequence

from reader_edge.bench.frontier.pass_curve import PassCurve
from reader_edge.bench.frontier.rejections import Rejections, said_by_target
from reader_edge.bench.recording import RecordedTurn
from reader_edge.bench.replay.replayed_request import ReplayedRequest
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.core import DraftingCore

MAX_CANDIDATES = 255  # drafted nodes of the largest tree there is


class JudgedRequest:
    """rejections: where each step's are counted, as of answers at a temperature."""

    def __init__(self, core: DraftingCore, rejections: Rejections, temperature: float, turn: RecordedTurn) -> None:
        self._replayed = ReplayedRequest(core, turn)
        self._rejections = rejections
        self._temperature = temperature
        self._tree: DraftTree | None = None
        self._follow(turn)

    def draft(self, num_nodes: int) -> DraftTree:
        """Our tree of so many drafted nodes."""
        return self._noted(self._replayed.draft(num_nodes + 1))

    def draft_paying(self, curve: PassCurve) -> DraftTree:
        """Our tree, cut where a pass pays best."""
        tree = self._replayed.draft(curve.max_nodes + 1)
        return self._noted(tree.pruned(curve.best_width(tree.values)))

    def draft_best(self, num_nodes: int) -> DraftTree:
        """The best tree of so many of our candidates, the largest tree's nodes: as much of the answer as these say."""
        tree = self._replayed.draft(MAX_CANDIDATES + 1)
        node, known = 0, 0
        rest = self._rest[:num_nodes]
        while known < len(rest) and (node := tree.child(node, rest[known])) > 0:
            known += 1
        return self._noted(DraftTree.chain([tree.token_ids[0], *rest[:known]]))

    def draft_answer(self, num_nodes: int) -> DraftTree:
        """The best tree there is: the answer itself."""
        return self._noted(DraftTree.chain([0, *self._rest[:num_nodes]]))

    def extend(self, turn: RecordedTurn) -> None:
        self._replayed.extend(turn)
        self._follow(turn)

    def observe(self, token_ids: Sequence[int]) -> None:
        if self._tree is not None:
            end = min(self._position + len(token_ids), len(self._turn.output) - 1)
            said = [said_by_target(self._turn, each, self._temperature) for each in range(self._position, end)]
            self._rejections.add(self._tree, token_ids[: len(said)], said)
        self._position += len(token_ids)
        self._replayed.observe(token_ids)

    def finish(self) -> None:
        self._replayed.finish()

    @property
    def _rest(self) -> list[int]:
        """What is still to be said."""
        return self._turn.output[self._position :]

    def _noted(self, tree: DraftTree) -> DraftTree:
        """The tree, whose rejections are counted when it is known what came."""
        self._tree = tree
        return tree

    def _follow(self, turn: RecordedTurn) -> None:
        self._turn, self._position, self._tree = turn, 0, None
