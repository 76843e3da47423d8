"""Authentication: an API key, or without keys a Host header that names this machine."""

import hashlib
import hmac
import ipaddress
import re
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from reader_edge.server.api_error import ApiError, interface_of
from reader_edge_runtime.errors import UserFileError
from reader_edge_runtime.untrusted.plain_file import check_secret
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK, read_bounded

MAX_HEADER_BYTES = 16 << 10
_OPEN_PATHS = ("/health", "/")  # the page asks for a key itself
_MIN_KEY_BYTES, _MAX_KEY_BYTES, _MAX_FILE_BYTES = 16, 1024, 1 << 20
_KEY = re.compile(rb"[!-~]{%d,%d}" % (_MIN_KEY_BYTES, _MAX_KEY_BYTES))


class Guard:
    """An ASGI application before another one, which finds whose key was sent in its scope, as `caller`; "" for none."""

    def __init__(self, app: ASGIApp, api_keys: tuple[bytes, ...]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(key).digest() for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" or (scope["type"] == "http" and scope["path"] not in _OPEN_PATHS):
            try:
                scope["caller"] = self._caller(Headers(scope=scope), is_socket=scope["type"] == "websocket")
            except ApiError as refusal:
                await refusal.response(interface_of(HTTPConnection(scope)))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _caller(self, headers: Headers, is_socket: bool) -> str:
        """Raises ApiError for a client without a valid key or host."""
        if is_socket and "origin" in headers:  # of another site's page maybe, which may ask any address for sockets
            raise ApiError(403, "Pages get no drafting sockets here: connect with reader-edge.")
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEADER_BYTES:
            raise ApiError(431, f"The headers have more than the {MAX_HEADER_BYTES} bytes that they may: send fewer.")
        if not self._digests:
            # A page of another site may give its own name this machine's address, but not change its name.
            host = headers.get("host", "")
            is_ours = is_loopback(host if host.endswith("]") else host.rpartition(":")[0] or host)
            remedy = "address it as localhost, or start it with --api-key-file"
            if not is_ours:
                raise ApiError(403, f"This server answers to no host {host!r:.100}: {remedy}.")
            return ""
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        sent = (bearer if scheme.lower() == "bearer" else "", headers.get("x-api-key", ""))  # OpenAI's way, Anthropic's
        digests = [hashlib.sha256(key.strip().encode()).digest() for key in sent]
        # All are compared: time tells nothing.
        matches = [digest for digest in digests for each in self._digests if hmac.compare_digest(digest, each)]
        if matches:
            return matches[0].hex()
        remedy = "send 'Authorization: Bearer KEY' or 'X-Api-Key: KEY'"
        raise ApiError(401, f"The API key is missing or wrong: {remedy}.", code="invalid_api_key")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a host of this name."""
    name = host.removeprefix("[").removesuffix("]").lower()
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def read_api_keys(path: Path) -> tuple[bytes, ...]:
    """The keys of a file, one a line. Raises UserFileError for none, and for one that could be guessed or read."""
    try:
        lines = read_bounded(path, _MAX_FILE_BYTES).removeprefix(BYTE_ORDER_MARK).splitlines()
        keys = tuple(line.strip() for line in lines if line.strip())
    except OSError as error:
        raise UserFileError(f"The keys cannot be read from '{path}': {error.strerror}.") from error
    if not keys or not all(_KEY.fullmatch(key) for key in keys):
        raise UserFileError(
            f"'{path}' must have one key a line, each of {_MIN_KEY_BYTES} to {_MAX_KEY_BYTES} letters, digits and "
            "signs of ASCII without spaces: `openssl rand -hex 32` makes one."
        )
    check_secret(path, UserFileError, "replace the keys in it that they know")
    return keys
