"""A batch on its way: as many requests at once as the engine takes, each answered as the server would answer it."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from reader_edge.batch.batch_input import BatchRequest
from reader_edge.batch.batch_output import BatchOutput
from reader_edge_runtime.errors import BatchError


class BatchBackend(AbstractAsyncContextManager[object], Protocol):
    """What answers requests until it is left. max_pending: requests that are worth asking at once."""

    max_pending: int

    async def ask(self, url: str, body: dict[str, object]) -> tuple[int, Mapping[str, object]]:
        """HTTP status and body of the answer to a body for one of the endpoints. Raises BatchError."""


class BatchJob:
    """ids: of all requests, by what the input calls them. on_done: gets after each."""

    def __init__(
        self,
        backend: BatchBackend,
        ids: Mapping[str, str],
        output: BatchOutput,
        on_done: Callable[[], object],
    ) -> None:
        self._answering = backend
        self._output = output
        self._left = {name: made_of for name, made_of in ids.items() if name not in output.done}
        self._on_done = on_done

    async def run(self, requests: Iterable[BatchRequest]) -> None:
        """Answer all requests that have no line yet.

        Raises BatchError where a line cannot be written, and where some of the requests are not there any more.
        """
        pending: set[asyncio.Task[None]] = set()
        try:
            for request in requests:
                if not self._takes(request):
                    continue
                if len(pending) >= self._answering.max_pending:
                    pending = await _some_done(pending)
                pending.add(asyncio.ensure_future(self._answer(request)))
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

    async def _answer(self, request: BatchRequest) -> None:
        status, body = await self._answering.ask(request.url, request.body)
        response = {"status_code": status, "request_id": f"req_{secrets.token_hex(16)}", "body": body}
        line = {"id": request.id, "custom_id": request.custom_id, "response": response, "error": None}
        self._output.append(request.custom_id, status, line)
        self._on_done()


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
