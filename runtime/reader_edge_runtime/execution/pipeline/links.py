"""Sockets of ZeroMQ between boxes: bounded messages, heartbeats, and encryption with the pipeline's key.

All boxes of a pipeline have one key. Its holders may connect; others are refused before a byte is read.
"""

import weakref
from collections.abc import Sequence
from typing import TypeAlias

import zmq
import zmq.utils.z85
from zmq.auth.thread import ThreadAuthenticator

from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.package.pipeline_file import is_loopback

_HEARTBEAT_MS, _SILENT_MS = 1000, 2500  # a silent box is noticed within their sum
_MAX_WAITING = 64  # messages on a link
REFUSED = zmq.EVENT_CONNECT_RETRIED  # nothing listens there: it will be tried again
_LOST = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL

Socket: TypeAlias = zmq.Socket


class Links:
    """Opens the sockets of one process. key: the pipeline's 32 bytes; None without encryption, on loopback alone."""

    def __init__(self, key: bytes | None) -> None:
        self._context = zmq.Context()
        self._sockets: list[Socket] = []
        self._authenticators: list[ThreadAuthenticator] = []
        # A model that is dropped closes its links.
        self._closing = weakref.finalize(self, _close, self._context, self._sockets, self._authenticators)
        self._secret = None if key is None else zmq.utils.z85.encode(key)
        self._public = None if self._secret is None else zmq.curve_public(self._secret)

    def listen(self, address: str, max_bytes: int) -> Socket:
        """A ROUTER. Raises ConfigError for an address that cannot be had, or that needs a key."""
        self._check(address)
        socket = self._socket(zmq.ROUTER, max_bytes)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if self._secret is not None:
            authenticator = ThreadAuthenticator(self._context)
            self._authenticators.append(authenticator)
            authenticator.start()
            authenticator.configure_curve_callback("*", credentials_provider=_OneKey(self._public))
            socket.setsockopt(zmq.CURVE_SERVER, 1)
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            why = zmq.strerror(error.errno)
            raise ConfigError(
                f"Nothing can listen at {address} ({why}): give another --listen, and pipeline.json that address."
            ) from None
        return socket

    def connect(self, address: str, max_bytes: int) -> Socket:
        """A DEALER, whether or not anything listens there yet. Raises ConfigError for an address that needs a key."""
        self._check(address)
        socket = self._socket(zmq.DEALER, max_bytes)
        if self._public is not None:
            socket.setsockopt(zmq.CURVE_SERVERKEY, self._public)
        socket.connect(address)
        return socket

    def monitor(self, socket: Socket) -> Socket:
        """A socket which reports that another one's link is lost, or REFUSED."""
        self._sockets.append(socket.get_monitor_socket(_LOST | REFUSED))
        return self._sockets[-1]

    def drop(self, socket: Socket) -> None:
        """Close one of the sockets."""
        socket.close(linger=0)
        self._sockets.remove(socket)

    def close(self) -> None:
        self._closing()

    def _check(self, address: str) -> None:
        if self._secret is None and not is_loopback(address):
            raise ConfigError(
                f"Others can reach {address}: give the pipeline's key (--key pipeline.key of `reader-edge split`), "
                "or an address of this machine alone, as tcp://127.0.0.1:5551."
            )

    def _socket(self, kind: int, max_bytes: int) -> Socket:
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)  # found before memory is taken
        socket.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENT_MS)
        socket.setsockopt(zmq.RECONNECT_IVL, 100)
        socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        socket.setsockopt(zmq.SNDHWM, _MAX_WAITING)
        socket.setsockopt(zmq.RCVHWM, _MAX_WAITING)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.IPV6, 1)
        if self._secret is not None:
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._public)
        return socket


def _close(
    context: "zmq.Context[Socket]", sockets: Sequence[Socket], authenticators: Sequence[ThreadAuthenticator]
) -> None:
    for socket in sockets:
        if socket.type != zmq.PAIR:
            socket.disable_monitor()
    for socket in sockets:
        socket.close(linger=0)
    for authenticator in authenticators:
        authenticator.stop()
    context.term()


class _OneKey:
    """Lets ZeroMQ accept clients that have the pipeline's own key, and no others."""

    def __init__(self, public: bytes | None) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._public  # in Z85, both


def parts_of(socket: Socket) -> Sequence[memoryview]:
    """The parts of a message that has come, without a copy."""
    return [part.buffer for part in socket.recv_multipart(copy=False)]
