"""The interface of acceptance rules: which token is emitted behind a node that the target has scored.

The exact rule takes what the target chooses, so that drafts change no answer. Another may accept a drafted token
instead; grammar, penalties and log-probabilities go on from the token that is emitted.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # configs name rules, and the command line's options are made of configs without numpy
    from reader_edge_runtime.arrays import Float32Array, Int64Array
    from reader_edge_runtime.draft_tree import DraftTree
    from reader_edge_runtime.forward_result import ForwardResult


class Choices:
    """What a rule sees of one request: a tree that a pass has scored, walked from its root on.

    tree: as it was scored. peek: the token that the target would choose behind the node where the walk is, which has no
    consequence. allows: whether the request's grammar lets a token come there.
    """

    __slots__ = ("_b", "_result", "allows", "peek", "tree")

    def __init__(
        self,
        tree: "DraftTree",
        result: "ForwardResult",
        b: int,
        peek: Callable[[int], int],
        allows: Callable[[int], bool],
    ) -> None:
        """result, b: the pass, and the tree's number in it."""
        self.tree, self.peek, self.allows = tree, peek, allows
        self._result, self._b = result, b

    def successors(self, node: int) -> "tuple[Int64Array, Float32Array]":
        """The target's K likeliest tokens behind a node, best first, and their logits; K is the manifest's top_k."""
        return self._result.top_ids[self._b, node], self._result.top_logits[self._b, node]

    def probabilities(self, node: int) -> "Float32Array":
        """What the target gives these K tokens, (K,), at temperature 1; of a rule that wants log-sum-exps."""
        return self._result.top_probabilities(self._b, node)

    def logits(self, node: int) -> "Float32Array":
        """(V,), before penalties; of a rule that wants them."""
        logits: Float32Array = self._result.wanted_logits[self._b, node]
        return logits

    def hidden_state(self, node: int) -> "Float32Array":
        """(E,), of a rule that wants them. Raises ValueError for another."""
        if self._result.hidden_states is None:
            raise ValueError("this pass did not ask for hidden states")
        state: Float32Array = self._result.hidden_states[self._b, node]
        return state


class AcceptanceRule(ABC):
    """Decides token by token; a request names its rule in its GenerationConfig.

    name: what refusals call it. is_exact: whether answers stay those of plain decoding, bit for bit: `prove`
    (reader_edge.verify.proof) compares them for such rules, and refuses others. wants_logits, wants_log_sum_exp,
    wants_hidden_states: what it reads of every node.
    """

    name: str
    is_exact = False
    wants_logits = False
    wants_log_sum_exp = False
    wants_hidden_states = False

    @abstractmethod
    def next_token(self, choices: Choices, node: int) -> int:
        """The token to emit behind `node`; where a child bears it the walk goes on there, else the step ends."""

    def read_prompt(self, result: "ForwardResult", row: int) -> None:  # noqa: B027 (most read nothing)
        """Called with what a pass says of a prompt's last token, before the first token is chosen; arrays are lent."""

    def report(self, token_ids: Sequence[int]) -> Mapping[str, object]:
        """How far these tokens of an answer deviate from exact ones, ready for JSON; {} for an exact rule."""
        return {}


class ExactRule(AcceptanceRule):
    """What the target chooses, greedy or sampled: which tokens were drafted never changes which are emitted."""

    name = "exact"
    is_exact = True

    def next_token(self, choices: Choices, node: int) -> int:
        return choices.peek(node)


EXACT = ExactRule()
