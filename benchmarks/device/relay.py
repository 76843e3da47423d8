"""A relay that adds latency between a client and a server, in user space: what comes is handed on when its time is due.

The kernel need not delay packets: bytes of a connection wait here, in both directions, and none overtakes another.
"""

import asyncio
import contextlib
import socket
import threading
from types import TracebackType

_CHUNK = 1 << 16


class Relay:
    """Listens at a free port of this machine, and hands on to another one. one_way_s: what a byte takes either way."""

    def __init__(self, port: int, one_way_s: float) -> None:
        self._target = port
        self._one_way_s = one_way_s
        self._loop = asyncio.new_event_loop()
        self._place = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def port(self) -> int:
        return int(self._place.getsockname()[1])

    def __enter__(self) -> "Relay":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_until_complete(asyncio.start_server(self._connected, sock=self._place))
        self._loop.run_forever()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
        self._loop.run_until_complete(asyncio.sleep(0))  # which closes what was aborted
        self._loop.close()
        self._place.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(2 * self._one_way_s)  # TCP's own handshake
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
        try:
            await asyncio.gather(self._handed_on(reader, other_writer), self._handed_on(other_reader, writer))
        except asyncio.CancelledError:  # by the relay's end
            for each in (writer, other_writer):
                each.transport.abort()

    async def _handed_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction, until its end."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(due - self._loop.time())
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()

        writing = asyncio.ensure_future(write())
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_CHUNK):
                waiting.put_nowait((self._loop.time() + self._one_way_s, data))
        waiting.put_nowait((self._loop.time() + self._one_way_s, b""))
        with contextlib.suppress(ConnectionError):
            await writing
