"""The chat: what is written, remembered and forgotten, what Ctrl-C and Ctrl-D do, and a terminal's lines."""

import builtins
import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

import pytest

from reader_edge.chat.chat import Chat
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.errors import ConfigError
from reader_edge_runtime.images.prompt_reader import PromptReader, ReadPrompt
from reader_edge_runtime.text.conversation import Encodable
from tests.reader_edge.package_copy import PackageCopy

CONFIG = GenerationConfig(max_tokens=8, ignores_eos=True)
Say = Callable[..., None]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Say:
    """Make the user type lines (or press Ctrl-C, as a KeyboardInterrupt), then Ctrl-D."""

    def type_lines(*lines: str | type[KeyboardInterrupt]) -> None:
        typed = iter(lines)

        def read(mark: str = "") -> str:
            line = next(typed, None)
            if line is None:
                raise EOFError
            if not isinstance(line, str):
                raise line
            return line

        monkeypatch.setattr(builtins, "input", read)

    return type_lines


@pytest.fixture
def chat_engine(chat_package: PackageCopy) -> Engine:
    return Engine.load(chat_package.folder, EngineConfig(is_calibrated=False, is_probed=False))


@pytest.fixture
def prompts(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every prompt an engine is given."""
    seen: list[object] = []
    read = PromptReader.read

    def watch(self: PromptReader, prompt: Encodable, salt: str) -> ReadPrompt:
        seen.append(prompt)
        return read(self, prompt, salt)

    monkeypatch.setattr(PromptReader, "read", watch)
    return seen


def _chat(engine: Engine, system: str | None = None, is_raw: bool = False, shows_stats: bool = False) -> None:
    Chat(engine, CONFIG, system, is_raw, shows_stats).run()


def _answers(engine: Engine, prompts: Iterable[str]) -> str:
    """What a chat shows: every answer ends its line."""
    texts = [engine.generate(prompt, CONFIG).text for prompt in prompts]
    return "".join(text if text.endswith("\n") else text + "\n" for text in texts)


def test_answers_alone_go_to_standard_output(engine: Engine, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say("# tar", "", "# git")
    _chat(engine)
    captured = capsys.readouterr()
    assert captured.out == _answers(engine, ["# tar", "# git"])
    assert "Ctrl-D leaves" in captured.err
    assert captured.err.endswith("> \n")


def test_without_a_chat_template_each_line_stands_alone(engine: Engine, say: Say, prompts: list[object]) -> None:
    say("# tar", "# git")
    _chat(engine)
    assert prompts == ["# tar", "# git"]


@pytest.mark.parametrize("command", ["/reset", "/clear"])
def test_a_conversation_grows_and_reset_forgets_all_but_the_system_message(
    chat_engine: Engine, say: Say, prompts: list[object], capsys: pytest.CaptureFixture[str], command: str
) -> None:
    say("one", "two", command, "three")
    _chat(chat_engine, system="Be brief.")
    first_answer = capsys.readouterr().out.split("\n")[0]
    system = {"role": "system", "content": "Be brief."}
    one, two, three = ({"role": "user", "content": text} for text in ("one", "two", "three"))
    first, second, third = prompts
    assert first == [system, one]
    assert isinstance(second, list)
    assert [second[0], second[1], second[3]] == [system, one, two]
    assert second[2]["content"].startswith(first_answer)
    assert third == [system, three]


@pytest.mark.parametrize("command", ["/exit", "/bye", "/quit", "/bye "])
def test_leaving_is_at_once(engine: Engine, say: Say, prompts: list[object], command: str) -> None:
    say(command, "# tar")
    _chat(engine)
    assert prompts == []


@pytest.mark.parametrize("line", ["/settle", "/forget", "/Bye", "/byes now"])
def test_an_unknown_command_is_reported_and_not_sent(
    engine: Engine, say: Say, prompts: list[object], capsys: pytest.CaptureFixture[str], line: str
) -> None:
    say(line)
    _chat(engine)
    assert prompts == []
    shown = f"There is no command {line.split()[0]}. To say this to the model, begin with a space. /help shows"
    assert shown in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "output"),
    [
        (" /forget", "/forget"),
        (" /bye", "/bye"),
        ("/etc/hosts holds names", "/etc/hosts holds names"),
        ("// note", "// note"),
        ("/* note */", "/* note */"),
        ("/", "/"),
    ],
)
def test_what_is_no_command_is_sent(engine: Engine, say: Say, prompts: list[object], line: str, output: str) -> None:
    say(line)
    _chat(engine)
    assert prompts == [output]


@pytest.mark.parametrize("command", ["/help", "/?"])
def test_help_goes_beside_answers(engine: Engine, say: Say, capsys: pytest.CaptureFixture[str], command: str) -> None:
    say(command)
    _chat(engine)
    captured = capsys.readouterr()
    assert captured.out == ""
    for name in ("/system", "/set", "/stats", "/save", "/load", "/model", "/reset", "/bye", '"""'):
        assert name in captured.err


def test_ctrl_c_while_typing_does_not_leave(engine: Engine, say: Say, prompts: list[object]) -> None:
    say(KeyboardInterrupt, "# tar")
    _chat(engine)
    assert prompts == ["# tar"]


def test_ctrl_c_stops_the_answer_and_keeps_what_was_written(
    chat_engine: Engine,
    say: Say,
    prompts: list[object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    step, num_steps = Decoder.step, 0

    def interrupted_step(self: Decoder) -> object:
        nonlocal num_steps
        num_steps += 1
        if num_steps == 3:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(Decoder, "step", interrupted_step)
    say("one", "two")
    _chat(chat_engine)
    captured = capsys.readouterr()
    assert "Stopped.\n" in captured.err
    assert isinstance(prompts[1], list)
    assert [message["role"] for message in prompts[1]] == ["user", "assistant", "user"]
    assert not chat_engine.decoder.running


def test_an_error_is_shown_and_the_chat_goes_on(engine: Engine, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say("1 2 3 4 5 6 7 8 9 " * 1000, "# tar")
    _chat(engine)
    captured = capsys.readouterr()
    assert "Error: The prompt has " in captured.err
    assert captured.out == _answers(engine, ["# tar"])


def test_a_failed_template_ends_no_chat(
    chat_package: PackageCopy, say: Say, capsys: pytest.CaptureFixture[str]
) -> None:
    chat_package.write_file("chat_template.jinja", b"{{ 1 / (messages | length - 1) }}")
    say("one", "two")
    _chat(Engine.load(chat_package.folder, EngineConfig(is_calibrated=False, is_probed=False)))
    captured = capsys.readouterr()
    assert captured.out == ""
    path = chat_package.folder / "chat_template.jinja"
    assert captured.err.count(f"Error: The chat template '{path}' fails on these messages (division by zero): ") == 2
    assert captured.err.count("--raw") == 2


def test_statistics_follow_each_answer(engine: Engine, say: Say, capsys: pytest.CaptureFixture[str]) -> None:
    say("# tar", "# git")
    _chat(engine, shows_stats=True)
    assert capsys.readouterr().err.count("acceptance length") == 2


def test_raw_skips_the_chat_template(chat_engine: Engine, say: Say, prompts: list[object]) -> None:
    say("one")
    _chat(chat_engine, is_raw=True)
    assert prompts == ["one"]


def test_a_system_message_without_a_chat_template_is_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="leave -s out"):
        _chat(engine, system="Be brief.")


if sys.platform == "win32":
    pytest.skip("pseudo-terminals are POSIX", allow_module_level=True)


# Makes the pseudo-terminal the process's own, so that Ctrl-C reaches it, and answers slow enough to be stopped.
_CHILD = """
import fcntl, sys, termios, time
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from reader_edge.cli import main
from reader_edge_runtime.decoding.decoder import Decoder
step = Decoder.step
def slow_step(self):
    time.sleep(0.02)
    return step(self)
Decoder.step = slow_step
main(sys.argv[1:])
"""
MAX_SECONDS = 120  # of silence, however busy the machine


class Terminal:
    """A child process on a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        self._keys, child = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, *arguments],
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm"},
        )
        os.close(child)
        self.shown = ""

    def press(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def wait_for(self, text: str, start: int = 0) -> int:
        """Read until the screen shows a text after `start`; returns where it ends."""
        while text not in self.shown[start:]:
            self._read()
        return self.shown.index(text, start) + len(text)

    def wait_for_more(self, start: int) -> None:
        """Read until the screen shows anything after `start`."""
        while len(self.shown) <= start:
            self._read()

    def _read(self) -> None:
        assert select.select([self._keys], [], [], MAX_SECONDS)[0], f"nothing more came after {self.shown!r}"
        self.shown += os.read(self._keys, 4096).decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._keys)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal("run", "-n", "1500")
    yield opened
    opened.close()


@pytest.mark.long
def test_a_chat_answers_stops_at_ctrl_c_and_leaves_at_ctrl_d(terminal: Terminal) -> None:
    start = terminal.wait_for("> ")
    terminal.press("1 2 3 4 5 6 7 8 9 10\n")
    echoed = terminal.wait_for("10\r\n", start)
    terminal.wait_for_more(echoed)
    terminal.press("\x03")
    stopped = terminal.wait_for("Stopped.", echoed)
    terminal.wait_for("> ", stopped)
    terminal.press("\x04")
    assert terminal.process.wait(timeout=MAX_SECONDS) == 0
    assert "Traceback" not in terminal.shown


def test_a_prompt_on_a_terminal_ends_its_line() -> None:
    opened = Terminal("run", "-n", "3", "-p", "# tar")
    try:
        with suppress(OSError):  # which reading a terminal ends with
            while opened.process.poll() is None:  # a full terminal would have it wait
                opened._read()
        assert opened.process.wait(timeout=MAX_SECONDS) == 0
        assert opened.shown.endswith("\r\n")
    finally:
        opened.close()
