"""Listening: from a host and a port to answered connections, until somebody says stop."""

import asyncio
import errno
import os
import socket

import uvicorn
from starlette.types import ASGIApp

from reader_edge.server.connection import Connection
from reader_edge.server.guard import MAX_HEADER_BYTES
from reader_edge_runtime.errors import ConfigError

_MAX_CONNECTIONS = 1000
_KEEP_ALIVE_S = 15
_UNREAD_S = 60  # that a client may leave what it was sent unread before it counts as gone
_STOPPING_S = 30  # that running answers get to their end


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens. port: 0 takes a free one. Raises ConfigError where it cannot be had."""
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


def listen(app: ASGIApp, place: socket.socket) -> None:
    """Answer until SIGINT or SIGTERM: then no new request is taken, and running answers get a while to their end."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,  # of those that come piece by piece
        http=Connection,
        limit_concurrency=_MAX_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOPPING_S,
    )
    asyncio.run(uvicorn.Server(config).serve([place]))
