"""The programs that Python's page shows are files that run, on the demo package with a chat template."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import reader_edge
import reader_edge_runtime
from reader_edge_runtime import EngineConfig
from tests.docs.markdown import DOCS, code_blocks
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


def test_functions_are_called_until_the_model_answers(
    run: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
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
        values = {name: getattr(result, name) for name in ("token_ids", "finish_reason", "stats", "form")}
        return reader_edge.GenerationResult(left.pop(0), **values)

    return answer
