"""Python in the README and the documentation runs, on the demo package with a chat template."""

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import reader_edge
from reader_edge_runtime import DraftSources, Engine, EngineConfig
from reader_edge_runtime.decoding.rule_config import RuleConfig
from tests.conftest import ROOT
from tests.docs.markdown import DOCS, PAGES, code_blocks, page_name
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

_NEED_A_SERVER = ("from openai import", "RemoteEngine(")
_IS_TESTED_ELSEWHERE = "class Sentence(DraftSource)"  # tests/runtime/drafting/test_drafter.py
PROGRAMS_PAGE = DOCS / "how-to" / "python.md"  # tests/docs/test_programs.py runs each by itself
SNIPPETS = [
    pytest.param("\n".join(blocks), id=page_name(page))
    for page in PAGES
    if page != PROGRAMS_PAGE and (blocks := code_blocks(page, "python")) and _IS_TESTED_ELSEWHERE not in blocks[0]
]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Path:
    copy = PackageCopy(demo_folder, tmp_path_factory.mktemp("docs") / "package")
    copy.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    return copy.folder


@pytest.mark.parametrize("code", SNIPPETS)
def test_python_in_the_documentation_runs(
    code: str, package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = compile(code, "documentation", "exec")
    if any(each in code for each in _NEED_A_SERVER):
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
        monkeypatch.setattr(f"reader_edge.server.http.listening.{name}", lambda *_: None)
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
