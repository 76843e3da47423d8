"""Serves a pipeline stage: one thread receives frames, runs its layers on them, and hands them on."""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import zmq
from msgspec.structs import replace

from reader_edge_runtime.errors import FrameError, ReaderEdgeError
from reader_edge_runtime.execution.pipeline.following_stage import FollowingStage, UnknownCacheError
from reader_edge_runtime.execution.pipeline.handshake import (
    FACT_FRAMES,
    FAULT,
    HEADERS,
    HELLO,
    MICROSECONDS,
    PASS,
    RESULT,
    WELCOME,
    Header,
    facts_of,
    next_of,
)
from reader_edge_runtime.execution.pipeline.links import Links, Socket, parts_of
from reader_edge_runtime.execution.pipeline.pass_frame import MAX_BYTES, MAX_NODES

_MAX_CLIENTS = 8  # the one that was silent for longest gives way
_POLL_MS = 500


@dataclass(slots=True)
class _Client:
    """Who asks: peer is its name on the socket here, onward the link to the stage behind; None where that asks."""

    peer: bytes
    onward: Socket | None


class StageServer:
    """Serves until `is_stopped` says so. on_message: gets a line for each who asks, and for each fault."""

    def __init__(self, stage: FollowingStage, links: Links, address: str, on_message: Callable[[str], None]) -> None:
        """Raises ConfigError where nothing can listen at the address."""
        self._stage = stage
        self._links = links
        self._on_message = on_message
        self._max_bytes = max_message_bytes(stage.stage.part.width)
        self._socket = links.listen(address, self._max_bytes)
        self._facts = facts_of(stage.stage) | {MICROSECONDS: str(math.ceil(1e6 * stage.stage.pass_seconds()))}
        self._clients: OrderedDict[bytes, _Client] = OrderedDict()

    def serve(self, is_stopped: Callable[[], bool]) -> None:
        while not is_stopped():
            if self._socket.poll(_POLL_MS):
                self._take(parts_of(self._socket))

    def _take(self, parts: Sequence[memoryview]) -> None:
        """One message; whatever it is, the next one is taken."""
        if len(parts) not in (3, 4):
            return
        peer, rest = bytes(parts[0]), parts[2:]
        try:
            header = HEADERS.unpack(parts[1])
        except FrameError:
            return  # from nobody who could get an answer
        try:
            if header.what == HELLO and len(rest) == 1:
                self._welcome(peer, header, rest[0])
            elif header.what == PASS:
                self._pass(header, rest)
        except ReaderEdgeError as error:
            self._on_message(str(error))
            lost = "rows" if isinstance(error, UnknownCacheError) else "all" if isinstance(error, FrameError) else ""
            fault = FACT_FRAMES.pack({"fault": str(error)[:500], "lost": lost})
            client = self._clients.get(header.client)
            self._send([client.peer if client else peer, HEADERS.pack(replace(header, what=FAULT)), fault])

    def _welcome(self, peer: bytes, header: Header, data: memoryview) -> None:
        address = next_of(FACT_FRAMES.unpack(data))
        self._forget(header.client)
        while len(self._clients) >= _MAX_CLIENTS:
            self._forget(next(iter(self._clients)))
        onward = None if address is None else self._links.connect(address, self._max_bytes)
        self._clients[header.client] = _Client(peer, onward)
        self._on_message(f"Serves {header.client.hex()[:8]}; hands on to {address or 'the client'}.")
        self._send([peer, HEADERS.pack(replace(header, what=WELCOME)), FACT_FRAMES.pack(self._facts)])

    def _pass(self, header: Header, parts: Sequence[memoryview]) -> None:
        client = self._clients.get(header.client)
        if client is None:
            raise FrameError("This stage was started since it was greeted, and has no rows.")
        self._clients.move_to_end(header.client)
        handed = parts[1] if len(parts) > 1 else None
        made = self._stage.answer(header.client, parts[0], handed).data.cast("B")
        if client.onward is None:
            self._send([client.peer, HEADERS.pack(replace(header, what=RESULT)), made])
        else:
            self._send([HEADERS.pack(header), parts[0], made], client.onward)

    def _send(self, parts: Sequence[bytes | memoryview], socket: Socket | None = None) -> None:
        """What a link does not take is dropped: its other end is gone, or notices when its wait runs out."""
        try:
            (socket or self._socket).send_multipart(parts, zmq.DONTWAIT, copy=False)
        except zmq.Again:
            self._on_message("A link is full: a pass is dropped.")

    def _forget(self, client: bytes) -> None:
        found = self._clients.pop(client, None)
        if found is not None and found.onward is not None:
            self._links.drop(found.onward)
        self._stage.forget(client)


def max_message_bytes(width: int) -> int:
    """Of any part of a message between stages whose residual stream has so many numbers."""
    return max(MAX_BYTES, 4 * MAX_NODES * width)
