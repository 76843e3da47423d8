"""Recorded answers are drafted for again, from each set of sources."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from reader_edge.bench.comparison import bench_decode
from reader_edge.bench.fixed_budget import AvailableSources
from reader_edge.bench.recording import RecordedRequest, RecordedTurn, read_recording
from reader_edge.bench.replay import replay
from reader_edge.bench.simulator import ReplayedRequest, Simulator
from reader_edge.cli import main
from reader_edge.commands.bench import bench
from reader_edge.commands.datastore import datastore
from reader_edge.prompts import EvalPrompt
from reader_edge_runtime import DraftConfig, Engine, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts
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
    assert "Line 1 of" in str(run(bad, "--tokenizer", tokenizer_path).exception)
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


class Notebook(ReplayedRequest):
    """A drafter's request that lists its calls."""

    def __init__(self, turn: RecordedTurn) -> None:
        self.calls: list[tuple[str, list[int]]] = [("begin", turn.prompt)]

    def extend(self, turn: RecordedTurn) -> None:
        self.calls.append(("extend", turn.prompt))

    def observe(self, token_ids: Sequence[int]) -> None:
        self.calls.append(("observe", list(token_ids)))

    def finish(self) -> None:
        self.calls.append(("finish", []))


def fork(request: ReplayedRequest, num_left: int) -> DraftTree:
    """Always drafts 5 6 7, and 8 beside the 6."""
    tree = DraftTree.chain([0, 5, 6, 7])
    tree.add(8, 1, "")
    return tree


REQUEST = RecordedRequest("task", [RecordedTurn([1, 2], [5, 8, 4, 9]), RecordedTurn([3], [6, 5])])


def test_a_draft_is_accepted_as_far_as_the_recording_has_it_and_one_token_more() -> None:
    simulator = Simulator(Notebook, fork)
    simulator.decode(REQUEST)
    assert isinstance(simulator.request, Notebook)
    assert simulator.request.calls == [
        ("begin", [1, 2]),
        ("observe", [5, 8, 4]),  # two nodes, one of them not on the first branch, and the target's own token
        ("observe", [9]),
        ("finish", []),
        ("extend", [3]),
        ("observe", [6]),
        ("observe", [5]),  # drafted, but the last token of an answer is the target's own
        ("finish", []),
    ]
    stats = simulator.stats_by_task["task"]
    assert (stats.num_steps, stats.num_accepted_tokens, stats.num_drafted_tokens) == (4, 2, 16)
    assert stats.steps_by_width == {5: 4}
    assert (len(simulator.draft_us), len(simulator.learn_us), len(simulator.prompt_us)) == (4, 6, 2)


def test_the_drafter_gets_how_much_of_the_answer_a_draft_may_hold() -> None:
    limits = []

    def draft(request: ReplayedRequest, num_left: int) -> DraftTree:
        limits.append(num_left)
        return DraftTree.chain([0])

    Simulator(Notebook, draft).decode(REQUEST)
    assert limits == [3, 2, 1, 0, 1, 0]


QUESTIONS = [EvalPrompt("# tar\n\n", "pages"), EvalPrompt("1 2 3 1 2 3 1 2", "numbers")]
CONFIG = GenerationConfig(max_tokens=24, ignores_eos=True)


@pytest.fixture
def small_store(engine: Engine, tmp_path: Path) -> str:
    builder = DatastoreBuilder(engine.tokenizer.fingerprint(), engine.package.manifest.vocab_size)
    builder.add(list(engine.generate(QUESTIONS[0].prompt, CONFIG).token_ids))
    builder.end_document()
    builder.write(tmp_path / "answers.ds", DatastoreFacts(("answers",), 0), lambda phase: None)
    return str(tmp_path / "answers.ds")


def test_each_set_drafts_from_its_sources_alone_and_emits_the_plain_tokens(engine: Engine, small_store: str) -> None:
    sets = AvailableSources.of_engine(engine, [small_store]).engines(engine)
    names = ["context", "context + datastore", "context + logits", "context + logits + datastore"]
    assert list(sets) == names
    assert sets[names[-1]] is engine
    shown: list[tuple[int, int]] = []
    bench = bench_decode(engine, QUESTIONS, CONFIG, 1, lambda done, total: shown.append((done, total)), sets)
    assert shown == [(done, 10) for done in range(1, 11)]
    assert list(bench.sets) == names
    assert bench.sets[names[-1]] == bench.comparisons
    for drafted_from, comparisons in bench.sets.items():
        for own, each in zip(bench.comparisons, comparisons, strict=True):
            assert each.is_identical
            assert each.plain is own.plain
            if drafted_from != names[-1]:
                used = {name for name, num in each.drafted.stats.drafted_by_source.items() if num}
                assert used <= set(drafted_from.split(" + "))
    of_pages = bench.sets["context + datastore"][0].drafted.stats
    assert of_pages.accepted_by_source["datastore"] > 0


def test_engines_of_a_set_keep_to_the_first_one_s_model_and_not_to_its_past(engine: Engine) -> None:
    first, last = AvailableSources.of_engine(engine).engines(engine).values()
    assert last is engine
    assert first.decoder.target is engine.decoder.target
    assert first.decoder.cache is not engine.decoder.cache
    assert first.decoder.planner is not engine.decoder.planner


def test_json_and_the_table_tell_every_set_by_category(runner: CliRunner, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"prompt": each.prompt, "category": each.category} for each in QUESTIONS]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    command = ["bench", "decode", "--prompts", str(prompts), "-n", "8", "--rounds", "1", "--each-set"]
    result = runner.invoke(main, [*command, "--json"])
    assert result.exit_code == 0, result.output
    fields = json.loads(result.stdout)
    sets = {each["sources"]: each for each in fields["source_sets"]}
    assert list(sets) == ["context", "context + logits"]
    assert sets["context + logits"]["speedup"] == fields["speedup"]
    assert sets["context + logits"]["categories"] == fields["categories"]
    assert all(list(each["categories"]) == ["pages", "numbers"] and each["identical"] for each in sets.values())
    result = runner.invoke(main, command)
    assert result.exit_code == 0, result.output
    assert "by what is drafted from" in result.stdout
    assert "context + logits" in result.stdout
