"""A WebSocket connection to a server: address, key, frames both ways, and reconnection."""

import logging
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from reader_edge.remote.frames import (
    CLIENT_FRAMES,
    DRAFT_PATH,
    MAX_BYTES,
    SERVER_FRAMES,
    Fetch,
    FromClient,
    FromServer,
    Hello,
    Refusal,
    TokenizerPart,
    Welcome,
    in_parts,
    one_line,
)
from reader_edge_runtime.errors import BusyError, ConfigError, FrameError, InstallationError, RemoteError
from reader_edge_runtime.untrusted.user_input import short_repr

_SCHEMES = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
_CONNECT_S = 10.0
_GOODBYE_S = 1.0  # for the other side's, which does not come where frames wait that nobody reads
_FETCH_S = 120.0  # for a whole tokenizer
_BUSY = 429

Kind = TypeVar("Kind", bound=FromServer)

# For what websockets logs. A link tells of a lost connection itself: the library's traceback says no more to a user.
_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.CRITICAL)

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.05, 2.0  # between looks


class LostError(RemoteError):
    """The connection ended where it should not."""


class WebSocket(Protocol):
    """What a link needs of a WebSocket; `websockets.sync.client.ClientConnection` has it."""

    def send(self, message: bytes) -> None:
        """Raises OSError or EOFError where the connection is lost."""

    def recv(self, timeout: float | None = None) -> str | bytes:
        """The next message. Raises TimeoutError, and as `send`."""

    def close(self) -> None:
        """Say goodbye."""


class FrameConnection:
    """Sends and receives frames over a connection. round_trip_s: what the handshake took there and back.

    Raises LostError where the connection is lost, RemoteError for a refusal of the server, BusyError among them.
    """

    def __init__(self, connection: WebSocket, url: str) -> None:
        self._connection = connection
        self._url = url
        self.round_trip_s = 0.0

    def greet(self, tokenizer_hash: bytes = b"") -> Welcome:
        """What the server says of its model. tokenizer_hash: of the tokenizer here; b"" where there is none yet."""
        start = time.perf_counter()
        with suppress(LostError):  # a server that is full says so before it hangs up, maybe before this
            self.send(Hello(tokenizer_hash))
        welcome = self.receive_kind(Welcome)
        self.round_trip_s = time.perf_counter() - start
        return welcome

    def fetch(self, num_bytes: int) -> bytes:
        """The server's tokenizer, of so many bytes by its own account."""
        self.send(Fetch())
        data, ends_at = bytearray(), time.monotonic() + _FETCH_S
        while len(data) < num_bytes:
            if time.monotonic() > ends_at:
                raise RemoteError(
                    f"{len(data)} of {num_bytes} bytes of the tokenizer came within {_FETCH_S:g} seconds: give the "
                    "model's tokenizer.json (--tokenizer)."
                )
            data += self.receive_kind(TokenizerPart).data
        return bytes(data)

    def send(self, frame: FromClient) -> None:
        """Raises FrameError for a frame that is too large."""
        sent = [CLIENT_FRAMES.pack(each) for each in in_parts(frame)]
        try:
            for data in sent:
                self._connection.send(data)
        except (OSError, EOFError) as error:
            raise self._lost() from error

    def receive(self, timeout_s: float | None = None) -> FromServer:
        """The next frame. Raises TimeoutError where none comes in time."""
        try:
            data = self._connection.recv(timeout_s)
        except TimeoutError:
            raise
        except (OSError, EOFError) as error:
            raise self._lost() from error
        frame = SERVER_FRAMES.unpack(data)
        if isinstance(frame, Refusal):
            message = one_line(frame.message) or Refusal().message
            raise BusyError(message) if frame.status == _BUSY else RefusedError(message, frame.code)
        return frame

    def receive_kind(self, kind: type[Kind]) -> Kind:
        """The next frame, which must be of this kind and come in time."""
        try:
            frame = self.receive(_CONNECT_S)
        except TimeoutError:
            raise self._lost() from None
        if not isinstance(frame, kind):
            raise FrameError(f"The server sent a frame {type(frame).__name__} where {kind.__name__} was due.")
        return frame

    def close(self) -> None:
        self._connection.close()

    def _lost(self) -> LostError:
        return LostError(f"The connection to {self._url} is lost: is the server running, and the network there?")


def connected(url: str, key: str | None) -> FrameConnection:
    """A link to a server. Raises RemoteError where none can be had, ConfigError for what is no address of one."""
    address = socket_address(url)
    try:
        from websockets.exceptions import InvalidHandshake, InvalidStatus, WebSocketException
        from websockets.sync.client import connect
    except ImportError:
        raise InstallationError("This needs websockets, which is missing: pip install 'reader-edge[remote]'.") from None

    class Socket:
        """A connection whose errors are those that a link knows."""

        def send(self, message: bytes) -> None:
            try:
                connection.send(message)
            except WebSocketException as error:
                raise EOFError from error

        def recv(self, timeout: float | None = None) -> str | bytes:
            try:
                message: str | bytes = connection.recv(timeout)
                return message
            except WebSocketException as error:
                raise EOFError from error

        def close(self) -> None:
            opened.close()

    opened = ExitStack()  # newer releases of websockets connect within a `with` alone
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    try:
        connection = opened.enter_context(
            connect(
                address,
                additional_headers=headers,
                open_timeout=_CONNECT_S,
                close_timeout=_GOODBYE_S,
                max_size=MAX_BYTES,
                compression=None,
                proxy=None,
                logger=_LOG,
            )
        )
    except InvalidStatus as error:
        raise refused_status(url, error.response.status_code, key is not None) from None
    except InvalidHandshake as error:
        raise RemoteError(f"{url} is no server of reader-edge: {error}.") from None
    except (OSError, EOFError) as error:
        raise LostError(
            f"Nothing answers at {url} ({str(error) or 'no answer'}): is `reader-edge serve` running, with its model "
            "loaded?"
        ) from None
    return FrameConnection(Socket(), url)


def socket_address(url: str) -> str:
    """Where a server takes drafts, of the address of the server. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        scheme, is_address = _SCHEMES.get(parts.scheme), bool(parts.hostname) and parts.port != 0
        (parts.hostname or "").encode("idna")  # as the look-up of a name does
        is_address = is_address and (parts.username is None or parts.password is not None)
    except ValueError:  # UnicodeError too
        scheme, is_address = None, False
    if scheme is None or not is_address:
        raise ConfigError(f"{short_repr(url)} is no address of a server: give one such as http://localhost:8000.")
    return f"{scheme}://{parts.netloc}{DRAFT_PATH}"


def refused_status(url: str, status: int, is_key_shown: bool) -> RemoteError:
    if status == 401 and is_key_shown:
        return RemoteError(f"{url} does not know this API key: give one of its --api-key-file.")
    if status == 401:
        return RemoteError(f"{url} wants an API key: give the one of its --api-key-file.")
    if status == 403:
        return RemoteError(f"{url} lets nobody draft who names it so: address it as localhost, or with a key.")
    return RemoteError(f"{url} takes no drafts (status {status}): it is no `reader-edge serve` of this release.")


class RefusedError(RemoteError):
    """What a server refuses. code: for programs."""

    def __init__(self, message: str, code: str | None) -> None:
        super().__init__(message)
        self.code = code


class Reconnect:
    """Looks for a lost server, ever more rarely, for so many seconds since a token came, however often it is lost.

    seconds: of looking. Seconds of a link that holds are not counted: a server may be silent over a long prompt.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent_s = self._wait_s = 0.0
        self._num_tokens = 0

    def find(self, linked: Callable[[], FrameConnection], error: LostError, num_tokens: int) -> FrameConnection:
        """Another link. num_tokens: that came so far. Raises LostError where the time is over, and what `linked` does.

        Warns where it is not there at once.
        """
        if num_tokens > self._num_tokens:
            self._spent_s = self._wait_s = 0.0
            self._num_tokens = num_tokens
        is_reported = False
        while self._spent_s + self._wait_s <= self._seconds:
            if self._wait_s and not is_reported:  # one that is there at once is not spoken of
                is_reported = True
                warnings.warn(f"{error} It is looked for up to {self._seconds:g} s.", RuntimeWarning, stacklevel=2)
            start = time.monotonic()
            time.sleep(self._wait_s)
            self._wait_s = min(2 * self._wait_s or _FIRST_WAIT_S, _LONGEST_WAIT_S)
            try:
                return linked()
            except LostError:
                pass
            finally:
                self._spent_s += time.monotonic() - start
        raise LostError(f"{str(error).removesuffix('.')} It was looked for {self._seconds:g} seconds.")
