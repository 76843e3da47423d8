"""What decoding knows of drafting: it asks for trees before each forward pass and reports what became of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.device_drafts import DeviceDrafts
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.text.calls.call_guide import CallGuide

PROMPT_TAIL = 4  # tokens of a prompt that are remembered with its answer


@dataclass(frozen=True, slots=True)
class Guesses:
    """What is known of an answer.

    texts: of tokens, drafted from as if they came before the prompt. guide: follows the answer and tells what calls of
    the tools that its conversation declares allow next; None without tools. device: drafts of a device in front of the
    server; None where there is none.
    """

    texts: Sequence[Sequence[int]] = ()
    guide: CallGuide | None = None
    device: DeviceDrafts | None = None

    def __bool__(self) -> bool:
        return bool(self.texts) or self.guide is not None or self.device is not None


NO_GUESSES = Guesses()


class RequestContext(NamedTuple):
    """What is known of a request when its drafting begins.

    token_ids: the request's own list, the prompt, which grows by the answer; drafting only reads it. temperature: at
    which the answer's tokens are drawn; 0 where each is the best. salt: `GenerationConfig.cache_salt`; drafts hold
    nothing of requests that have another.
    """

    token_ids: Sequence[int]
    guesses: Guesses = NO_GUESSES
    temperature: float = 0.0
    salt: str = ""


class RequestDrafter:
    """What a drafter or a source keeps of one request; this much and nothing more where no child says otherwise.

    token_ids, salt: the request's own. num_prompt_tokens: as many tokens were there when it began. asked: of a drafter,
    names of the sources that take long and were asked for its last draft.
    """

    asked: Sequence[str] = ()

    def __init__(self, context: RequestContext) -> None:
        self.token_ids, self.salt = context.token_ids, context.salt
        self.num_prompt_tokens = len(context.token_ids)

    def observe(self, scored: ScoredTree | None) -> None:
        """The target scored some nodes, the text grew, or both; called after the text has grown."""

    def finish(self) -> None:
        """The request ended; what it taught may serve later ones."""


class DraftRequest(NamedTuple):
    """What one request may use of a draft.

    max_nodes: root included. max_depth: levels below the root. token_s: seconds that a token takes without a draft; 0
    where nothing was measured. sketch: for a source, what the drafter would draft if it proposed this tree.
    """

    request: RequestDrafter
    max_nodes: int
    max_depth: int
    token_s: float = 0.0
    sketch: Callable[[DraftTree], DraftTree] | None = None


class Drafter(ABC):
    """What an engine drafts with, for all its requests.

    is_ready: whether it can draft by now; until then nobody waits for it. num_harvested_rows: of how many of a prompt's
    last tokens scores are wanted. wants_hidden_states: whether `observe` wants those of the nodes that were scored.
    wants_layer_states: the same of states between layers, of a prompt those of the last num_harvested_states tokens.
    asked_s: seconds that the last drafts took for sources that are asked only where they pay.
    """

    is_ready = True
    num_harvested_rows = 0
    wants_hidden_states = False
    wants_layer_states = False
    num_harvested_states = 1 << 31
    asked_s = 0.0

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

    def restore(self, arrays: Mapping[str, Array], vocab_size: int) -> None:  # noqa: B027
        """Draft as if what `state` gave had just been learned, and nothing else.

        Raises DraftError for what it could not have given; then nothing has changed.
        """
