"""One client's connection, which ends where a request takes too long to come."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

_REQUEST_S = 45.0  # from its first byte to its last, headers and body
_TOLD = 1.2  # connections, of those that there may be
_UNFINISHED = (h11.IDLE, h11.SEND_BODY)


class Connection(H11Protocol):
    """uvicorn's, whose own timer only runs between requests and stops at the first byte of the next one."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()
        # Some beyond the limit are told so, in answer to what they ask; each takes a file of the process.
        if self.limit_concurrency is not None and len(self.connections) > _TOLD * self.limit_concurrency:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_timer()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing is missing that could be installed: there are no WebSockets here."""

    def _watch(self) -> None:
        """Have the timer run while a request is coming."""
        if self.conn.their_state not in _UNFINISHED:
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(_REQUEST_S, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
