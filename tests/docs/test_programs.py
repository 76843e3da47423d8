"""What the documentation shows runs: command lines, snippets of Python, and programs."""

import contextlib
import io
import json
import re
import runpy
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest

import reader_edge
import reader_edge_runtime
from docs.reference_pages import commands
from reader_edge.cli import main
from reader_edge_runtime import DraftSources, Engine, EngineConfig
from reader_edge_runtime.decoding.rule_config import RuleConfig
from tests.conftest import ROOT
from tests.docs.test_pages import DOCS, PAGES, code_blocks, page_name
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

PROGRAMS_PAGE = DOCS / "how-to" / "python.md"
PROGRAMS = {path.stem: path.read_text(encoding="utf-8") for path in sorted((DOCS / "programs").glob("*.py"))}
CALL = '<tool_call>\n{"name": "temperature", "arguments": {"city": "Bern"}}\n</tool_call>'
PERSON = {"name": "Anna", "age": 31}


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Path:
    copy = PackageCopy(demo_folder, tmp_path_factory.mktemp("programs") / "package")
    copy.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    return copy.folder


@pytest.fixture
def run(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """What a program prints: with the demo, whatever it loads."""
    quick = EngineConfig(is_calibrated=False, is_probed=False, threads=1)

    def load(model: str | None = None, *further: object) -> reader_edge_runtime.Engine:
        return reader_edge_runtime.Engine.load(package, quick)

    def printed(name: str) -> str:
        runpy.run_path(str(DOCS / "programs" / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    monkeypatch.setattr(reader_edge.Engine, "load", load)
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.chdir(tmp_path)
    return printed


def test_the_page_shows_programs_as_they_are_and_links_the_others() -> None:
    shown = code_blocks(PROGRAMS_PAGE, "python")
    linked = [name for name in PROGRAMS if f"(../programs/{name}.py)" in PROGRAMS_PAGE.read_text(encoding="utf-8")]
    assert sorted(shown + [PROGRAMS[name] for name in linked]) == sorted(PROGRAMS.values())
    assert len(PROGRAMS) == 10
    assert all(len(text.splitlines()) <= 30 for text in shown)


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {"schema", "tools", "choice", "session"}))
def test_a_program_runs(name: str, run: Callable[[str], str]) -> None:
    assert len(run(name).split()) > 3


def test_a_choice_is_one_of_its_texts(run: Callable[[str], str]) -> None:
    pytest.importorskip("llguidance", reason="grammars are an extra")
    lines = run("choice").splitlines()
    assert len(lines) == 2
    assert all(line.endswith(("positive", "negative")) for line in lines)


def test_an_answer_to_a_schema_is_an_object(run: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_edge_runtime.Engine, "generate", saying(json.dumps(PERSON)))
    assert run("schema") == "Anna 31\n"


def test_functions_are_called_until_an_answer(run: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> None:
    prompts: list[Any] = []
    monkeypatch.setattr(reader_edge_runtime.Engine, "generate", saying(CALL, "21 degrees.", prompts=prompts))
    assert run("tools") == "21 degrees.\n"
    assert [message["role"] for message in prompts[1]] == ["user", "assistant", "tool"]
    assert prompts[1][2]["content"] == "21 degrees in Bern"
    assert prompts[1][2]["tool_call_id"] == prompts[1][1]["tool_calls"][0]["id"]


def test_a_session_goes_on_where_it_was(run: Callable[[str], str], tmp_path: Path) -> None:
    assert run("session")
    size = (tmp_path / "talk").stat().st_size
    assert run("session")
    assert (tmp_path / "talk").stat().st_size > size


def saying(*texts: str, prompts: list[Any] | None = None) -> Callable[..., reader_edge.GenerationResult]:
    """`generate` of a model that says these texts, one after the other; it runs all the same."""
    generate, left = reader_edge_runtime.Engine.generate, list(texts)

    def answer(engine: reader_edge_runtime.Engine, prompt: Any, **options: Any) -> reader_edge.GenerationResult:
        if prompts is not None:
            prompts.append(list(prompt))
        result = generate(engine, prompt, **options | {"max_tokens": 4})
        values = {name: getattr(result, name) for name in ("token_ids", "finish_reason", "stats", "answer_format")}
        return reader_edge.GenerationResult(left.pop(0), **values)

    return answer


_START = re.compile(r"(?:^|[|&]|-- )\s*(?:\S*/)?reader-edge\s(.*)")
_END = re.compile(r"\s(?:&&|\||>|2>)")
LINES = [
    pytest.param(command, id=f"{page_name(page)}: {command[:60]}")
    for page in PAGES
    for block in code_blocks(page, "sh")
    for line in block.replace("\\\n", " ").splitlines()
    if (found := _START.search(line)) and (command := _END.split(found[1])[0])
]


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_is_understood(line: str) -> None:
    assert_understood(shlex.split(line, comments=True))


def _context(command: click.Command) -> click.Context:
    """As `main` gives it: click keeps the names of a command's help option from the first context that it sees."""
    return click.Context(command, **main.context_settings)


def assert_understood(words: list[str]) -> None:
    """Parse the words as click does, but ask nothing of their values: files need not be there."""
    command: click.Command = main
    while True:
        context = _context(command)
        values, rest, _ = command.make_parser(context).parse_args(list(words))
        if not isinstance(command, click.Group) or not rest:
            break
        name, *words = rest
        assert name in command.commands, f"there is no command {name!r}"
        command = command.commands[name]
    assert not rest, f"{rest} are too many arguments of {command.name}"
    is_help = "--help" in words
    for parameter in command.params:
        if parameter.required and not is_help:
            is_missing = parameter.value_is_missing(values.get(parameter.name or ""))
            assert not is_missing, f"{command.name} needs {parameter.human_readable_name}"


HELPS = [
    pytest.param(command, id=" ".join(names))
    for names, command in commands(main, ("reader-edge",))
    if not isinstance(command, click.Group)
]


@pytest.mark.parametrize("command", HELPS)
def test_help_begins_with_a_sentence_and_ends_with_examples(command: click.Command) -> None:
    first, *rest = command.get_help(_context(command)).partition("Usage:")[2].splitlines()[2:]
    assert len(first) - len(first.lstrip()) == 2
    assert len((command.help or "").partition("\n\n")[0]) <= 130
    examples = [line.split("reader-edge ", 1)[1] for line in rest[-4:] if line.strip().startswith("reader-edge ")]
    assert rest[-1].strip() == f"reader-edge {examples[-1]}"
    for line in examples:
        assert_understood(shlex.split(line))


@pytest.mark.parametrize("words", [["run", "--nonsense"], ["rn"], ["export", "model"], ["pull", "a", "b"]])
def test_a_wrong_command_line_is_noticed(words: list[str]) -> None:
    with pytest.raises((AssertionError, click.UsageError)):
        assert_understood(words)


_NEED_MORE_THAN_THE_DEMO = (
    "from openai import",
    "RemoteEngine(",
    "engine.embed(",
    "images=[",
    "adapters={",
)  # a server, or another model
_IS_TESTED_ELSEWHERE = "class Sentence(DraftSource)"  # tests/runtime/drafting/test_drafter.py
SNIPPETS = [
    pytest.param("\n".join(blocks), id=page_name(page))
    for page in PAGES
    if page != PROGRAMS_PAGE and (blocks := code_blocks(page, "python")) and _IS_TESTED_ELSEWHERE not in blocks[0]
]


@pytest.mark.parametrize("code", SNIPPETS)
def test_snippets_of_python_run(code: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile(code, "documentation", "exec")
    if any(each in code for each in _NEED_MORE_THAN_THE_DEMO):
        return

    def load_demo(
        model: str | None = None,
        config: EngineConfig | None = None,
        sources: DraftSources | None = None,
        rule: RuleConfig | None = None,
    ) -> Engine:
        """The demo, whatever is named, as fast as may be: files of sources are not there."""
        assert sources is None or isinstance(sources, DraftSources)
        return Engine.load(package, replace(config or EngineConfig(), is_calibrated=False, threads=1), rule=rule)

    monkeypatch.setattr(reader_edge.Engine, "load", load_demo)
    for name in ("listen", "open_socket"):  # of a server
        monkeypatch.setattr(f"reader_edge.server.listening.{name}", lambda *_: None)
    monkeypatch.chdir(tmp_path)
    messages = [{"role": "user", "content": "# tar"}]
    names: dict[str, Any] = {"messages": messages, "__name__": "__main__"}
    if "Engine.load" not in code:
        names["engine"] = load_demo("qwen")
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compiled, names)  # noqa: S102  # our own text


def test_there_are_snippets() -> None:
    assert (ROOT / "README.md").read_text(encoding="utf-8").count("```python") == 1
    assert len(SNIPPETS) >= 6


JSON = [
    pytest.param(text, id=f"{page_name(page)}: {text[:40]}")
    for page in PAGES
    for text in (
        *(line for block in code_blocks(page, "json") for line in block.splitlines()),
        *(body for block in code_blocks(page, "sh") for body in re.findall(r"-d '(\{.*?\})'", block, re.DOTALL)),
    )
]


@pytest.mark.parametrize("text", JSON)
def test_json_in_the_documentation_is_some(text: str) -> None:
    assert isinstance(json.loads(text), dict)
