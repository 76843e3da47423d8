"""The proof of a server under load: it holds for ours, and tells where an answer is another one."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.durability import server_proof
from tests.durability.server_answers import Answer
from tests.durability.server_process import reader_edge
from tests.durability.server_questions import Question
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

pytest.importorskip("uvicorn", reason="the server is not installed: pip install 'reader-edge[dev]'")


@pytest.fixture
def package(demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = PackageCopy(demo_folder, tmp_path / "package")
    copy.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    # A source tree is not installed: other processes must be given where pytest found the packages.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    # Measuring passes takes seconds.
    monkeypatch.setattr(server_proof, "reader_edge", lambda *how: reader_edge(*how, "--no-calibrate"))
    return copy.folder


def prove(package: Path, requests: int, monkeypatch: pytest.MonkeyPatch) -> int:
    sizes = ["--requests", str(requests), "--clients", "8", "--tokens", "16"]
    monkeypatch.setattr(sys, "argv", ["server_proof", str(package), *sizes])
    with pytest.raises(SystemExit) as end:
        server_proof.main()
    return int(str(end.value.code))


@pytest.mark.long
def test_under_load_everybody_gets_the_answer_they_would_get_alone(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove(package, 24, monkeypatch) == 0, capsys.readouterr().out
    assert "0 faults" in capsys.readouterr().out


def test_another_answer_is_a_fault(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer_alone = server_proof._answer_alone

    async def altered(url: str, sent: Sequence[Question]) -> list[Answer]:
        *others, last = await answer_alone(url, sent)
        return [*others, replace(last, num_tokens=(0, 0), refusal="altered")]

    monkeypatch.setattr(server_proof, "_answer_alone", altered)
    assert prove(package, 2, monkeypatch) == 1
    assert "another answer" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked for in /proc")
def test_a_killed_server_starts_again_and_leaves_nothing() -> None:
    command = [
        sys.executable,
        "-m",
        "tests.durability.kill_servers",
        "--kills",
        "2",
        "--questions",
        "8",
        "--seconds",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("2 kills")
