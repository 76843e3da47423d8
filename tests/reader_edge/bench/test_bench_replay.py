"""`reader-edge bench replay` on small recordings, without a model."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from reader_edge.bench.recording import RecordedRequest, RecordedTurn, read_recording
from reader_edge.bench.replay import replay
from reader_edge.commands.bench import bench
from reader_edge.commands.datastore import datastore
from reader_edge_runtime import DraftConfig
from reader_edge_runtime.errors import UserFileError
from tests.runtime.text.text_cases import BYTE_LEVEL

WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture
def tokenizer_path(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    text = " ".join(WORDS)
    requests = [
        {"task": "copy", "turns": [{"input": text, "output": text}, {"input": "two", "output": text}]},
        {"task": "new", "turns": [{"input": "nine", "output": "ten two four six"}]},
    ]
    path = tmp_path / "small.jsonl"
    # A line separator inside a string is no end of line.
    path.write_text("\n".join(json.dumps(request) for request in requests).replace("two", "two\u2028"), "utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(bench, ["replay", *map(str, arguments)])


def test_json_has_every_figure(tokenizer_path: Path, recording: Path) -> None:
    result = run(recording, "--tokenizer", tokenizer_path.parent, "--nodes", "4,8", "--json")
    assert result.exit_code == 0, result.output
    (file,) = json.loads(result.output)["files"]
    assert file["file"] == "small"
    assert 2 < file["acceptance_length"]["4"] <= file["acceptance_length"]["8"] < 28
    assert file["acceptance_length_by_task"]["copy"]["8"] > file["acceptance_length_by_task"]["new"]["8"]
    assert file["nodes_per_step"]["4"] <= 4
    assert 0 < file["draft_us_p50"] <= file["draft_us_p99"]
    assert file["learn_us_per_token"] > 0
    assert file["bytes"] > 0
    assert sum(file["accepted_by_source"].values()) <= sum(file["drafted_by_source"].values())


@pytest.mark.parametrize("priors", ["shipped", "others", "none"])
def test_table_tells_what_each_file_reached(tokenizer_path: Path, recording: Path, priors: str) -> None:
    result = run(recording, recording, "--tokenizer", tokenizer_path, "--priors", priors, "--sources", "context")
    assert result.exit_code == 0, result.output
    assert result.output.count("small") == 2
    assert result.output.count("  copy ") == result.output.count("  new ") == 2
    assert "history" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nodes", "0"], "from 1 to 255"),
        (["--nodes", "many"], "list of numbers"),
        (["--sources", "history"], "must have context"),
        (["--sources", "oracle"], "must have context"),
        (["--sources", "context,datastore="], "must have context"),
        (["--priors", "others"], "name at least two"),
    ],
)
def test_wrong_options_are_shown(tokenizer_path: Path, recording: Path, arguments: list[str], message: str) -> None:
    result = run(recording, "--tokenizer", tokenizer_path, *arguments)
    assert result.exit_code == 2
    assert message in result.output


def test_what_is_no_recording_or_tokenizer_is_shown(tokenizer_path: Path, tmp_path: Path, recording: Path) -> None:
    for text in ("{", "[]", '{"turns": [{"input": "one"}]}', '{"turns": [{"input": 1, "output": "one"}]}'):
        bad = tmp_path / "bad.jsonl"
        bad.write_text(text)
        result = run(bad, "--tokenizer", tokenizer_path)
        assert "Line 1 of" in str(result.exception)
        assert '{"input": text, "output": text}' in str(result.exception)
    for content in (b"", b'{"turns": []}'):
        bad.write_bytes(content)
        assert "no recorded answer" in str(run(bad, "--tokenizer", tokenizer_path).exception)
    bad.write_bytes(b"\xff{}")
    assert "not UTF-8 text (byte 0)" in str(run(bad, "--tokenizer", tokenizer_path).exception)
    bad.write_text("{}")
    assert "not a readable tokenizer" in str(run(recording, "--tokenizer", bad).exception)
    (tmp_path / "empty").mkdir()
    assert "No tokenizer" in str(run(recording, "--tokenizer", tmp_path / "empty").exception)


def test_the_name_of_a_task_does_not_control_the_terminal(tokenizer_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "hostile.jsonl"
    turns = [{"input": "one", "output": "two"}]
    path.write_text("\n".join(json.dumps({"task": task, "turns": turns}) for task in ("plain", "\x1b[2J")))
    result = run(path, "--tokenizer", tokenizer_path, "--nodes", "4")
    assert result.exit_code == 0, result.output
    assert r"\x1b[2J" in result.output
    assert "\x1b" not in result.output


def test_acceptance_never_counts_past_the_end_token() -> None:
    request = RecordedRequest("copy", [RecordedTurn([1, 2, 3, 4, 1, 2, 3], [4, 32000])] * 3)
    stats = replay([request], DraftConfig(max_nodes=9)).stats_by_task["copy"]
    # The end token is emitted by the target: never by the draft alone, so each answer takes two tokens in one step.
    assert stats.num_decoded_tokens == 6
    assert stats.acceptance_length <= 2


def test_datastore_of_the_answers_is_drafted_from(tokenizer_path: Path, recording: Path, tmp_path: Path) -> None:
    corpus, store = tmp_path / "corpus.txt", tmp_path / "corpus.ds"
    corpus.write_text("nine ten two four six " * 3)
    built = CliRunner().invoke(datastore, ["build", str(corpus), "-o", str(store), "--tokenizer", str(tokenizer_path)])
    assert built.exit_code == 0, built.output
    options = ("--tokenizer", tokenizer_path, "--nodes", "8", "--json")
    without, with_store = (
        json.loads(run(recording, *options, "--sources", sources).output)["files"][0]
        for sources in ("context", f"context,datastore={store}")
    )
    assert with_store["drafted_by_source"]["datastore"] > 0
    assert with_store["acceptance_length_by_task"]["new"]["8"] > without["acceptance_length_by_task"]["new"]["8"]


def test_an_answer_to_nothing_is_refused_before_compiled_drafting_looks_for_its_last_token(tmp_path: Path) -> None:
    (tmp_path / "file").write_text('{"turns": [{"input": "", "output": "a a"}]}\n')
    with pytest.raises(UserFileError, match=r"Line 1 .* begins with an empty input"):
        read_recording(tmp_path / "file", BYTE_LEVEL)
