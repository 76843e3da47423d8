"""Images that devices ask a server about: they come in parts, within bounds, and nothing is drafted beside them."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.remote import frames
from reader_edge.remote.frames import Ask, Cancel, SettingsPart
from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge.server.app import make_app
from reader_edge_runtime import AsyncEngine, Engine, GenerationConfig
from reader_edge_runtime.errors import BusyError, PromptError, RemoteError
from tests.reader_edge.server.draft.conftest import ID, SETTINGS, DraftServer, answer_of, ask, greeted, refused, serving
from tests.seeing_engine import picture, png, seeing_engine

GREEDY = GenerationConfig(max_tokens=8)
LARGE = png(picture(1)) + bytes(2 << 20)  # as cameras write them, with more behind the pixels


@pytest.fixture
def seeing(tmp_path: Path) -> Engine:
    return seeing_engine(tmp_path)[0]


@pytest.fixture
def server(seeing: Engine) -> Iterator[DraftServer]:
    with serving(make_app(AsyncEngine(seeing), SETTINGS)) as served:
        yield served


def test_images_of_a_device_are_the_servers_own_prompt(
    seeing: Engine, server: DraftServer, tmp_path: Path, runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "large.png").write_bytes(LARGE)
    wanted = seeing.generate("What is it?", GREEDY, images=[LARGE]).token_ids
    with RemoteEngine("http://localhost:8000", connect=server.connect, drafts="verify") as remote:
        for image in (path, str(path), LARGE):
            assert remote.generate("What is it?", GREEDY, images=[image]).token_ids == wanted
        parts = [{"type": "image", "image": path}, {"type": "text", "text": "What is it?"}]
        assert remote.generate([{"role": "user", "content": parts}], GREEDY).token_ids == wanted
        with pytest.raises(PromptError, match="is a file, not <PIL"):
            remote.generate("What is it?", GREEDY, images=[picture(1)])
        with pytest.raises(RemoteError, match="The image is no image of PNG"):
            remote.generate("What is it?", GREEDY, images=[b"cat"])
        assert remote.generate("What is it?", GREEDY, images=[path]).token_ids == wanted
    monkeypatch.setattr("reader_edge.remote.remote_engine.connected", server.connect)
    options = ["--server", "http://localhost:8000", "--image", str(path), "-p", "What is it?"]
    result = runner.invoke(main, ["run", *options, "-n", "8", "--greedy", "--json"])
    assert tuple(json.loads(result.stdout)["token_ids"]) == wanted


def test_parts_beyond_the_bounds_are_refused_and_the_link_stays(seeing: Engine, server: DraftServer) -> None:
    link, part = greeted(server), SettingsPart(bytes(1_000_000))
    for _ in range(34):
        link.send(part)
    link.send(ask(seeing))
    assert "more than the 33554432 bytes that it may have: give smaller images" in refused(link)
    drafts = server.app.state.pool.first.loaded.drafts
    drafts._settings = replace(drafts._settings, max_bodies_bytes=30 << 20)
    for _ in range(20):
        link.send(part)
    while drafts._num_part_bytes < 20_000_000:
        time.sleep(0.01)
    other = greeted(server)
    for _ in range(20):
        other.send(part)
    other.send(ask(seeing))
    with pytest.raises(BusyError, match="Others' requests leave no room"):
        answer_of(other)
    link.send(ask(seeing))
    assert "not valid JSON" in refused(link)
    other.send(part)
    other.send(Ask(ID, frames.HINTS, b"}", []))
    assert "not valid JSON" in refused(other)
    other.send(part)
    other.send(Cancel())
    assert "A frame Cancel has no place behind parts" in refused(other)
