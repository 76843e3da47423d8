"""The interface of a drafter: decoding asks it for trees before each pass, and reports what was accepted."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.draft_hints import NO_HINTS, DraftHints
from reader_edge_runtime.errors import DraftError, ReaderEdgeError

PROMPT_TAIL = 4  # tokens of a prompt that are remembered with its answer


def salt_of(adapter: str, caller: str) -> str:
    """What keeps requests apart: those of other adapters, given by fingerprints, and of callers with another salt.

    No two pairs have the same; "" is of requests without either.
    """
    return f"{adapter}:{caller}" if adapter or caller else ""


def shared_salt(salt: str) -> str:
    """The same for all callers of an adapter."""
    return salt_of(salt.partition(":")[0], "")


class RequestContext(NamedTuple):
    """What is known of a request when its drafting begins.

    token_ids: the request's own list, the prompt, which grows by the answer; drafting only reads it. temperature: at
    which the answer's tokens are drawn; 0 where each is the best. salt: see `salt_of`; drafts hold nothing of requests
    that have another. has_images: whether the prompt has some, of which token_ids have nothing.
    """

    token_ids: Sequence[int]
    hints: DraftHints = NO_HINTS
    temperature: float = 0.0
    salt: str = ""
    has_images: bool = False


class RequestDrafter:
    """What a drafter or a source keeps of one request; this much and nothing more where no child says otherwise.

    token_ids, salt: the request's own. num_prompt_tokens: as many tokens were there when it began. costly_names:
    of a drafter, names of the sources that take long and were called for its last draft.
    """

    costly_names: Sequence[str] = ()

    def __init__(self, context: RequestContext) -> None:
        self.token_ids, self.salt = context.token_ids, context.salt
        self.num_prompt_tokens = len(context.token_ids)

    def observe(self, scored: ScoredTree | None) -> None:
        """The target scored some nodes, the text grew, or both; called after the text has grown."""

    def finish(self) -> None:
        """The request ended; what it taught may serve later ones."""


class TargetRows(NamedTuple):
    """Where the target has the keys and values of a text, of all tokens but the last: a slot of its cache."""

    cache: Cache
    slot: int


class DraftRequest(NamedTuple):
    """What one request may use of a draft.

    max_nodes: root included. max_depth: levels below the root. token_s: seconds that a token takes without a draft; 0
    where nothing was measured. preview: for a source, what the drafter would draft if it proposed this tree.
    rows: to be read until the draft is there; None of a text whose target is elsewhere.
    """

    request: RequestDrafter
    max_nodes: int
    max_depth: int
    token_s: float = 0.0
    preview: Callable[[DraftTree], DraftTree] | None = None
    rows: TargetRows | None = None


class Drafter(ABC):
    """What an engine drafts with, for all its requests.

    is_ready: whether it can draft by now; until then nobody waits for it. num_harvested_rows: of how many of a prompt's
    last tokens scores are wanted. wants_hidden_states: whether `observe` wants those of the nodes that were scored.
    wants_layer_states: the same of states between layers, of a prompt those of the last num_harvested_states tokens.
    proposal_s: seconds that the last drafts took for sources that are called only where they pay.
    keeps_answers: whether answers outlive the engine, also those too short to be drafted.
    """

    is_ready = True
    keeps_answers = False
    num_harvested_rows = 0
    wants_hidden_states = False
    wants_layer_states = False
    num_harvested_states = 1 << 31
    proposal_s = 0.0

    @abstractmethod
    def begin(self, context: RequestContext) -> RequestDrafter:
        """Start a request."""

    @abstractmethod
    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        """A tree for each of them, its root the request's last token; an error instead ends that request alone."""

    def forget(self) -> None:  # noqa: B027  # many learn nothing
        """Drop everything learned from past requests."""

    def state(self) -> Mapping[str, Array]:
        """All that was learned from past requests, as named arrays of `array_file`; {} for nothing."""
        return {}

    def learned(self, salt: str) -> Mapping[str, Array]:
        """What requests of a salt taught, as named arrays, which may change; {} for nothing."""
        return {}

    def recall_from(self, learned: Callable[[str], Mapping[str, Array]], vocab_size: int) -> None:  # noqa: B027
        """Begin with what `learned` gives for a salt, when its first request comes."""

    def restore(self, arrays: Mapping[str, Array], vocab_size: int) -> None:  # noqa: B027
        """Draft as if what `state` gave had just been learned, and nothing else.

        Raises DraftError for what it could not have given; then nothing has changed.
        """


_REFUSAL = "This engine decodes plainly: there is nothing to draft with."


class NoDrafter(Drafter):
    """What a session's drafter learned elsewhere is kept and saved again as it was."""

    def __init__(self) -> None:
        self._kept: Mapping[str, Array] = {}

    def begin(self, context: RequestContext) -> RequestDrafter:
        raise DraftError(_REFUSAL)

    def draft(self, draft_requests: Sequence[DraftRequest]) -> list[DraftTree | ReaderEdgeError]:
        return [DraftError(_REFUSAL) for _ in draft_requests]

    def forget(self) -> None:
        self._kept = {}

    def state(self) -> Mapping[str, Array]:
        return self._kept

    def restore(self, arrays: Mapping[str, Array], vocab_size: int) -> None:
        self._kept = dict(arrays)
