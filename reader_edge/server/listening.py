"""The uvicorn server: its socket, limits of connections and time, and an orderly shutdown."""

import asyncio
import errno
import logging
import os
import socket
import time
from importlib.util import find_spec
from types import FrameType
from typing import cast

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import service_unavailable
from uvicorn.protocols.http.h11_impl import H11Protocol

from reader_edge.remote.frames import DRAFT_PATH
from reader_edge.remote.frames import MAX_BYTES as MAX_FRAME_BYTES
from reader_edge.server.authentication import MAX_HEADER_BYTES
from reader_edge.server.model_pool import ModelPool
from reader_edge.server.request_log import RequestLog, RequestNote
from reader_edge_runtime import AsyncEngine
from reader_edge_runtime.errors import ConfigError

_MAX_CONNECTIONS = 1000
_BACKLOG = 256  # connections that are taken at a time; uvicorn's 2048 are as many errors where none can be
_KEEP_ALIVE_S = 15
_UNREAD_S = 60  # that a client may leave what it was sent unread before it counts as gone
_STOPPING_S = 30.0  # that running answers get to their end,
_LEAVING_S = 5.0  # and then clients to read that theirs was given up
_TICK_S = 0.1
_REQUEST_S = 45.0  # from its first byte to its last, headers and body
_REFUSED_UP_TO = 1.2  # connections, of those that there may be
_LOG = logging.getLogger(__name__)
_FULL = "As many connections are open as there may be: try again later."


def max_connections() -> int:
    """As many as may be open: a third of the files that this process may have, after it has requested more."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return _MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4 * _MAX_CONNECTIONS and (hard == resource.RLIM_INFINITY or soft < hard):
        wanted = 4 * _MAX_CONNECTIONS
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else min(_MAX_CONNECTIONS, max(soft // 3, 1))


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens. port: 0 takes a free one. Raises ConfigError where it cannot be had."""
    host = host.removeprefix("[").removesuffix("]")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        place = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number in errno.errorcode else error  # else of names that lead nowhere
        raise ConfigError(f"Nothing can listen at {host}:{port}: {reason}; choose another --host or --port.") from None
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; connections inherit it
        place.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_S * 1000)
    return place


def listen(app: ASGIApp, place: socket.socket, engine: AsyncEngine | ModelPool) -> None:
    """Answer until SIGINT or SIGTERM: then no new request is taken, nor the rest of one that has not come whole.

    Running answers get a while to their end. After it, or at a second signal, they are given up, which their clients
    learn.
    """
    asyncio.run(Server(app, engine).serve([place]))


class Connection(H11Protocol):
    """uvicorn's, whose own timer only runs between requests and stops at the first byte of the next one."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        # Some beyond the limit are refused, in answer to what they ask; each takes a file of the process.
        self._most, self.limit_concurrency = self.limit_concurrency or _MAX_CONNECTIONS, None
        if len(self.connections) > _REFUSED_UP_TO * self._most:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def handle_events(self) -> None:
        """uvicorn's own limit answers outside the application, so in no line of the log."""
        is_full = max(len(self.connections), len(self.tasks)) >= self._most
        self.app = _refusing_all if is_full else self.config.loaded_app
        super().handle_events()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        super().handle_websocket_upgrade(event)
        refusal = getattr(self.transport.get_protocol(), "response", None)  # of websockets, before the application
        if refusal is not None and refusal.status_code >= 400:
            _refuse_unread(refusal.status_code, "A handshake for a socket is malformed.", DRAFT_PATH)

    def send_400_response(self, msg: str) -> None:
        _refuse_unread(400, msg)
        super().send_400_response(msg)

    def shutdown(self) -> None:
        """uvicorn's, which would wait for bodies too that come slowly or never, as if their answers ran."""
        super().shutdown()
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _unsupported_upgrade_warning(self) -> None:
        """On most paths nothing is missing that could be installed: there are no WebSockets there."""

    def _should_upgrade_to_ws(self) -> bool:
        """WebSockets are for drafts of devices alone: on other paths the wish for one is passed over."""
        return super()._should_upgrade_to_ws() and self.scope["path"] == DRAFT_PATH

    def _watch(self) -> None:
        """Have the timer run while a request is coming; a WebSocket has a protocol of its own, which watches it."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY) or self.transport.get_protocol() is not self:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(_REQUEST_S, self._give_up)

    def _give_up(self) -> None:
        # Else nothing was requested, or the application has a line.
        if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
            _refuse_unread(408, f"No whole request came within {_REQUEST_S:g} seconds.")
        self.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """uvicorn's, whose own limit of a shutdown cancels answers in mid-word: here the engine gives them up."""

    def __init__(self, app: ASGIApp, engine: AsyncEngine | ModelPool) -> None:
        most = max_connections()
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="websockets-sansio" if find_spec("websockets") else "none",
            ws_max_size=MAX_FRAME_BYTES,
            ws_per_message_deflate=False,  # a few bytes at a time
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,  # of those that come piece by piece
            http=Connection,
            backlog=min(_BACKLOG, most),
            limit_concurrency=most,
            timeout_keep_alive=_KEEP_ALIVE_S,
        )
        super().__init__(config)
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addFilter(_is_news)
        self._engine = engine
        self._is_hurried = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; a second one gives up what runs."""
        self._is_hurried = self.should_exit
        super().handle_exit(sig, frame)
        self.force_exit = False  # uvicorn would not wait for its own tasks

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.ensure_future(self._end())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end(self) -> None:
        """Report the end to clients whose answers take too long, then close the connections that are left."""
        num_answers = self._engine.num_running + self._engine.num_waiting
        if num_answers and not self._is_hurried:
            answers, them = ("answer", "it") if num_answers == 1 else ("answers", "them")
            sentence = "Finishing %d %s (%.0f s at most); Ctrl-C again cancels %s."
            _LOG.info(sentence, num_answers, answers, _STOPPING_S, them)
        end = time.monotonic() + _STOPPING_S
        while not self._is_hurried and time.monotonic() < end:
            await asyncio.sleep(_TICK_S)
        await self._engine.close(cancels=True)
        await asyncio.sleep(_LEAVING_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()


def _is_news(record: logging.LogRecord) -> bool:
    """Neither that a socket was refused with a status, as it should be, nor each thing sent to one that has left, nor
    what has a line of its own."""
    message = record.getMessage()
    return "without completing handshake" not in message and message not in _NO_NEWS


_NO_NEWS = ("socket.send() raised exception.", "Invalid HTTP request received.")
_refusing_all = RequestLog(cast(ASGIApp, service_unavailable), refusal=_FULL)


def _refuse_unread(status: int, sentence: str, path: str | None = None) -> None:
    note = RequestNote(path=path)
    note.refuse(status, sentence)
    note.write()
