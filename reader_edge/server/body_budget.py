"""How much all requests' bodies may take together, however many clients send some at once."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reader_edge.server.api_error import ApiError


class BodyBudget:
    """An ASGI application before another one. A body counts from its first part until its request is answered."""

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._num_left = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        num_held = 0

        async def receive_counted() -> Message:
            """Raises ApiError where a part finds no room."""
            nonlocal num_held
            message = await receive()
            num_bytes = len(message.get("body", b""))
            if num_bytes > self._num_left:
                raise ApiError(429, "Others' requests leave no room for this one: try again later.", code="queue_full")
            self._num_left -= num_bytes
            num_held += num_bytes
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._num_left += num_held
