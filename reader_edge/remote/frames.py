"""The frames between a remote client and a server, which both use."""

import math
from dataclasses import fields
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, structs, to_builtins

from reader_edge.terminal.formatting import visible
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.remote_drafts import DEVICE, MOST_NODES, RemoteTree
from reader_edge_runtime.generation_config import is_own_sampling
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.untrusted.frame_codec import Count, Frame, FrameCodec

DRAFT_PATH = "/v1/draft"  # of the server's WebSocket
MAX_BYTES = 1 << 20  # of a frame
_PART_BYTES = MAX_BYTES >> 1  # of settings in one, which hold images
ANSWER_ID_BYTES = 16

ANSWER_GONE = "answer_gone"  # code of a refusal: ask again, there is nothing to take up
ANSWER_TAKEN = "answer_taken"  # error code: a client that requested the same answer later has it

NO_DRAFTS, HINTS, VERIFY = range(3)
MODES = {"none": NO_DRAFTS, "hints": HINTS, "verify": VERIFY}

Ending = Literal["stop", "length", "context", "cancelled"]

_MOST_SHOWN = 500  # characters
_MOST_VALUE = 255  # a value of 1, which takes a byte
_AnswerId = Annotated[bytes, Meta(min_length=ANSWER_ID_BYTES, max_length=ANSWER_ID_BYTES)]
_Hash = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Most = Annotated[int, Meta(ge=1, le=1 << 27)]  # a vocabulary, a context, a tokenizer's bytes
_Finite = Annotated[float, Meta(gt=-(1 << 62), lt=1 << 62)]
_Nodes = Annotated[list[Count], Meta(max_length=MOST_NODES)]


def one_line(text: str) -> str:
    """The beginning of what the other side says, its control characters spelt out."""
    line = visible(" ".join(text[: 2 * _MOST_SHOWN].split()))
    return line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 3]}..."


class Hello(Frame, tag=1):
    """tokenizer_hash: of the tokenizer here; b"" where there is none yet."""

    tokenizer_hash: Annotated[bytes, Meta(max_length=32)] = b""


class Fetch(Frame, tag=2):
    """Asks for the tokenizer, which comes in parts."""


class Ask(Frame, tag=3):
    """answer_id: by which the answer can be taken up again. mode: one of MODES.

    settings: JSON of the answer's config, see `settings`. token_ids: the prompt's; none where settings have messages.
    """

    answer_id: _AnswerId
    mode: Annotated[int, Meta(ge=NO_DRAFTS, le=VERIFY)]
    settings: bytes
    token_ids: list[Count]


class Drafted(Frame, tag=4):
    """A hint, or a tree to verify, whose `check` is its text's. values: of all nodes but the root, a byte each."""

    position: Count
    check: Annotated[int, Meta(ge=0, le=(1 << 32) - 1)] | None
    token_ids: Annotated[_Nodes, Meta(min_length=1)]
    parents: _Nodes
    values: bytes

    def __post_init__(self) -> None:
        if not len(self.token_ids) == len(self.parents) + 1 == len(self.values) + 1:
            raise ValueError("a tree has other numbers of nodes, parents and values")
        if any(parent > node for node, parent in enumerate(self.parents)):
            raise ValueError("a tree has nodes that do not come behind their parents")

    @classmethod
    def of(cls, drafted: RemoteTree, is_hint: bool) -> "Drafted":
        tree = drafted.tree
        values = bytes(max(1, round(_MOST_VALUE * value)) for value in tree.values[1:])
        check = None if is_hint else drafted.check
        return cls(drafted.position, check, list(tree.token_ids), list(tree.parents[1:]), values)

    @property
    def is_hint(self) -> bool:
        return self.check is None

    def tree(self) -> RemoteTree:
        """Of its token ids nothing is known."""
        values = [1.0]
        for parent, value in zip(self.parents, self.values, strict=True):
            values.append(min(value / _MOST_VALUE, values[parent]))
        names = ["", *[DEVICE] * len(self.parents)]
        return RemoteTree(self.position, DraftTree(self.token_ids, [-1, *self.parents], names, values), self.check or 0)


class Resume(Frame, tag=5):
    """num_tokens: of the answer, that came already. text_hash: of these, see `hash_of`."""

    answer_id: _AnswerId
    num_tokens: Count
    text_hash: _Hash


class Cancel(Frame, tag=6):
    """Wants no more of an answer."""


class SettingsPart(Frame, tag=7):
    """A part of the settings of the Ask that comes behind it, which has their end."""

    data: Annotated[bytes, Meta(min_length=1)]


class Welcome(Frame, tag=65):
    """model: its name there. tokenizer: its hash. drafts: which requests are drafted there ("all", "greedy", "none").

    pass_s: seconds of a pass over 1, 2, ... nodes; empty where they were not measured. sampling: what requests that
    leave it open go by, as of `Engine.sampling`.
    """

    model: str
    tokenizer: _Hash
    tokenizer_bytes: _Most
    vocab_size: _Most
    max_context: _Most
    eos_token_ids: tuple[Count, ...]
    has_chat_template: bool
    drafts: Literal["all", "greedy", "none"]
    pass_s: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], Meta(max_length=256)]
    sampling: dict[str, int | float]

    def __post_init__(self) -> None:
        if not is_own_sampling(self.sampling):
            raise ValueError("its sampling is none that a model can recommend")

    @property
    def hidden_size(self) -> None:
        """None are sent."""


class TokenizerPart(Frame, tag=66):
    data: Annotated[bytes, Meta(min_length=1)]


class Started(Frame, tag=67):
    """token_ids: the prompt's, where the client does not know them."""

    token_ids: list[Count]


class Tokens(Frame, tag=68):
    """token_ids: of the answer, behind so many others."""

    num_before: Count
    token_ids: list[Count]


class Deviation(Struct):
    """How far a lossy answer deviates, as its meter has it."""

    rule: str
    figures: dict[str, int | float | str]
    num_tokens: Count
    num_changed: Count
    nats_per_token: _Finite
    repeated_4grams: _Finite
    usual_repeated_4grams: _Finite | None

    def for_users(self) -> dict[str, Any]:
        figures = self.figures.items()
        shown = {one_line(name): one_line(each) if isinstance(each, str) else each for name, each in figures}
        return {**to_builtins(self), "rule": one_line(self.rule), "figures": shown}


class End(Frame, tag=69):
    """deviation: None of an exact answer."""

    finish_reason: Ending
    stats: GenerationStats
    deviation: Deviation | None

    def __post_init__(self) -> None:
        numbers: list[Any] = [getattr(self.stats, field.name) for field in fields(self.stats)]
        if not all(math.isfinite(each) for each in numbers if isinstance(each, int | float)):
            raise ValueError("its statistics are not finite")


class Refusal(Frame, tag=70):
    """status: of HTTP. code: for programs."""

    message: str = "The server refuses without saying why."
    status: int | None = None
    code: str | None = None


FromClient = Hello | Fetch | Ask | Drafted | Resume | Cancel | SettingsPart
FromServer = Welcome | TokenizerPart | Started | Tokens | End | Refusal

CLIENT_FRAMES: FrameCodec[FromClient] = FrameCodec(FromClient, b"RD\x02", MAX_BYTES, "drafts")
SERVER_FRAMES: FrameCodec[FromServer] = FrameCodec(FromServer, b"RD\x02", MAX_BYTES, "drafts")


def in_parts(frame: FromClient) -> list[FromClient]:
    """A frame as it is sent: behind parts of settings that are longer than one may be."""
    if not isinstance(frame, Ask) or len(frame.settings) <= _PART_BYTES:
        return [frame]
    data = frame.settings
    parts = [data[start : start + _PART_BYTES] for start in range(0, len(data), _PART_BYTES)]
    return [*map(SettingsPart, parts[:-1]), structs.replace(frame, settings=parts[-1])]
