"""Images that a user drops into a chat by their paths."""

import builtins
import os
from pathlib import Path

import pytest

from reader_edge.chat.chat import Chat
from reader_edge.chat.dropped_images import with_dropped_images
from reader_edge_runtime import Engine, GenerationConfig
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
    assert with_dropped_images(f'What\'s in "{cat}"') == [image, {"type": "text", "text": "What's in"}]


def test_the_user_s_own_folder_is_found(cat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(cat.parent))
    assert with_dropped_images(r"~/my\ cat\'s.PNG") == [{"type": "image", "image": cat}, {"type": "text", "text": ""}]


@pytest.mark.parametrize("line", ["What's in a.png?", "/none/a.png", "It's 'so' \"", "a.png", "\\", "notes.txt", ""])
def test_other_words_stay_as_they_are(line: str) -> None:
    assert with_dropped_images(line) == line


@pytest.mark.parametrize("line", [f"{'a' * 300}.png", "a\0.png", "~nobody-of-this-name/a.png", "/dev/null.png"])
def test_words_that_can_be_no_path_are_words(line: str) -> None:
    assert with_dropped_images(line) == line


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "device.png").symlink_to(os.devnull)
    for path in tmp_path.iterdir():
        assert with_dropped_images(str(path)) == str(path)


def test_an_image_is_read_once(cat: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (folder := cat.parent / "package").mkdir()
    engine, _ = seeing_engine(folder)

    def lines(mark: str = "") -> str:
        if len(chat.messages) == 2:
            cat.unlink(missing_ok=True)
        return next(typed)

    typed = iter([f'"{cat}" What is it?', "And now?", "/bye"])
    monkeypatch.setattr(builtins, "input", lines)
    chat = Chat(engine, GenerationConfig(max_tokens=4), None, is_raw=False, shows_stats=False)
    chat.run()
    assert len(chat.messages) == 4
    assert "Error" not in capsys.readouterr().err


def test_a_chat_shows_images_to_the_model_and_remembers_them(
    cat: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder := cat.parent / "package").mkdir()
    engine, tower = seeing_engine(folder)
    lines = iter([f'"{cat}" What is it?', "And dog.png?", "And dog.png now?", f"/save {cat.parent / 'kept'}", "/bye"])
    monkeypatch.setattr(builtins, "input", lambda mark="": next(lines))
    chat = Chat(engine, GenerationConfig(max_tokens=4), None, is_raw=False, shows_stats=False)
    chat.run()
    shown = capsys.readouterr()
    expected = engine.generate("What is it?", GenerationConfig(max_tokens=4), images=[cat])
    assert chat.messages[1]["content"] == expected.text
    assert len(chat.messages) == 6
    assert shown.err.count("No image file is at dog.png: the model gets this as text.") == 1
    assert tower.num_passes == 1
    assert f"With {cat}." in shown.err
    assert "It sees images whose paths are in it." in shown.err
    kept = engine.load_session(cat.parent / "kept")
    assert [kept[0], *kept[2:]] == [chat.messages[0], *chat.messages[2:]]
    assert kept[0]["content"][0] == {"type": "image", "image": cat.read_bytes()}


def test_a_model_of_texts_gets_a_path_as_text_and_says_so(
    cat: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = f'"{cat}" What is it?'
    lines = iter([line, "/bye"])
    monkeypatch.setattr(builtins, "input", lambda mark="": next(lines))
    chat = Chat(engine, GenerationConfig(max_tokens=4), None, is_raw=False, shows_stats=False)
    chat.run()
    assert chat.messages[0]["content"] == line
    assert f"This model reads texts alone: it gets {cat} as text." in capsys.readouterr().err
