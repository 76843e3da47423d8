"""The proof of grammars: it holds for the demo model, and finds what it looks for."""

import json
from pathlib import Path

import pytest

pytest.importorskip("llguidance", reason="grammars need it: pip install 'reader-edge[grammar]'")
pytest.importorskip("jsonschema", reason="it is not installed: pip install 'reader-edge[dev]'")

from reader_edge_runtime import Engine
from tests.durability.grammar_proof import GrammarProof, problem_of, read_suite
from tests.durability.random_schemas import random_schema


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
