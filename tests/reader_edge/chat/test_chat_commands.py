"""What a chat does by its commands: each is one line, answered on standard error, and never sent to the model."""

import builtins
from collections.abc import Callable
from pathlib import Path

import pytest

from reader_edge.chat.chat import Chat
from reader_edge.chat.sampling_options import SamplingOptions
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.call_options import Callback
from tests.conftest import make_as_new
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

CONFIG = GenerationConfig(max_tokens=8, ignores_eos=True)
OWN = {"temperature": 0.9, "top_k": 40, "top_p": 0.95}
Type = Callable[..., None]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Type:
    """Have a user type lines, then Ctrl-D."""

    def type_lines(*lines: str) -> None:
        waiting = iter(lines)

        def read(mark: str = "") -> str:
            line = next(waiting, None)
            if line is None:
                raise EOFError
            return line

        monkeypatch.setattr(builtins, "input", read)

    return type_lines


@pytest.fixture(scope="module")
def chat_engine(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    package = PackageCopy(demo_folder, tmp_path_factory.mktemp("chat") / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    package.change_manifest(sampling=OWN)
    return Engine.load(package.folder, EngineConfig(is_calibrated=False, is_probed=False))


@pytest.fixture
def chat(chat_engine: Engine) -> Chat:
    make_as_new(chat_engine)
    return Chat(chat_engine, CONFIG, None, False, False)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, GenerationConfig]]:
    """Every prompt that an engine answers, and how."""
    seen: list[tuple[object, GenerationConfig]] = []
    stream = Engine.stream

    def watch(self: Engine, prompt: object, config: GenerationConfig, on_progress: Callback) -> object:
        seen.append((prompt, config))
        return stream(self, prompt, config, on_progress)  # type: ignore[arg-type]

    monkeypatch.setattr(Engine, "stream", watch)
    return seen


Sent = list[tuple[object, GenerationConfig]]


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_text_of_several_lines_is_one_message(chat: Chat, typed: Type, sent: Sent) -> None:
    typed('"""def f():', "    return 1", "", '/help   """', '"""one line"""', '"""', "/bye", '"""')
    chat.run()
    texts = [prompt[-1]["content"] for prompt, _ in sent]  # type: ignore[index]
    assert texts == ["def f():\n    return 1\n\n/help", "one line", "/bye"]


def test_a_reset_keeps_the_system_message(
    chat: Chat, typed: Type, sent: Sent, capsys: pytest.CaptureFixture[str]
) -> None:
    typed("/system", "one", "/system Be brief.", "two", "/system Be long.", "/system", "/reset", "three")
    chat.run()
    system = {"role": "system", "content": "Be brief."}
    assert sent[0][0] == [_user("one")]
    second: list[dict[str, str]] = sent[1][0]  # type: ignore[assignment]
    assert [second[0], second[1], second[3]] == [system, _user("one"), _user("two")]
    assert sent[2][0] == [system | {"content": "Be long."}, _user("three")]
    shown = capsys.readouterr().err
    assert "There is no system message." in shown
    assert "Be long." in shown


def test_settings_hold_until_they_are_taken_back(chat: Chat, typed: Type, sent: Sent) -> None:
    typed(
        "/set temperature 0.2", "/set seed 4", "/set max-tokens 3", "one", "/set temperature", "two", "/set greedy", "a"
    )
    chat.run()
    first, second, third = (config for _, config in sent)
    assert first.sampling == SamplingConfig(temperature=0.2, top_k=40, top_p=0.95, seed=4)
    assert second.sampling == SamplingConfig(temperature=0.9, top_k=40, top_p=0.95, seed=4)
    assert third.sampling == SamplingConfig()
    assert {config.max_tokens for config in (first, second, third)} == {3}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/set temperature -1", "is not in the range 0<=x<=100."),
        ("/set top-k many", "Error: 'many' is not a valid integer."),
        ("/set temperature 0.7 0.8", "Error: '0.7 0.8' is not a valid number."),
        ("/set greedy 1", "Error: Nothing goes behind /set greedy: leave 1 out."),
        ("/bye now", "Error: Nothing goes behind /bye."),
        ("/set max-tokens 0", "Error: 0 is not in the range"),
        ("/set colour red", "Error: There is no colour to set: name one of temperature, top-k"),
        ("/save", "Error: /save needs the name of a file."),
        ("/load nowhere.session", "Error: There is no file 'nowhere.session': /save writes one."),
        ("/save /no/such/folder/a", "Error: "),
        ("/model", "max context"),
        ("/model nowhere", "Error: The model of a --session stays"),
        ("/stats now", "Error: Nothing goes behind /stats."),
    ],
)
def test_a_mistake_is_one_sentence_and_the_chat_goes_on(
    chat: Chat, typed: Type, sent: Sent, capsys: pytest.CaptureFixture[str], line: str, sentence: str
) -> None:
    typed(line, "one")
    chat.run()
    assert sentence in capsys.readouterr().err
    assert [prompt for prompt, _ in sent] == [[_user("one")]]


def test_settings_are_shown(chat: Chat, typed: Type, capsys: pytest.CaptureFixture[str]) -> None:
    typed("/set min-p 0.1", "/set")
    chat.run()
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "given here min-p 0.1" in shown
    assert "sampling temperature 0.9, top-k 40, top-p 0.95, min-p 0.1, each answer with a seed by chance" in shown
    assert "temperature 0.9, top-k 40, top-p 0.95, as the model's maker recommends" in shown


@pytest.mark.parametrize("command", ["/set", "/model"])
def test_the_shown_sampling_holds(
    engine: Engine, typed: Type, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    typed(command)
    Chat(engine, CONFIG, None, False, False, sampling=SamplingOptions(temperature=0.7, seed=1234567)).run()
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert "sampling temperature 0.7, seed 1234567 by default greedy" in shown


def test_a_shown_seed_repeats_the_text(chat: Chat, typed: Type, sent: Sent, capsys: pytest.CaptureFixture[str]) -> None:
    typed("one")
    chat.run()
    first = capsys.readouterr()
    sampling = sent[0][1].sampling
    assert f"Sampled with {sampling}.\n" in first.err
    assert sampling is not None
    typed("/reset", f"/set seed {sampling.seed}", "one")
    chat.run()
    again = capsys.readouterr()
    assert again.out == first.out
    assert "Sampled with" not in again.err


@pytest.mark.parametrize("line", ["/set top_p 0.5", "/set top-p=0.5", "/set  top_p = 0.5"])
def test_a_setting_is_taken_as_it_is_written_elsewhere(chat: Chat, typed: Type, sent: Sent, line: str) -> None:
    typed(line, "one")
    chat.run()
    assert sent[0][1].sampling is not None
    assert sent[0][1].sampling.top_p == 0.5


def test_max_tokens_without_a_value_is_the_default_again(chat: Chat, typed: Type) -> None:
    typed("/set max-tokens 3", "/set max-tokens")
    chat.run()
    assert chat.config.max_tokens == GenerationConfig().max_tokens


@pytest.mark.parametrize("line", ['/system ""', "/system ''"])
def test_an_empty_system_message_is_none(chat: Chat, typed: Type, sent: Sent, line: str) -> None:
    typed("/system Be brief.", line, "one")
    chat.run()
    assert sent[0][0] == [_user("one")]


def test_statistics_follow_the_last_answer_or_each(chat: Chat, typed: Type, capsys: pytest.CaptureFixture[str]) -> None:
    typed("one", "/stats", "two", "/stats", "three")
    chat.run()
    shown = capsys.readouterr().err
    assert shown.count("acceptance length") == 2
    assert shown.count("perplexity") == 1  # the first answer was not scored
    drawn = "temperature 0.9, top-k 40, top-p 0.95, seed"
    assert shown.count(drawn) == 4
    assert shown.count(f"Sampled with {drawn}") == 2  # where no statistics say as much


def test_a_chat_is_resumed(
    chat: Chat, typed: Type, sent: Sent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "kept.session"
    typed("one", f"/save {path}", "/reset", "two", f"/load {path}", "three")
    chat.run()
    last: list[dict[str, str]] = sent[-1][0]  # type: ignore[assignment]
    assert [each["content"] for each in last if each["role"] == "user"] == ["one", "three"]
    assert path.stat().st_mode & 0o077 == 0


def test_no_other_file_is_written(chat: Chat, typed: Type, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "letter"
    path.write_text("dear")
    typed(f"/save {path}", f"/load {path}")
    chat.run()
    assert path.read_text() == "dear"
    shown = capsys.readouterr().err
    assert f"Error: '{path}' is there, and no session: name another file." in shown
    assert shown.count("Error: ") == 2


def test_another_model_goes_on_with_the_conversation(chat: Chat, engine: Engine, typed: Type, sent: Sent) -> None:
    named: list[str] = []

    def load(name: str) -> Engine:
        named.append(name)
        return chat_of[name]

    other = Engine.load(chat.engine.package.folder, EngineConfig(is_calibrated=False, is_probed=False))
    chat_of, chat.load, first = {"other": other, "demo": engine}, load, chat.engine
    typed("one", "/model other", "two", "/model demo", "three")
    chat.run()
    assert named == ["other", "demo"]
    assert chat.engine is other is not first
    last: list[dict[str, str]] = sent[-1][0]  # type: ignore[assignment]
    assert [each["content"] for each in last if each["role"] == "user"] == ["one", "two", "three"]


def test_no_template_no_system_message(engine: Engine, typed: Type, capsys: pytest.CaptureFixture[str]) -> None:
    typed("/system Be brief.")
    Chat(engine, CONFIG, None, False, False, sampling=SamplingOptions(is_greedy=True)).run()
    assert "Error: No chat template is used here" in capsys.readouterr().err
