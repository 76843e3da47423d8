"""The input of a batch: a JSON object a line, each a request."""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from reader_edge.server.http.json_body import load_json
from reader_edge_runtime.errors import BatchError
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK

_MAX_LINE_BYTES = 4 << 20  # as many as a body may have that comes over HTTP
_MAX_ID = 512
_FIELDS = {"custom_id", "method", "url", "body"}


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """custom_id: what the input calls it. url: of an endpoint. id: made of all that it is: a changed one is another."""

    id: str
    custom_id: str
    url: str
    body: dict[str, object]


def read_requests(path: Path, urls: Collection[str]) -> Iterator[BatchRequest]:
    """The requests in turn. urls: those that can be requested. Raises BatchError, which names the line, and OSError."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > _MAX_LINE_BYTES:
                raise BatchError(f"Line {number} of '{path}' has more than the {_MAX_LINE_BYTES} bytes it may have.")
            line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if line.strip():
                yield _request(line, urls, f"Line {number} of '{path}'")


def count_requests(path: Path, urls: Collection[str]) -> dict[str, str]:
    """The ids of all requests, by what the input calls them. Raises what `read_requests` does, also for one twice."""
    ids: dict[str, str] = {}
    for request in read_requests(path, urls):
        if request.custom_id in ids:
            raise BatchError(f"'{path}' has the custom_id {request.custom_id!r:.80} twice: give each line its own.")
        ids[request.custom_id] = request.id
    if not ids:
        raise BatchError(f"'{path}' holds no requests: write one a line.")
    return ids


def _request(line: bytes, urls: Collection[str], place: str) -> BatchRequest:
    try:
        fields = load_json(line)
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    except (ValueError, RecursionError):
        raise BatchError(f"{place} is not JSON: write one object a line.") from None
    if not isinstance(fields, dict) or fields.keys() != _FIELDS:
        raise BatchError(f"{place} must be an object with {', '.join(sorted(_FIELDS))}, and nothing else.")
    custom_id, method, url, body = (fields[name] for name in ("custom_id", "method", "url", "body"))
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_ID:
        raise BatchError(f"{place} must have a custom_id of 1 to {_MAX_ID} characters.")
    if method != "POST":
        raise BatchError(f"{place} has the method {method!r:.80}, but must have 'POST'.")
    if not isinstance(url, str) or url not in urls:
        raise BatchError(f"{place} has the url {url!r:.80}, which is not answered here: name one of {', '.join(urls)}.")
    if not isinstance(body, dict):
        raise BatchError(f"{place} must have an object as its body.")
    return BatchRequest(f"batch_req_{digest[:32]}", custom_id, url, body)
