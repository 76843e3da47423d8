"""Servers beside each other: every answer is counted, and the page names who answered what."""

import json
import os
import sys
from pathlib import Path

import pytest

import benchmarks.serving.__main__ as serving
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

pytest.importorskip("uvicorn", reason="the server is not installed: pip install 'reader-edge[dev]'")
pytest.importorskip("matplotlib", reason="plots are not installed: pip install 'reader-edge[dev]'")


@pytest.mark.long
def test_all_answers_of_all_servers_are_counted(
    demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    prompts = tmp_path / "prompts.jsonl"
    questions = [("rag", "What is tar?"), ("rag", "And curl?"), ("chat", "Who is there?"), ("rag", "And ls?")]
    prompts.write_text("".join(json.dumps({"category": kind, "prompt": text}) + "\n" for kind, text in questions))
    # A source tree is not installed: other processes must be given where pytest found the packages.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    sizes = ["--clients", "2", "--requests", "3", "--tokens", "7", "--rounds", "1", "--categories", "rag"]
    arguments = [str(package.folder), "--prompts", str(prompts), "--out", str(tmp_path / "page"), *sizes]
    monkeypatch.setattr(sys, "argv", ["serving", *arguments])
    serving.main()
    capsys.readouterr()

    record = json.loads((tmp_path / "page.json").read_text())
    sent = {(cell["contender"], cell["num_clients"]) for cell in record["cells"]}
    assert sent == {(name, 2) for name in ("drafted", "plain", "one at a time")}
    for cell in record["cells"]:
        assert [seen["num_tokens"] for seen in cell["seen"]] == [7, 7, 7]
        assert all(0 < seen["first_s"] < cell["wall_s"] for seen in cell["seen"])
        assert cell["decoding_s"] > 0  # a last step may end behind the last answer
    page = (tmp_path / "page.md").read_text()
    assert "--requests 3 --tokens 7" in page
    assert str(tmp_path) not in page
    assert page.count("| one at a time |") == 1
    assert (tmp_path / "page.svg").stat().st_size > 1000
