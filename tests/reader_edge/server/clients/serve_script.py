"""The server above a target that follows `edit_script`, and what clients send to it.

    python -m tests.reader_edge.server.clients.serve_script PORT [RECORD.jsonl] [TOKENIZER.json]

A line of the record is a request: its method, path, body as JSON, and the status it got.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reader_edge.server.app import make_app
from reader_edge.server.listening import listen, open_socket
from reader_edge.server.settings import ServerSettings
from reader_edge.terminal.log import log_to_stderr
from reader_edge_runtime import AsyncEngine
from tests.reader_edge.server.clients.edit_script import edit_script
from tests.scripted_target import scripted_engine

MODEL = "scripted"


class Recorder:
    """An application that writes down what is sent to another."""

    def __init__(self, app: ASGIApp, file: IO[str]) -> None:
        self._app = app
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        parts, line = list[bytes](), {"method": scope["method"], "path": scope["path"]}

        async def take() -> Message:
            message = await receive()
            parts.append(message.get("body", b""))
            return message

        async def give(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._write(line | {"status": message["status"], "body": _json(b"".join(parts))})
            await send(message)

        await self._app(scope, take, give)

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _json(body: bytes) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        return body.decode(errors="replace")


def main(port: str, record: str = "/dev/null", tokenizer: str | None = None) -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        open(record, "a", encoding="utf-8") as file,
        log_to_stderr("info", "text"),
        open_socket("127.0.0.1", int(port)) as place,
    ):
        engine = AsyncEngine(scripted_engine(edit_script, Path(folder), Path(tokenizer) if tokenizer else None))
        app = make_app(engine, ServerSettings(MODEL))
        listen(Recorder(app, file), place, engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
