"""Images that a user drops into a chat by their paths."""

import builtins
from pathlib import Path

import pytest

from reader_edge.chat.chat import Chat
from reader_edge.chat.dropped_images import with_dropped_images
from reader_edge_runtime import GenerationConfig
from tests.seeing_engine import picture, png, seeing_engine


@pytest.fixture
def cat(tmp_path: Path) -> Path:
    path = tmp_path / "my cat's.PNG"
    path.write_bytes(png(picture(1)))
    return path


def test_paths_are_seen_as_terminals_write_them(cat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cat.parent)
    image = {"type": "image", "image": cat}
    escaped = str(cat).replace(" ", "\\ ").replace("'", "\\'")
    for line in (f'"{cat}" What is it?', f"{escaped} What is it?", f"What is it? {escaped} "):
        assert with_dropped_images(line) == [image, {"type": "text", "text": "What is it?"}]
    named = [{"type": "image", "image": Path(cat.name)}, {"type": "text", "text": "and"}]
    assert with_dropped_images(f'"{cat.name}" and') == named
    assert with_dropped_images(f'"{cat}" "{cat}"') == [image, image, {"type": "text", "text": ""}]


@pytest.mark.parametrize("line", ["What's in a.png?", "/none/a.png", "It's 'so' \"", "a.png", "\\", "notes.txt", ""])
def test_other_words_stay_as_they_are(line: str) -> None:
    assert with_dropped_images(line) == line


def test_a_chat_shows_images_to_the_model_and_remembers_them(
    cat: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := cat.parent / "package").mkdir()
    engine, tower = seeing_engine(folder)
    lines = iter([f'"{cat}" What is it?', "And now?", f"/save {cat.parent / 'kept'}", "/bye"])
    monkeypatch.setattr(builtins, "input", lambda mark="": next(lines))
    chat = Chat(engine, GenerationConfig(max_tokens=4), None, is_raw=False, shows_stats=False)
    chat.run()
    shown = capsys.readouterr()
    expected = engine.generate("What is it?", GenerationConfig(max_tokens=4), images=[cat])
    assert chat.messages[1]["content"] == expected.text
    assert len(chat.messages) == 4
    assert tower.num_passes == 1
    assert f"With {cat}." in shown.err
    assert "Paths of images in it are seen." in shown.err
    assert "A session keeps texts alone, and this conversation has images: /reset first." in shown.err
    assert not (cat.parent / "kept").exists()
