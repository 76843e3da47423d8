"""What answers a batch's requests: an engine, through the server's endpoints."""

import asyncio
import math
from collections.abc import Mapping
from types import TracebackType

from reader_edge.server.api_error import api_error
from reader_edge.server.endpoints import make_endpoints
from reader_edge.server.metrics import Metrics
from reader_edge.server.settings import MAX_CHOICES, ServerSettings
from reader_edge_runtime import AsyncEngine, Engine, ServingConfig
from reader_edge_runtime.errors import BatchError, BusyError, ClosedError

_PENDING_A_SLOT = 2  # requests at once: while one is answered another is read
_BUSY_S = 0.05  # between two tries of a request for which there is no room yet


class LocalBackend:
    """Answers as the server would. name: what requests call the model. max_tokens: as of `ServerSettings`.

    max_pending: requests that are worth asking at once.
    """

    def __init__(self, engine: Engine, name: str, max_tokens: int) -> None:
        self.max_pending = _PENDING_A_SLOT * engine.decoder.config.max_batch
        settings = ServerSettings(name, max_tokens=max_tokens, max_answer_s=math.inf)
        self._served = AsyncEngine(engine, ServingConfig(max_waiting=self.max_pending * MAX_CHOICES))
        self._endpoints = make_endpoints(self._served, settings, Metrics(self._served))

    async def ask(self, url: str, body: dict[str, object]) -> tuple[int, Mapping[str, object]]:
        """HTTP status and body of the answer to a body for one of the endpoints. Raises BatchError once closed."""
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
