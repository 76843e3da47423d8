"""Connections to a server: greeted, lost, looked for again."""

import base64
import hashlib
import importlib.util
import socket
import sys
import threading
import warnings
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from reader_edge.remote.connection import (
    FrameConnection,
    LostError,
    Reconnect,
    RefusedError,
    connected,
    refused_status,
    socket_address,
)
from reader_edge.remote.frames import CLIENT_FRAMES, SERVER_FRAMES, Fetch, Refusal, Started, TokenizerPart
from reader_edge_runtime.errors import BusyError, ConfigError, FrameError, InstallationError, RemoteError

pack = SERVER_FRAMES.pack


class Lines:
    """A connection on which this comes, or this is raised."""

    def __init__(self, *shown: Any) -> None:
        self.shown = list(shown)
        self.sent: list[bytes] = []

    def send(self, message: bytes) -> None:
        self.sent.append(message)
        if isinstance(self.shown[0], OSError):
            raise self.shown[0]

    def recv(self, timeout: float | None = None) -> bytes:
        shown = self.shown.pop(0)
        if isinstance(shown, Exception):
            raise shown
        assert isinstance(shown, bytes)
        return shown

    def close(self) -> None:
        self.shown.clear()


def link(*shown: Any) -> FrameConnection:
    return FrameConnection(Lines(*shown), "http://there")


def test_a_tokenizer_comes_in_parts() -> None:
    parts = [pack(TokenizerPart(part)) for part in (b"ab", b"c")]
    assert link(*parts).fetch(3) == b"abc"
    with pytest.raises(FrameError, match="length >= 1"):
        link(pack(TokenizerPart(b""))).fetch(3)


def test_a_tokenizer_that_trickles_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge.remote.connection._FETCH_S", -1.0)
    with pytest.raises(RemoteError, match=r"0 of 3 bytes of the tokenizer came within .* \(--tokenizer\)"):
        link(*[pack(TokenizerPart(b"a"))] * 3).fetch(3)


def test_losses_are_shown_by_the_address() -> None:
    for lost in (
        lambda: link(OSError()).send(Fetch()),
        lambda: link(EOFError()).receive(),
        lambda: link(ConnectionResetError()).receive(),
        lambda: link(TimeoutError()).greet(),
    ):
        with pytest.raises(LostError, match="http://there is lost"):
            lost()
    with pytest.raises(TimeoutError):
        link(TimeoutError()).receive(0)


def test_refusals_are_shown_as_the_server_says_them() -> None:
    busy = pack(Refusal("Try later.", 429))
    with pytest.raises(BusyError, match="Try later"):
        link(busy).receive()
    forged = pack(Refusal("No.\r\nError: x\u2028\ty" + "z" * 9999))
    with pytest.raises(RefusedError, match=r"^No\. Error: x yz{400,500}\.\.\.$"):
        link(forged).receive()
    with pytest.raises(RefusedError, match="without saying why"):
        link(pack(Refusal())).receive()
    with pytest.raises(RefusedError, match="without saying why"):
        link(pack(Refusal(" \n"))).receive()
    with pytest.raises(RefusedError, match=r"^\\x1b\[31mno\\x07$"):
        link(pack(Refusal("\x1b[31mno\x07"))).receive()
    with pytest.raises(FrameError, match="frame Started where Welcome"):
        link(pack(Started([]))).greet()


def test_a_refusal_is_read_of_a_server_that_hung_up_before_the_greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Lines(pack(Refusal("256 devices are connected already.", 503)))
    monkeypatch.setattr(shown, "send", lambda message: (_ for _ in ()).throw(EOFError()))
    with pytest.raises(RefusedError, match=r"^256 devices are connected already\.$"):
        FrameConnection(shown, "http://there").greet()


@pytest.mark.parametrize(
    "url",
    [
        *("", "localhost:8000", "ftp://a", "http://", "http://a:99999", "http://[", "http://a:0"),
        *("http://a..b:80", "http://.:80", f"http://{'a' * 70}", "http://user@a:80"),
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="no address of a server"):
        socket_address(url)


def test_addresses_lead_to_the_drafting_socket() -> None:
    assert socket_address("http://a:8000/v1") == "ws://a:8000/v1/draft"
    assert socket_address("http://user:word@ä") == "ws://user:word@ä/v1/draft"
    assert socket_address("https://a") == "wss://a/v1/draft"


def test_statuses_are_shown_by_their_remedy() -> None:
    for status, words in ((401, "wants an API key"), (403, "localhost"), (404, "status 404")):
        assert words in str(refused_status("http://there", status, False))
    assert "does not know this API key: give one of its" in str(refused_status("http://there", 401, True))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("websockets", "websockets.exceptions", "websockets.sync.client"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(InstallationError, match="needs websockets"):
        connected("http://localhost:8000", None)


class Library:
    """In the place of websockets: a connection that raises what the library would."""

    class WebSocketException(Exception):  # noqa: N818
        """Any error."""

    class InvalidHandshake(WebSocketException):
        """What is no WebSocket."""

    class InvalidStatus(InvalidHandshake):
        """Another answer."""

        def __init__(self, status: int) -> None:
            super().__init__()
            self.response = SimpleNamespace(status_code=status)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fault: Exception | None = None
        self.requested: dict[str, Any] = {}
        self.sent: list[bytes] = []
        exceptions, client = ModuleType("websockets.exceptions"), ModuleType("websockets.sync.client")
        for name in ("WebSocketException", "InvalidHandshake", "InvalidStatus"):
            setattr(exceptions, name, getattr(Library, name))
        client.connect = self.connect  # type: ignore[attr-defined]
        for name, module in (("", ModuleType("websockets")), (".exceptions", exceptions), (".sync.client", client)):
            monkeypatch.setitem(sys.modules, f"websockets{name}", module)
        monkeypatch.setitem(sys.modules, "websockets.sync", ModuleType("websockets.sync"))

    def connect(self, address: str, **options: Any) -> "Library":
        self.requested = {"address": address} | options
        self._fail()
        return self

    def send(self, message: bytes) -> None:
        self._fail()
        self.sent.append(message)

    def recv(self, timeout: float | None) -> bytes:
        self._fail()
        return pack(TokenizerPart(b"a"))

    def __enter__(self) -> "Library":
        return self

    def __exit__(self, *error: object) -> None:
        self.sent.clear()

    def _fail(self) -> None:
        if self.fault is not None:
            raise self.fault


def test_a_key_goes_along_and_frames_go_there_and_back(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(monkeypatch)
    made = connected("http://there:8000", "secret")
    assert library.requested["address"] == "ws://there:8000/v1/draft"
    assert library.requested["additional_headers"] == {"Authorization": "Bearer secret"}
    assert made.fetch(1) == b"a"
    assert library.sent == [CLIENT_FRAMES.pack(Fetch())]
    library.fault = Library.WebSocketException()
    for use in (lambda: made.send(Fetch()), made.receive):
        with pytest.raises(LostError):
            use()
    made.close()
    assert library.sent == []
    assert library.requested["close_timeout"] <= 1  # the library waits ten seconds where frames were left unread


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Library.InvalidStatus(401), "wants an API key"),
        (Library.InvalidHandshake("odd"), "no server of reader-edge: odd"),
        (ConnectionRefusedError("refused"), "Nothing answers at http://there"),
        (EOFError(), "no answer"),
    ],
)
def test_what_keeps_from_a_server_is_shown(monkeypatch: pytest.MonkeyPatch, fault: Exception, words: str) -> None:
    library = Library(monkeypatch)
    library.fault = fault
    with pytest.raises(RemoteError, match=words):
        connected("http://there", None)
    assert library.requested["additional_headers"] == {}


needs_websockets = pytest.mark.skipif(
    importlib.util.find_spec("websockets") is None, reason="needs websockets, of the extra 'remote'"
)


@needs_websockets
def test_nobody_at_an_address_is_shown() -> None:
    with pytest.raises(LostError, match="Nothing answers at http://127"):
        connected("http://127.0.0.1:9", "key")
    with pytest.raises(RemoteError):
        connected("http://no-such-host.invalid", None)


def shake_hands(place: socket.socket, held: list[socket.socket]) -> None:
    """A server that greets, and answers no ping after that."""
    peer = place.accept()[0]
    held.append(peer)
    requested = b""
    while b"\r\n\r\n" not in requested:
        requested += peer.recv(1 << 16)
    key = next(
        line.split(b": ")[1] for line in requested.split(b"\r\n") if line.lower().startswith(b"sec-websocket-key")
    )
    accepted = base64.b64encode(hashlib.sha1(key + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest())  # noqa: S324
    shown = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: "
    peer.sendall(shown + accepted + b"\r\n\r\n")


@pytest.mark.long
@needs_websockets
def test_a_silent_server_is_lost_in_words(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from websockets.sync import client

    monkeypatch.setattr(client, "connect", partial(client.connect, ping_interval=0.1, ping_timeout=0.1))
    held: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as place:
        before = set(threading.enumerate())
        threading.Thread(target=shake_hands, args=(place, held)).start()
        made = connected(f"http://127.0.0.1:{place.getsockname()[1]}", None)
        with pytest.raises(LostError):
            made.receive()
        for thread in set(threading.enumerate()) - before:  # among them what tells of the ping
            thread.join(10)
        made.close()
    held[0].close()
    assert [record.message for record in caplog.records] == []


LOST = LostError("The connection is lost.")


def test_a_search_is_shown_once_as_it_begins_and_none_that_is_over_at_once() -> None:
    link, looks = object.__new__(FrameConnection), list[int]()

    def at_the_third_look() -> FrameConnection:
        looks.append(len(looks))
        if len(looks) < 3:
            raise LOST
        return link

    with pytest.warns(RuntimeWarning, match=r"^The connection is lost\. It is looked for up to 30 s\.$") as shown:
        assert Reconnect(30).find(at_the_third_look, LOST, 0) is link
    assert len(shown) == 1
    with warnings.catch_warnings(action="error"):
        assert Reconnect(30).find(lambda: link, LOST, 0) is link
