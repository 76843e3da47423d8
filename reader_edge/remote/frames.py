"""What travels between a device and a server: small binary frames, versioned and bounded. No pickle.

A frame is two letters, the version and its kind, a byte each; what follows hangs on the kind. Whole numbers are varints
(7 bits a byte, the lowest first), a token id is one, and facts are a JSON object.
"""

import json
import struct
from collections.abc import Iterable
from typing import NamedTuple

from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import DEVICE, MOST_NODES, DeviceTree
from reader_edge_runtime.errors import RemoteError

DRAFT_PATH = "/v1/draft"  # of the server's WebSocket
VERSION = 1
MAX_BYTES = 1 << 20  # of a frame
ANSWER_ID_BYTES = 16
HASH_BYTES = 32

# From the device, then from the server.
HELLO, FETCH, ASK, HINT, TREE, RESUME, CANCEL = range(1, 8)
WELCOME, PART, STARTED, TOKENS, END, REFUSAL = range(65, 71)

ANSWER_GONE = "answer_gone"  # code of a refusal: ask again, there is nothing to take up
ANSWER_TAKEN = "answer_taken"  # error code: a device that asked for the same answer later has it

NO_DRAFTS, HINTS, VERIFY = range(3)
MODES = {"none": NO_DRAFTS, "hints": HINTS, "verify": VERIFY}

_MAGIC = b"RD"
_HEAD = struct.Struct("<2sBB")
_CHECK = struct.Struct("<I")
_MAX_NUMBER = 2**31 - 1
_MOST_VALUE = 255  # a value of 1, which takes a byte


class FrameError(RemoteError):
    """What came is no frame of this version."""


class Ask(NamedTuple):
    """answer_id: by which the answer can be taken up again. mode: one of MODES.

    settings: what is asked of the answer, see `settings`. token_ids: the prompt's; none where settings have messages.
    """

    answer_id: bytes
    mode: int
    settings: dict[str, object]
    token_ids: list[int]

    def packed(self) -> bytes:
        facts = json.dumps(self.settings).encode()
        return frame(ASK, self.answer_id, packed_numbers([self.mode, len(facts)]), facts, _counted(self.token_ids))

    @classmethod
    def unpacked(cls, reader: "Reader") -> "Ask":
        answer_id, mode = reader.take(ANSWER_ID_BYTES), reader.number()
        if mode not in MODES.values():
            raise FrameError(f"A frame names mode {mode}, which this version does not know.")
        return cls(answer_id, mode, reader.facts(reader.number()), reader.token_ids())


class Resume(NamedTuple):
    """num_tokens: of the answer, that came already. text_hash: of these, see `hash_of`."""

    answer_id: bytes
    num_tokens: int
    text_hash: bytes

    def packed(self) -> bytes:
        return frame(RESUME, self.answer_id, packed_numbers([self.num_tokens]), self.text_hash)

    @classmethod
    def unpacked(cls, reader: "Reader") -> "Resume":
        return cls(reader.take(ANSWER_ID_BYTES), reader.number(), reader.take(HASH_BYTES))


class Tokens(NamedTuple):
    """token_ids: of the answer, behind so many others."""

    num_before: int
    token_ids: list[int]

    def packed(self) -> bytes:
        return frame(TOKENS, packed_numbers([self.num_before]), _counted(self.token_ids))

    @classmethod
    def unpacked(cls, reader: "Reader") -> "Tokens":
        return cls(reader.number(), reader.token_ids())


def packed_tree(kind: int, drafted: DeviceTree) -> bytes:
    """A hint, or a tree to verify."""
    tree = drafted.tree
    values = bytes(max(1, round(_MOST_VALUE * value)) for value in tree.values[1:])
    check = _CHECK.pack(drafted.check) if kind == TREE else b""
    return frame(
        kind,
        packed_numbers([drafted.position]),
        check,
        _counted(tree.token_ids),
        packed_numbers(tree.parents[1:]),
        values,
    )


def unpacked_tree(kind: int, reader: "Reader") -> DeviceTree:
    """Raises FrameError for what is no tree. Of its token ids nothing is known."""
    position = reader.number()
    (check,) = _CHECK.unpack(reader.take(_CHECK.size)) if kind == TREE else (0,)
    token_ids = reader.token_ids(MOST_NODES)
    if not token_ids:
        raise FrameError("A frame has a tree without a root.")
    parents = [reader.number() for _ in token_ids[1:]]
    below = [value / _MOST_VALUE for value in reader.take(len(parents))]
    values = [1.0]
    for parent, value in zip(parents, below, strict=True):
        if parent >= len(values):
            raise FrameError("A frame has a tree whose nodes do not come behind their parents.")
        values.append(min(value, values[parent]))
    tree = DraftTree(token_ids, [-1, *parents], ["", *[DEVICE] * len(parents)], values)
    return DeviceTree(position, tree, check)


def frame(kind: int, *parts: bytes) -> bytes:
    """Raises FrameError where it is larger than a frame may be."""
    data = b"".join((_HEAD.pack(_MAGIC, VERSION, kind), *parts))
    if len(data) > MAX_BYTES:
        raise FrameError(
            f"The request has {len(data)} bytes, but a frame may have {MAX_BYTES} at most: shorten the prompt."
        )
    return data


def packed_facts(kind: int, facts: dict[str, object]) -> bytes:
    return frame(kind, json.dumps(facts).encode())


def opened(data: bytes | str) -> tuple[int, "Reader"]:
    """The kind of a frame, and what reads the rest. Raises FrameError, which names versions that differ."""
    if isinstance(data, str) or len(data) < _HEAD.size or data[:2] != _MAGIC:
        raise FrameError("What came is no frame of drafts: is the other side reader-edge?")
    if len(data) > MAX_BYTES:
        raise FrameError(f"A frame has {len(data)} bytes, but may have {MAX_BYTES} at most.")
    _, version, kind = _HEAD.unpack_from(data)
    if version != VERSION:
        raise FrameError(
            f"The other side speaks version {version} of drafts, this one version {VERSION}: install the same release "
            "of reader-edge on both."
        )
    return kind, Reader(data, _HEAD.size)


class Reader:
    """Takes values from a frame, each after what is left of it was found to be long enough. Raises FrameError."""

    def __init__(self, data: bytes, start: int = 0) -> None:
        self._data = data
        self._at = start

    def number(self) -> int:
        value, shift = 0, 0
        while shift < 35:
            (byte,) = self.take(1)
            value |= (byte & 127) << shift
            if byte < 128:
                if value > _MAX_NUMBER:
                    break
                return value
            shift += 7
        raise FrameError("A frame has a number that is too large.")

    def token_ids(self, most: int = MAX_BYTES) -> list[int]:
        count = self.number()
        if count > min(most, len(self._data) - self._at):  # each takes a byte or more
            raise FrameError(f"A frame names {count} tokens, more than it has or may have.")
        return [self.number() for _ in range(count)]

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise FrameError(f"A frame of {len(self._data)} bytes ends before what it has begun.")
        self._at += count
        return self._data[self._at - count : self._at]

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._at)

    def facts(self, num_bytes: int | None = None) -> dict[str, object]:
        """A JSON object of so many bytes; None: of all that is left."""
        try:
            found = json.loads(self.rest() if num_bytes is None else self.take(num_bytes))
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise FrameError("A frame has no JSON object where there must be one.")
        return found

    def end(self) -> None:
        if self._at != len(self._data):
            raise FrameError(f"A frame has {len(self._data) - self._at} bytes behind its end.")


def packed_numbers(values: Iterable[int]) -> bytes:
    data = bytearray()
    for value in values:
        while value > 127:
            data.append(value & 127 | 128)
            value >>= 7
        data.append(value)
    return bytes(data)


def _counted(token_ids: list[int]) -> bytes:
    return packed_numbers([len(token_ids), *token_ids])
