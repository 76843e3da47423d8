"""The files of a batch: a request a line; and a line for each answer, written at once, so that a kill loses none.

A line of the output that a kill cut short is the last one, and has no end; it is taken away, and its request answered
again.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, BinaryIO

from filelock import FileLock, Timeout
from msgspec import Meta, Struct, structs

from reader_edge.server.endpoints import OPENAI_PATHS
from reader_edge.server.json_body import load_json
from reader_edge_runtime.atomic_file import write_failure
from reader_edge_runtime.errors import BatchError
from reader_edge_runtime.untrusted.untrusted_json import converted, one_of
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK

_MAX_REQUEST_BYTES = 4 << 20  # as many as a body may have that comes over HTTP
_MAX_ID = 512
_WANTED = (
    f"a line is an object with a custom_id of 1 to {_MAX_ID} characters, the method POST, an object as its body, and a "
    f"url of {', '.join(OPENAI_PATHS)}"
)
_BEGINNING = b'{"id": "batch_req_'
_MAX_LINE_BYTES = 1 << 28


class RequestLine(Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the input."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=_MAX_ID)]
    method: Annotated[str, one_of("POST")]
    url: Annotated[str, one_of(*OPENAI_PATHS)]
    body: dict[str, Any]


class BatchRequest(RequestLine, frozen=True, kw_only=True):
    """id: made of all that it is: a changed one is another."""

    id: str


class _Response(Struct, frozen=True):
    status_code: int


class AnswerLine(Struct, frozen=True):
    """What is read of a line of the output."""

    id: str
    custom_id: str
    response: _Response


def read_requests(path: Path) -> Iterator[BatchRequest]:
    """The requests in turn. Raises BatchError, which names the line, and OSError."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_MAX_REQUEST_BYTES + 1):
            number += 1
            if len(line) > _MAX_REQUEST_BYTES:
                raise BatchError(f"Line {number} of '{path}' has more than the {_MAX_REQUEST_BYTES} bytes it may have.")
            line = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if line.strip():
                yield _request(line, f"Line {number} of '{path}'")


def count_requests(path: Path) -> dict[str, str]:
    """The ids of all requests, by what the input calls them. Raises what `read_requests` does, also for one twice."""
    ids: dict[str, str] = {}
    for request in read_requests(path):
        if request.custom_id in ids:
            raise BatchError(f"'{path}' has the custom_id {request.custom_id!r:.80} twice: give each line its own.")
        ids[request.custom_id] = request.id
    if not ids:
        raise BatchError(f"'{path}' holds no requests: write one a line.")
    return ids


def _request(line: bytes, place: str) -> BatchRequest:
    try:
        fields = load_json(line)
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    except (ValueError, RecursionError):
        raise BatchError(f"{place} is not JSON: write one object a line.") from None
    given = converted(fields, RequestLine, place, BatchError, _WANTED)
    return BatchRequest(id=f"batch_req_{digest[:32]}", **structs.asdict(given))


class BatchOutput:
    """done: what the input calls the requests that have their line. num_refused: those whose answer is a refusal.

    Opening it makes the file, or resumes it: one process at a time. Raises BatchError for a file of another
    input, and for what is no output; then nothing in it has changed.
    """

    def __init__(self, path: Path, ids: Mapping[str, str], mode: int = 0o666) -> None:
        """ids: of the input's requests, by what the input calls them. mode: of a new file, less the umask."""
        self._path = path
        self._lock = FileLock(f"{os.path.realpath(path)}.lock")  # one file, by whatever links it is named
        self.done: set[str] = set()
        self.num_refused = 0
        try:
            if path.exists() and not path.is_file():
                raise BatchError(f"'{path}' is not an output of this input: name another file.")
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, mode))  # the lock would make folders
            self._lock.acquire(timeout=0)
            self._file = self._opened()  # who had the lock may have taken it away
        except Timeout:
            raise BatchError(f"Another process writes '{path}': wait for its end.") from None
        except OSError as error:  # no file can be made, for the lock neither
            raise self._failure(error) from error
        try:
            self._go_on(ids)
        except OSError as error:
            self.close()
            raise self._failure(error) from error
        except BaseException:
            self.close()
            raise

    def append(self, custom_id: str, status: int, line: Mapping[str, object]) -> None:
        """Write the line of a request, whose answer has this status.

        Raises BatchError; what was written of it is then taken away if that can be.
        """
        data = json.dumps(line).encode() + b"\n"
        begin = self._file.seek(0, os.SEEK_END)
        try:
            while data:  # as on a disk that is nearly full
                data = data[self._file.write(data) :]
        except OSError as error:
            with suppress(OSError):
                self._file.truncate(begin)
            raise self._failure(error) from error
        self._count(custom_id, status)

    def close(self) -> None:
        """What was written survives a loss of power from now on; a file without a line goes."""
        with suppress(OSError):
            os.fsync(self._file.fileno())
            if not os.fstat(self._file.fileno()).st_size:
                self._path.unlink()
        self._file.close()
        self._lock.release()

    def __enter__(self) -> "BatchOutput":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _opened(self) -> BinaryIO:
        try:
            return self._path.open("a+b", buffering=0)
        except OSError:
            self._lock.release()
            raise

    def _go_on(self, ids: Mapping[str, str]) -> None:
        """Take in what is done, and cut a line without an end."""
        end = 0
        with self._path.open("rb") as file:
            while (line := file.readline(_MAX_LINE_BYTES)).endswith(b"\n"):
                self._take(line, ids)
                end += len(line)
        if not _BEGINNING.startswith(line[: len(_BEGINNING)]):
            raise BatchError(f"'{self._path}' is no output of a batch: name another file.")
        if line and _json(line) is not None:  # cut in the very end
            self._take(line, ids)
            self._file.write(b"\n")
        elif line:
            self._file.truncate(end)

    def _take(self, line: bytes, ids: Mapping[str, str]) -> None:
        answer = converted(_json(line), AnswerLine, f"'{self._path}'", BatchError, "name another file")
        if ids.get(answer.custom_id) != answer.id:
            sentence = f"'{self._path}' answers a request {answer.custom_id!r:.80} that the input has not"
            raise BatchError(f"{sentence}, or not any more: name another file.")
        if answer.custom_id in self.done:
            raise BatchError(f"'{self._path}' answers {answer.custom_id!r:.80} twice: name another file.")
        self._count(answer.custom_id, answer.response.status_code)

    def _count(self, custom_id: str, status: int) -> None:
        self.done.add(custom_id)
        self.num_refused += status != 200

    def _failure(self, error: OSError) -> BatchError:
        return BatchError(write_failure(self._path, error, "the same command resumes"))


def _json(line: bytes) -> object:
    """None where a line is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
