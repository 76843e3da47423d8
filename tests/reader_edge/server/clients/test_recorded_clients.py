"""What coding agents and libraries send is taken, and a scripted model's answers reach them in their own events."""

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from tests.reader_edge.server.clients import recorded
from tests.reader_edge.server.clients.edit_script import DONE, edit_script
from tests.reader_edge.server.clients.serve_script import MODEL
from tests.reader_edge.server.conftest import Served
from tests.scripted_target import scripted_engine

CLIENTS = sorted(path.stem for path in recorded.FOLDER.glob("*.json"))
# The names of events in the order that clients hold them to, of a stream without its events' texts.
ORDERS = {
    "/v1/messages": r"message_start (ping )?"
    r"((content_block_start )(content_block_delta )+(content_block_stop ))+message_delta message_stop ",
    "/v1/responses": r"response\.created response\.in_progress (response\.output_item\.added (response\.(?!output_item)"
    r"(?!completed)\S+ )+response\.output_item\.done )+response\.completed ",
}

Json = dict[str, Any]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with scripted_engine(edit_script, tmp_path_factory.mktemp("scripted")) as engine:
        asynchronous = AsyncEngine(engine)
        yield Served(asynchronous, ServerSettings(MODEL))
        asyncio.run(asynchronous.close(cancels=True))


@pytest.mark.parametrize("client", CLIENTS)
def test_what_a_client_sends_is_taken_and_it_reads_edits_and_ends(client: str, scripted: Served) -> None:
    answers = []
    for path, body in recorded.load(client):
        response = scripted.post(path, body)
        assert response.status_code == 200, response.text
        events = _events(response.text)
        if body.get("stream", path == "/api/chat"):
            _check_order(path, events, response.text)
        answers.append("".join(_texts(events)))
    if client == "aider":  # it has the file sent, and edits it itself
        assert "\ngoodbye from the file\nlast line\n" in answers[-1]
        return
    read, edit, end = answers[-3:]
    assert "greeting.txt" in read
    assert "goodbye from the file" not in read
    assert "goodbye from the file" in edit
    assert DONE in end


def _events(text: str) -> list[Json]:
    """The objects of a stream, of events or of lines, or the only one there is."""
    lines = re.findall(r"^data: (\{.*)", text, re.MULTILINE) or text.splitlines()
    return [json.loads(line) for line in lines]


def _texts(value: Any, name: str = "") -> Iterator[str]:
    """What the model says in these objects, piece by piece."""
    if isinstance(value, dict) and name == "arguments":
        yield json.dumps(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _texts(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, name)
    elif isinstance(value, str) and name in ("arguments", "content", "delta", "partial_json", "text"):
        yield value


def _check_order(path: str, events: list[Json], text: str) -> None:
    if path in ORDERS:
        names = "".join(f"{event['type']} " for event in events)
        assert re.fullmatch(ORDERS[path], names), names
        assert re.findall(r"^event: (\S+)", text, re.MULTILINE) == names.split()
    elif path == "/api/chat":
        assert [each["done"] for each in events] == [False] * (len(events) - 1) + [True]
    else:
        assert text.endswith("data: [DONE]\n\n")
        choices = [each["choices"][0] for each in events if each["choices"]]
        assert choices[0]["delta"]["role"] == "assistant"
        reasons = [each["finish_reason"] for each in choices]
        assert reasons[-1] in ("stop", "tool_calls")
        assert set(reasons[:-1]) <= {None}
