"""The command: its beginning, its help, its errors, and Ctrl-C."""

import errno
import json
import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import reader_edge
from reader_edge import __main__ as beginning
from reader_edge import cli
from reader_edge.cli import main
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.errors import ProviderError

MAX_SECONDS = 120  # however busy the machine
# A source tree is not installed: other processes must be given where pytest found the packages.
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _python(*arguments: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *arguments], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=ENVIRONMENT
    )


def _output(*arguments: str) -> tuple[int, str, str]:
    with _python(*arguments) as process:
        stdout, stderr = process.communicate(timeout=MAX_SECONDS)
    return process.returncode, stdout, stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no process sends itself Ctrl-C there")
@pytest.mark.parametrize("is_disguised", [False, True])
def test_an_interruption_while_modules_are_imported_is_silent(tmp_path: Path, is_disguised: bool) -> None:
    interrupting = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    if is_disguised:  # as modules of C do
        body = interrupting.replace("\n", "\n    ").rstrip()
        interrupting = f"try:\n    {body}\nexcept KeyboardInterrupt as error:\n    raise ImportError from error\n"
    (tmp_path / "click.py").write_text(interrupting, encoding="utf-8")
    paths = os.pathsep.join([str(tmp_path), ENVIRONMENT["PYTHONPATH"]])
    shown = subprocess.run(
        [sys.executable, "-m", "reader_edge", "--version"],
        capture_output=True,
        env=ENVIRONMENT | {"PYTHONPATH": paths},
        timeout=MAX_SECONDS,
    )
    assert (shown.returncode, shown.stdout, shown.stderr) == (130, b"", b"")


@pytest.mark.parametrize("arguments", [[], ["run"], ["verify"], ["info"], ["export"]])
def test_help_is_one_option_away_everywhere(runner: CliRunner, arguments: list[str]) -> None:
    short, long = runner.invoke(main, [*arguments, "-h"]), runner.invoke(main, [*arguments, "--help"])
    assert short.exit_code == long.exit_code == 0
    assert short.stdout == long.stdout
    assert short.stdout.startswith("Usage:")


@pytest.mark.parametrize("arguments", [[], ["bench"], ["datastore"]])
def test_lists_of_commands_are_whole_sentences(runner: CliRunner, arguments: list[str]) -> None:
    _, _, commands = runner.invoke(main, [*arguments, "--help"], terminal_width=80).stdout.partition("Commands:\n")
    assert commands
    for line in commands.splitlines():
        assert re.fullmatch(r"  [a-z-]+ +[A-Z][^.]+\.", line), line


@pytest.mark.parametrize("extra", [[], ["and more"]])
def test_a_prompt_behind_the_model_is_answered_with_the_option_for_it(runner: CliRunner, extra: list[str]) -> None:
    result = runner.invoke(main, ["run", "smollm2:135m", "Why is it so?", *extra])
    assert result.exit_code == 2
    shown = "Error: A prompt is given with -p: reader-edge run smollm2:135m -p 'Why is it so?'\n"
    assert result.stderr.endswith(shown)


def test_a_prompt_beside_that_of_the_option_has_no_place(runner: CliRunner) -> None:
    result = runner.invoke(main, ["run", "smollm2:135m", "Why?", "-p", "hi"])
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: The prompt is given with -p, so 'Why?' has no place: leave it out.\n")


def test_where_no_command_is_of_that_name_a_list_of_them_is_named(runner: CliRunner) -> None:
    shown = runner.invoke(main, ["bench", "model.gguf"], prog_name="reader-edge").stderr
    assert shown == "Error: No such command 'model.gguf': `reader-edge bench --help` lists them.\n"


def test_version_is_the_package_s(runner: CliRunner) -> None:
    assert runner.invoke(main, ["--version"]).stdout == f"reader-edge, version {reader_edge.__version__}\n"


def test_version_as_json_has_what_a_bug_report_needs(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    required = ["Click>=8.1", "absent-one<2; extra == 'absent'", "reader-edge[serve]; extra == 'dev'"]
    monkeypatch.setattr(metadata, "requires", lambda name: required)
    for arguments in (["--version", "--json"], ["--json", "--version"]):
        result = runner.invoke(main, arguments)
        assert (result.exit_code, result.stderr) == (0, "")
        facts = json.loads(result.stdout)
        assert facts["reader_edge"] == reader_edge.__version__
        assert facts["python"].endswith(platform.python_version())
        assert facts["packages"] == {"click": metadata.version("click")}
        assert {"package_format", "native_kernels", "system", "processor", "usable_cores"} <= facts.keys()
    assert runner.invoke(main, ["--json"]).exit_code == 2


def test_help_imports_neither_the_runtime_nor_rich() -> None:
    code = "import sys, reader_edge.cli; print({'onnxruntime', 'numpy', 'rich', 'torch'} & set(sys.modules))"
    assert _output("-c", code) == (0, "set()\n", "")


def test_it_runs_as_a_module() -> None:
    code, stdout, _ = _output("-m", "reader_edge", "--help")
    assert code == 0
    assert stdout.startswith("Usage: reader-edge ")


def _without_onnxruntime(*arguments: str) -> tuple[int, str, str]:
    code = (
        "from importlib import metadata\n"
        "def version(name):\n"
        "    raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = version\n"
        "from reader_edge.cli import main\n"
        f"main({list(arguments)!r})\n"
    )
    return _output("-c", code)


@pytest.mark.parametrize("arguments", [["run", "-p", "a"], ["verify"], ["serve"]])
def test_missing_onnxruntime_is_shown_in_one_sentence(arguments: list[str]) -> None:
    sentence = "Error: ONNX Runtime is missing: pip install 'reader-edge[cpu]' (or 'reader-edge[gpu]').\n"
    assert _without_onnxruntime(*arguments) == (1, "", sentence)


def test_version_as_json_needs_no_onnxruntime() -> None:
    code, stdout, stderr = _without_onnxruntime("--version", "--json")
    assert (code, stderr, json.loads(stdout)["packages"]) == (0, "", {})


def test_info_tells_what_a_package_is_without_onnxruntime() -> None:
    code, stdout, stderr = _without_onnxruntime("info")
    assert (code, stderr) == (0, "")
    assert re.search(r"^precision +int8$", stdout, re.MULTILINE)


@pytest.mark.parametrize("arguments", [["sing"], ["run", "--sing"], ["run", "-n", "many"], ["export", "only-one"]])
def test_wrong_usage_exits_2(runner: CliRunner, arguments: list[str]) -> None:
    result = runner.invoke(main, arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize("is_disguised", [False, True])  # as by a compiled module that was being loaded
def test_an_interrupt_exits_130(is_disguised: bool, runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Decoder) -> None:
        if is_disguised:
            raise ImportError("initialization failed") from KeyboardInterrupt()
        raise KeyboardInterrupt

    monkeypatch.setattr(Decoder, "step", interrupt)
    result = runner.invoke(main, ["run", "-p", "# tar"])
    assert result.exit_code == 130
    assert result.stderr == "Interrupted.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows delivers Ctrl-C to a console, not to a process")
def test_ctrl_c_stops_an_answer_on_its_way() -> None:
    code = (
        "import time\n"
        "from reader_edge.cli import main\n"
        "from reader_edge_runtime.decoding.decoder import Decoder\n"
        "step = Decoder.step\n"
        "def slow_step(self):\n"
        "    time.sleep(0.05)\n"
        "    return step(self)\n"
        "Decoder.step = slow_step\n"
        "main(['run', '-p', 'the the the the', '-n', '2000', '--no-calibrate'])\n"
    )
    with _python("-c", code) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=MAX_SECONDS)
    assert process.returncode == 130
    assert stderr.lstrip("\n") == "Interrupted.\n"  # below the answer's line, if that was not ended


@pytest.mark.long
def test_a_closed_pipe_is_no_traceback() -> None:
    with _python("-m", "reader_edge", "run", "-p", "# tar", "-n", "2000", "--no-calibrate") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_closed_output_is_refused_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    for arguments in (["--help"], ["info"], ["run", "-p", "# tar", "--json"]):
        with pytest.raises(SystemExit, match="1"):
            main(arguments)
        sentence = "Error: Standard output is closed: send it to a file, a pipe or /dev/null.\n"
        assert capsys.readouterr().err == sentence


def test_a_closed_stderr_leaves_the_answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for arguments in ([], ["--stats"]):
        monkeypatch.setattr(sys, "stderr", None)
        main(["run", "-p", "# tar", "-n", "4", "--no-calibrate", *arguments], standalone_mode=False)
        sys.stderr.close()
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]


def test_a_closed_standard_input_is_empty(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SystemExit, match="2"):
        main(["run"])
    sys.stdin.close()
    assert capsys.readouterr().err == "Error: The prompt is empty: give some text with -p or on standard input.\n"


def test_a_file_that_cannot_be_read_is_one_sentence(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    result = runner.invoke(main, ["info"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: '")
    assert result.stderr.endswith("reader_edge.json' cannot be used: Permission denied.\n")


def test_the_face_offers_what_it_names() -> None:
    assert all(hasattr(reader_edge, name) for name in reader_edge.__all__)


def test_the_face_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = reader_edge.Motor  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_sentence_that_names_no_line_of_the_program(runner: CliRunner, tmp_path: Path) -> None:
    history = tmp_path / "past\x1banswers"
    arguments = ["run", "-p", "# tar", "-n", "4", "--no-calibrate", "--history", str(history)]
    assert runner.invoke(main, arguments).exit_code == 0
    content = bytearray(history.read_bytes())
    content[-1] ^= 1
    history.write_bytes(content + content[-40:])
    result = runner.invoke(main, arguments)
    assert result.exit_code == 0
    shown = str(history).replace("\x1b", r"\x1b")
    assert result.stderr == f"Warning: '{shown}' is damaged in one place: the past answers there are lost.\n"


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("before", [signal.default_int_handler, signal.SIG_IGN], ids=["received", "ignored"])
def test_ctrl_c_is_restored(
    before: signal.Handlers, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["reader-edge", "--version"])
    signal.signal(signal.SIGINT, before)
    with pytest.raises(SystemExit) as ended:
        beginning.main()
    assert (ended.value.code, signal.getsignal(signal.SIGINT)) == (0, before)
    assert reader_edge.__version__ in capsys.readouterr().out


def test_ctrl_c_ends_an_import_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    beginning._leave(signal.SIGINT, None)
    assert codes == [130]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OSError(errno.ENOSPC, "No space left", "a\x1b[2J"), r"'a.*\[2J' cannot be used: No space left: free some"),
        (OSError(errno.EACCES, "Permission denied", "a"), r"^'a' cannot be used: Permission denied\.$"),
        (ProviderError("It does not run."), r"^It does not run\. `reader-edge doctor MODEL` says more\.$"),
    ],
)
def test_what_fails_is_one_sentence_that_steers_no_terminal(error: Exception, shown: str) -> None:
    with pytest.raises(click.ClickException, match=shown) as refused, cli._errors_reported():
        raise error
    assert refused.value.message.isprintable()


def test_what_others_take_care_of_is_handed_on() -> None:
    for error in (BrokenPipeError(errno.EPIPE, "Broken pipe"), ZeroDivisionError()):
        with pytest.raises(type(error)), cli._errors_reported():
            raise error


def test_an_interrupt_in_disguise_is_shown_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(click.exceptions.Exit) as ended, cli._errors_reported():
        raise ImportError("numpy") from KeyboardInterrupt()
    assert (ended.value.exit_code, capsys.readouterr().err) == (130, "Interrupted.\n")
