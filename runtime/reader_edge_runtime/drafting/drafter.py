"""What decoding knows of drafting: it asks for trees before each forward pass and reports what became of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

from reader_edge_runtime.array_file import Array
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.errors import ReaderEdgeError

PROMPT_TAIL = 4  # tokens of a prompt that are remembered with its answer


class RequestDrafter(Protocol):
    """The drafting state of one request: it reads the request's own list of token ids, and keeps positions in it."""

    def observe(self, scored: ScoredTree | None) -> None:
        """The target scored some nodes, the text grew, or both; called after the text has grown."""

    def finish(self) -> None:
        """The request ended; what it taught may serve later ones."""


class DraftWish(NamedTuple):
    """What one request may use of a draft.

    max_nodes: root included. max_depth: levels below the root. token_s: seconds that a token takes without a draft; 0
    where nothing was measured.
    """

    request: RequestDrafter
    max_nodes: int
    max_depth: int
    token_s: float = 0.0


class Drafter(Protocol):
    """What an engine drafts with, for all its requests."""

    @property
    def is_ready(self) -> bool:
        """Whether it can draft by now; until then nobody waits for it."""

    @property
    def num_harvested_rows(self) -> int:
        """Of how many of a prompt's last tokens scores are wanted."""

    @property
    def wants_hidden_states(self) -> bool:
        """Whether `observe` wants the hidden states of the nodes that were scored."""

    def begin(self, token_ids: Sequence[int]) -> RequestDrafter:
        """Start a request. token_ids: its own list, the prompt, which grows by the answer; it is only read here."""

    def draft(self, wishes: Sequence[DraftWish]) -> list[DraftTree | ReaderEdgeError]:
        """A tree for each wish, its root the request's last token; an error instead ends that request alone."""

    def forget(self) -> None:
        """Drop everything learned from past requests."""


# Values that arguments had, in raw JSON and the last first, by tool and argument.
Calls = Mapping[str, Mapping[str, Sequence[str]]]


class Guide(Protocol):
    """Follows one answer, and tells what calls of declared tools allow next."""

    @property
    def calls(self) -> Sequence[tuple[str, Mapping[str, str]]]:
        """Those of the conversation and the answer so far: the tool, and values by argument in raw JSON."""

    def paths(self, answer: Sequence[int], past: Calls) -> Sequence[tuple[Sequence[int], float]]:
        """Tokens that may come next behind an answer's, and how likely each path is; none where nothing is known."""


@dataclass(frozen=True, slots=True)
class Guesses:
    """What is known of an answer. texts: of tokens, drafted from as if they came before the prompt."""

    texts: Sequence[Sequence[int]] = ()
    guide: Guide | None = None

    def __bool__(self) -> bool:
        return bool(self.texts) or self.guide is not None


NO_GUESSES = Guesses()


@runtime_checkable
class GuidedDrafter(Drafter, Protocol):
    """One that drafts also from what somebody expects an answer to say."""

    def begin_guided(self, token_ids: Sequence[int], guesses: Guesses) -> RequestDrafter:
        """As `begin`, with what is known of the answer."""


@runtime_checkable
class LastingDrafter(Drafter, Protocol):
    """One whose knowledge can outlive it."""

    def state(self) -> Mapping[str, Array]:
        """All that was learned from past requests, as named arrays of `array_file`; {} for nothing."""

    def restore(self, arrays: Mapping[str, Array], vocab_size: int) -> None:
        """Draft as if what `state` gave had just been learned, and nothing else.

        Raises DraftError for what it could not have given; then nothing has changed.
        """
