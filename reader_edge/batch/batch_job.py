"""A batch on its way: as many requests at once as the engine takes, each answered as the server would answer it."""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Mapping

from reader_edge.batch.batch_input import BatchRequest
from reader_edge.batch.batch_output import BatchOutput
from reader_edge.server.api_error import api_error
from reader_edge.server.endpoint import Endpoint
from reader_edge.server.fields import Fields
from reader_edge_runtime.errors import BatchError, BusyError, ClosedError

_BUSY_S = 0.05  # between two tries of a request for which there is no room yet


class BatchJob:
    """endpoints: by their paths. ids: of all requests, by what the input calls them. max_pending: asked at once.

    on_done: told after each. num_refused: those whose answer is a refusal.
    """

    def __init__(
        self,
        endpoints: Mapping[str, Endpoint],
        ids: Mapping[str, str],
        output: BatchOutput,
        max_pending: int,
        on_done: Callable[[], object],
    ) -> None:
        self._endpoints = endpoints
        self._output = output
        self._left = {name: made_of for name, made_of in ids.items() if name not in output.done}
        self._max_pending = max_pending
        self._on_done = on_done
        self.num_refused = 0

    async def run(self, requests: Iterable[BatchRequest]) -> None:
        """Answer all requests that have no line yet.

        Raises BatchError where a line cannot be written, and where some of the requests are not there any more.
        """
        pending: set[asyncio.Task[None]] = set()
        try:
            for request in requests:
                if not self._takes(request):
                    continue
                if len(pending) >= self._max_pending:
                    pending = await _some_done(pending)
                pending.add(asyncio.ensure_future(self._answer(request)))
            while pending:
                pending = await _some_done(pending)
            if self._left:
                raise BatchError("The input has changed amid the work: run the same command again.")
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
        status, body = await self._ask(request)
        self.num_refused += status != 200
        response = {"status_code": status, "request_id": f"req_{secrets.token_hex(16)}", "body": body}
        line = {"id": request.id, "custom_id": request.custom_id, "response": response, "error": None}
        self._output.append(request.custom_id, line)
        self._on_done()

    async def _ask(self, request: BatchRequest) -> tuple[int, Mapping[str, object]]:
        while True:
            try:
                return 200, await self._endpoints[request.url].answer_whole(Fields(request.body))
            except BusyError:
                await asyncio.sleep(_BUSY_S)
            except ClosedError:
                raise BatchError("The engine was closed: the same command goes on.") from None
            except Exception as error:
                refusal = api_error(error)
                return refusal.status, refusal.fields


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
