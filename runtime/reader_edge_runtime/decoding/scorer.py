"""What requests ask of the target: passes that score their trees, and the tokens that these choose."""

from collections.abc import Callable, Sequence

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.target import ForwardResult, Pass, Target


class Scorer:
    """Knows what requests, their drafter and `on_logits` need of a pass. on_logits: see Decoder."""

    def __init__(self, target: Target, cache: Cache, drafter: Drafter) -> None:
        self.target = target
        self.cache = cache
        self.drafter = drafter
        self.on_logits: Callable[[Request, Float32Array], None] | None = None

    def score(
        self,
        first_slot: int,
        trees: list[DraftTree],
        rows: list[range],
        choosers: Sequence[Request],
        num_kept: int,
        is_learned: bool = True,
    ) -> ForwardResult:
        """Score trees, and ask for what these requests need to choose from them. num_kept: see `Pass`.

        is_learned: whether the drafter gets what states are told.
        """
        wants_logits = wants_scores = False
        wants_hidden_states = self.drafter.wants_hidden_states
        for request in choosers:
            wants_logits |= request.needs_logits or request.is_reading_prompt or self.on_logits is not None
            wants_scores |= request.config.is_scored or request.acceptance.wants_log_sum_exp
            wants_hidden_states |= request.acceptance.wants_hidden_states
        wants_layer_states = is_learned and self.drafter.wants_layer_states
        wanted = Pass(first_slot, trees, rows, wants_logits, wants_scores, wants_hidden_states, num_kept)
        return self.target.forward(self.cache, wanted._replace(wants_layer_states=wants_layer_states))

    def peek(self, request: Request, result: ForwardResult, b: int, row: int) -> int:
        """The token that the target chooses after row (b, row) of a pass, which nothing hears of."""
        return request.peek(result, b, row, self.on_logits is not None)

    def take(self, request: Request, result: ForwardResult, b: int, row: int, token_id: int) -> bool:
        """Emit a token after row (b, row) of a pass; True when it is the last."""
        if self.on_logits is not None:
            self.on_logits(request, result.wanted_logits[b, row])
        return request.take(result, b, row, token_id)

    def take_choice(self, request: Request, result: ForwardResult, row: int) -> int:
        """Emit what the target itself chooses after a row of a pass over this request alone."""
        token_id = self.peek(request, result, 0, row)
        self.take(request, result, 0, row, token_id)
        return token_id
