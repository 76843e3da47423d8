"""Reports with plots: servers beside each other, and a model over several boxes."""

import json
import os
import sys
from pathlib import Path

import pytest

import benchmarks.serving.__main__ as serving
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

pytest.importorskip("uvicorn", reason="the server is not installed: pip install 'reader-edge[dev]'")
pytest.importorskip("matplotlib", reason="plots are not installed: pip install 'reader-edge[dev]'")
pytest.importorskip("matplotlib", reason="plots need it: pip install 'reader-edge[plot]'")

from benchmarks.pipeline.pass_parts import PassParts
from benchmarks.pipeline.report import PipelineRow, write_report


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


def test_steps_stand_beside_stages_links_and_fixed_costs(tmp_path: Path) -> None:
    parts = [PassParts(2, 5.0, stages_ms=4.0, ring_ms=6.0, rested_ms=7.0, frame_bytes=32, stream_bytes=2304)]
    rows = [
        PipelineRow(1, 0.0, "plain", 1, 200.0, 1.0, 1.0, 5.0, True),
        PipelineRow(1, 0.0, "one pass", 1, 240.0, 1.5, 4.0, 6.0, True),
        PipelineRow(2, 0.0, "plain", 1, 160.0, 1.0, 1.0, 6.25, True),
        PipelineRow(2, 0.0, "one pass", 1, 192.0, 2.0, 4.0, 8.0, True),
        PipelineRow(2, 5.0, "plain", 1, 50.0, 1.0, 1.0, 20.0, True),
        PipelineRow(2, 5.0, "one pass", 1, 100.0, 2.0, 4.0, 21.0, False),
        PipelineRow(2, 5.0, "two passes", 1, 110.0, 2.5, 9.0, 23.0, True),
    ]
    write_report(rows, parts, [], tmp_path / "page")
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert lines[2] == "| 1 | 0 | plain | 200.0 | 1.00 | 1.0 | 5.0 | 5.0 |  |  |  |  | yes |"
    assert lines[4] == "| 2 | 0 | plain | 160.0 | 1.00 | 1.0 | 6.2 | 4.0 | 6.0, -4.0% |  |  |  | yes |"
    assert lines[6] == "| 2 | 5 | plain | 50.0 | 1.00 | 1.0 | 20.0 | 14.0 | 17.0, -15.0% |  |  |  | yes |"
    assert lines[7] == "| 2 | 5 | one pass | 100.0 | 2.00 | 4.0 | 21.0 |  |  | 2.00 | 1.38 |  | NO |"
    assert lines[8] == "| 2 | 5 | two passes | 110.0 | 2.50 | 9.0 | 23.0 |  |  | 2.20 | 1.50 | 1.100 | yes |"
    assert lines[-3] == "| 2 | 5.00 | 4.00 | 6.00 | 7.00 | 1.00 | 32 | 2304 |"
    assert lines[-1].endswith("(page.svg)")
    assert (tmp_path / "page.svg").read_text().count("<!-- 2 stages, two passes -->") == 1
