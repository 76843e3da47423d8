"""A batch: its input checked, its output resumed, what is left answered as the server would answer it."""

import asyncio
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Protocol

from reader_edge.batch.batch_files import BatchOutput, BatchRequest, count_requests, read_requests
from reader_edge.server.api_error import api_error
from reader_edge.server.endpoints import make_endpoints
from reader_edge.server.metrics import Metrics
from reader_edge.server.settings import MAX_CHOICES, ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, ServingConfig
from reader_edge_runtime.atomic_file import mode_of_all
from reader_edge_runtime.errors import BatchError, BusyError, ClosedError, ConfigError

_PENDING_A_SLOT = 2  # requests at once: while one is answered another is read
_BUSY_S = 0.05  # between two tries of a request for which there is no room yet


class BatchBackend(AbstractAsyncContextManager[object], Protocol):
    """What answers requests until it is left. max_pending: requests that are worth asking at once."""

    max_pending: int

    async def ask(self, url: str, body: dict[str, object]) -> tuple[int, Mapping[str, object]]:
        """HTTP status and body of the answer to a body for one of the endpoints. Raises BatchError."""


class LocalBackend:
    """An engine, through the server's endpoints. name: what requests call the model.

    max_tokens: see `ServerSettings`.
    """

    def __init__(self, engine: Engine, name: str, max_tokens: int) -> None:
        self.max_pending = _PENDING_A_SLOT * engine.decoder.config.max_batch
        adapters = engine.adapters
        settings = ServerSettings(
            name, max_tokens=max_tokens, max_answer_s=math.inf, refused_fields="unknown", adapters=adapters
        )
        self._served = AsyncEngine(engine, ServingConfig(max_waiting=self.max_pending * MAX_CHOICES))
        self._endpoints = make_endpoints(self._served, settings, Metrics(self._served))

    async def ask(self, url: str, body: dict[str, object]) -> tuple[int, Mapping[str, object]]:
        """See `BatchBackend`. Raises BatchError once closed."""
        while True:
            try:
                return 200, await self._endpoints[url].answer_whole(body)
            except BusyError:
                await asyncio.sleep(_BUSY_S)
            except ClosedError:
                raise BatchError("The engine was closed: the same command resumes.") from None
            except Exception as error:
                refusal = api_error(error)
                return refusal.status, refusal.fields

    async def __aenter__(self) -> "LocalBackend":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._served.close(cancels=error is not None)


class Batch:
    """num_requests: of the input. num_done: those that have their line. num_refused: whose answer is a refusal."""

    def __init__(self, input_file: Path, ids: Mapping[str, str], output: BatchOutput) -> None:
        """ids: of the input's requests, by what it calls them."""
        self._input_file = input_file
        self._output = output
        self._left = {name: made_of for name, made_of in ids.items() if name not in output.done}
        self.num_requests = len(ids)

    @property
    def num_done(self) -> int:
        return len(self._output.done)

    @property
    def num_refused(self) -> int:
        return self._output.num_refused

    async def answer(self, backend: BatchBackend, on_progress: Callable[[int, int], object]) -> None:
        """Answer what is left, as many requests at once as the backend takes.

        on_progress: gets requests that are done, and all. Raises BatchError where a line cannot be written, and where
        some of the requests are not there any more.
        """
        on_progress(self.num_done, self.num_requests)
        pending: set[asyncio.Task[None]] = set()
        async with backend:
            try:
                for request in filter(self._takes, read_requests(self._input_file)):
                    if len(pending) >= backend.max_pending:
                        pending = await _some_done(pending)
                    pending.add(asyncio.ensure_future(self._answer(backend, request, on_progress)))
                while pending:
                    pending = await _some_done(pending)
                if self._left:
                    raise BatchError("The input changed meanwhile: run the same command again.")
            finally:
                for task in pending:
                    task.cancel()
                await asyncio.gather(*pending, return_exceptions=True)

    def _takes(self, request: BatchRequest) -> bool:
        """Whether to ask it: not where it has its line, and as it was when the input was checked."""
        if self._left.get(request.custom_id) != request.id:
            return False
        del self._left[request.custom_id]
        return True

    async def _answer(
        self, backend: BatchBackend, request: BatchRequest, on_progress: Callable[[int, int], object]
    ) -> None:
        status, body = await backend.ask(request.url, request.body)
        response = {"status_code": status, "request_id": f"req_{secrets.token_hex(16)}", "body": body}
        line = {"id": request.id, "custom_id": request.custom_id, "response": response, "error": None}
        self._output.append(request.custom_id, status, line)
        on_progress(self.num_done, self.num_requests)


@contextmanager
def open_batch(input_file: Path, output_file: Path) -> Iterator[Batch]:
    """A batch of sound files, of this process alone. Raises ConfigError, BatchError, and OSError for the input."""
    if not input_file.is_file():
        raise BatchError(f"'{input_file}' is no file, which is read twice: write the requests to one.")
    if output_file.exists() and output_file.samefile(input_file):
        raise ConfigError(f"'{output_file}' is the input too: name another file for the output.")
    ids = count_requests(input_file)
    with BatchOutput(output_file, ids, mode_of_all([input_file])) as output:
        yield Batch(input_file, ids, output)


async def _some_done(pending: set[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that are left, once some are done. Raises what one of these did."""
    done, left = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        try:
            task.result()
        except BaseException:
            for other in left:
                other.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            raise
    return left
