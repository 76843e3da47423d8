"""The proofs of grammars and of a server under load find what they look for."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.durability import client_soak, server_proof
from tests.durability.server_process import reader_edge
from tests.durability.server_questions import Answer, Question
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
pytest.importorskip("jsonschema", reason="it is not installed: pip install 'reader-edge[dev]'")
pytest.importorskip("uvicorn", reason="the server is not installed: pip install 'reader-edge[dev]'")

from reader_edge_runtime import Engine
from tests.durability.grammar_proof import GrammarProof, problem_of, random_schema, read_suite


@pytest.mark.long
def test_random_schemas_are_answered_validly_and_alike_drafted_and_plain(engine: Engine) -> None:
    proof = GrammarProof(engine, max_tokens=60)
    for number in range(20):
        proof.ask(number, random_schema(number))
    assert proof.faults == []
    assert proof.counts["valid"] > 3
    assert proof.counts["refused"] < 5
    assert "0 faults" in proof.summary()


def test_an_answer_of_another_schema_is_found() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}}, "required": ["a"]}
    assert problem_of('{"a": 3}', schema) is None
    for answer in ('{"a": 4}', "{}", '{"a": 3', '"a"'):
        assert problem_of(answer, schema)
    dated = {"format": "date"}
    assert [problem_of(f'"{text}"', dated) is None for text in ("0000-02-29", "2024-02-30", "20240229")] == [1, 0, 0]


def test_a_suite_is_read_from_files_of_schemas_and_of_cases(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps({"type": "string"}))
    cases = [{"schema": {"type": "string"}}, {"schema": {"type": "null"}}, {"schema": True}]
    (tmp_path / "b.json").write_text(json.dumps(cases))
    assert list(read_suite(tmp_path)) == [{"type": "string"}, {"type": "null"}, True]
    (tmp_path / "draft7").mkdir()
    (tmp_path / "draft7" / "c.json").write_text(json.dumps([{"schema": {"items": [{"type": "null"}]}}]))
    (old,) = read_suite(tmp_path / "draft7")
    assert problem_of("[1]", old)
    assert random_schema(3) == random_schema(3)


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
def test_load_changes_no_answer(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert prove(package, 24, monkeypatch) == 0, capsys.readouterr().out
    assert "0 faults" in capsys.readouterr().out


def test_other_answers_fail(package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_answers_with_anothers_secret_or_text_are_found(demo_folder: Path, tmp_path: Path) -> None:
    soak = client_soak.ClientSoak(demo_folder, tmp_path, 2, seed=0)
    talk, other = soak._talks
    talk.expected.append(client_soak.Reply("as plain", 2))
    for text, num_faults in (("as plain", 0), ("another", 1), (f"as {other.secret}", 3)):
        body = {"message": {"role": "assistant", "content": text}, "done": True, "eval_count": 2}
        soak._compare("/api/chat", talk, 0, False, httpx.Response(200, json=body))
        assert len(soak.faults) == num_faults


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked for in /proc")
def test_clients_of_a_killed_server_get_their_own_answers(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--clients", "4", "--minutes", "0.05", "--tokens", "2000"]
    assert client_soak.main([str(package), *sizes]) == 0, capsys.readouterr().out
    assert "\n0 faults" in capsys.readouterr().out
