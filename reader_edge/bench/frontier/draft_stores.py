"""What a drafter remembers, in sizes to be tried: past answers, recycled rows of logits, datastores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reader_edge.bench.recording import RecordedRequest
from reader_edge.bench.replay.replayed_request import MAX_DEPTH
from reader_edge_runtime.config import DraftConfig
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable

HISTORY, ROWS, DATASTORES = "history", "recycled rows", "datastores"
UNITS = {HISTORY: "tokens", ROWS: "pairs", DATASTORES: "files"}

_DIVISORS = (8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class StoreSize:
    """A store with room for so many of its unit."""

    store: str
    amount: int


@dataclass(frozen=True, slots=True)
class DraftStores:
    """What is drafted from beside the context; 0 of something leaves it out.

    history_tokens: of past answers. recorded_pairs: whose likely successors are kept, those of single tokens beside
    them. table: what is known of these before the first answer.
    """

    history_tokens: int
    recorded_pairs: int
    datastores: tuple[Datastore, ...] = ()
    table: SuccessorTable | None = None

    def new_core(self, max_nodes: int) -> DraftingCore:
        """A drafter of trees of so many drafted nodes that has seen nothing yet."""
        config = DraftConfig(
            max_nodes=max_nodes + 1,
            max_depth=MAX_DEPTH,
            is_history_used=self.history_tokens > 0,
            max_history_tokens=self.history_tokens,
            is_logits_used=self.recorded_pairs > 0,
            max_recorded_pairs=max(1, self.recorded_pairs),
        )
        return DraftingCore(config, datastores=self.datastores, table=self.table)

    def sizes(self, requests: Sequence[RecordedRequest]) -> list[StoreSize]:
        """Sizes to try of each store: nothing, and an eighth to all of what these answers can fill."""
        turns = [turn for request in requests for turn in request.turns]
        num_rows = sum(len(turn.successors.positions) for turn in turns if turn.successors is not None)
        num_pairs = 1 << max(num_rows - 1, 1).bit_length()
        filled = {
            HISTORY: min(self.history_tokens, sum(len(turn.output) for turn in turns)),
            ROWS: min(self.recorded_pairs, num_pairs),
        }
        sizes = [
            StoreSize(store, amount)
            for store, most in filled.items()
            for amount in sorted({0, *(most // divisor for divisor in _DIVISORS)} if most else ())
        ]
        return sizes + [StoreSize(DATASTORES, count) for count in (0, len(self.datastores)) if self.datastores]

    def of_size(self, size: StoreSize) -> "DraftStores":
        """The same with one store of another size."""
        if size.store == HISTORY:
            return replace(self, history_tokens=size.amount)
        if size.store == ROWS:
            return replace(self, recorded_pairs=size.amount)
        return replace(self, datastores=self.datastores[: size.amount])

    def num_bytes(self, core: DraftingCore) -> dict[str, int]:
        """Memory that the stores of one of its drafters take now."""
        return {
            HISTORY: core.history.num_bytes,
            ROWS: sum(records.nbytes for records in core.successors.arrays),
            DATASTORES: sum(datastore.words.nbytes for datastore in self.datastores),
        }
