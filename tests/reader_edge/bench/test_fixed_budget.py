"""Acceptance at fixed numbers of drafted nodes, and that a replay of recorded answers tells the same."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.bench.answer_recorder import TopTokenRecorder, record_answers
from reader_edge.bench.fixed_budget import AvailableSources, BudgetRun, answer_at, bench_budgets
from reader_edge.bench.recording import RecordedLine, RecordedRequest, TextTurn, TokenTurn, read_recording
from reader_edge.bench.replay import replay
from reader_edge.bench.simulator import MAX_DEPTH
from reader_edge.cli import main
from reader_edge.prompts import EvalPrompt
from reader_edge_runtime import DraftConfig, Engine, GenerationConfig, GenerationStats
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.drafter import RequestContext
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter, RetrievalRequest
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts
from reader_edge_runtime.errors import UserFileError
from tests.conftest import make_as_new
from tests.reader_edge.package_copy import PackageCopy
from tests.wrong_fields import assert_each_is_named

BUDGETS = (1, 4, 16)
CONFIG = GenerationConfig(max_tokens=40)


@pytest.fixture(scope="module")
def questions(held_out_texts: list[str]) -> list[EvalPrompt]:
    texts = [text[:300] for text in held_out_texts[:3]]
    return [EvalPrompt(text, category) for text, category in zip([*texts, texts[0]], "abab", strict=True)]


@pytest.fixture(scope="module")
def recorded(shared_engine: Engine, questions: list[EvalPrompt]) -> str:
    make_as_new(shared_engine)
    return "\n".join(record_answers(shared_engine, questions, CONFIG))


@pytest.fixture
def recording(recorded: str, tmp_path: Path) -> Path:
    path = tmp_path / "answers.jsonl"
    path.write_text(recorded, encoding="utf-8")
    return path


def run_of(runs: Sequence[BudgetRun], sources: str, num_nodes: int) -> BudgetRun:
    (run,) = (each for each in runs if (each.sources, each.num_nodes) == (sources, num_nodes))
    return run


def counts(stats: GenerationStats) -> tuple[int, int, int]:
    return stats.num_steps, stats.num_accepted_tokens, stats.num_drafted_tokens


def test_a_recording_has_ids_of_a_vocabulary_that_is_padded(recording: Path, engine: Engine) -> None:
    padded = engine.tokenizer.vocab_size + 5
    shown = [json.loads(line) for line in recording.read_text(encoding="utf-8").splitlines()]
    assert shown[0]["vocab_size"] == engine.package.manifest.vocab_size
    shown[0]["turns"][0]["top_ids"][0][-1] = padded - 1

    def read(**facts: object) -> list[RecordedRequest]:
        recording.write_text("\n".join(json.dumps({**line, **facts}) for line in shown), encoding="utf-8")
        return read_recording(recording, engine.tokenizer)

    successors = read(vocab_size=padded)[0].turns[0].successors
    assert successors is not None
    assert successors.top_ids.max() == padded - 1
    for vocab_size in (padded - 1, engine.tokenizer.vocab_size - 1, 1 << 40, "many", None):
        with pytest.raises(UserFileError, match=r"Line 1 of .* has (an unusable vocab_size|the token id \d+ of a)"):
            read(vocab_size=vocab_size)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"positions": [2, 1]},
        {"positions": [1, 1]},
        {"positions": [1, 3]},
        {"top_ids": [[1], [2]]},
        {"top_ids": [[1], [2, 3]]},
    ],
    ids=str,
)
def test_a_recording_whose_rows_do_not_fit_is_refused(
    spoilt: dict[str, object], tmp_path: Path, engine: Engine
) -> None:
    sound = {"input_ids": [5, 6], "output_ids": [7], "positions": [0, 1], "top_ids": [[7, 8], [8, 7]]}
    sound |= {"top_logits": [[2.0, 1.0], [2.0, 1.0]]}
    path = tmp_path / "answers.jsonl"

    def read(turn: dict[str, object]) -> list[RecordedRequest]:
        line = {"task": "a", "tokenizer": engine.tokenizer.fingerprint(), "turns": [turn]}
        path.write_text(json.dumps(line), encoding="utf-8")
        return read_recording(path, engine.tokenizer)

    assert read(sound)[0].turns[0].output == [7]
    with pytest.raises(UserFileError, match=r"Line 1 of .* has successors that do not fit its tokens: record it again"):
        read({**sound, **spoilt})
    assert_each_is_named(TokenTurn, sound)


def test_whatever_is_wrong_with_a_recorded_line_is_named() -> None:
    right = {"task": "a", "tokenizer": "b", "vocab_size": 5}
    assert_each_is_named(RecordedLine, {**right, "turns": []})
    assert_each_is_named(TextTurn, {"input": "a", "output": "b"})


def test_a_recording_of_a_text_that_cannot_be_encoded_tells_its_line(tmp_path: Path, engine: Engine) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(json.dumps({"turns": [{"input": "a\ud800", "output": "b"}]}), encoding="utf-8")
    with pytest.raises(UserFileError, match=r"Line 1 of .*: "):
        read_recording(path, engine.tokenizer)


def test_a_pass_that_nobody_scored_is_not_recorded() -> None:
    recorder = TopTokenRecorder()
    request = recorder.begin(RequestContext([1, 2]))
    request.observe(None)
    assert recorder.positions == []


@pytest.mark.long
def test_answers_are_plain_and_every_step_drafts_what_it_may(engine: Engine, questions: list[EvalPrompt]) -> None:
    shown: list[tuple[int, int]] = []
    runs = bench_budgets(
        engine,
        questions,
        CONFIG,
        BUDGETS,
        AvailableSources.of_engine(engine),
        lambda done, total: shown.append((done, total)),
    )
    assert shown == [(done, 48) for done in range(1, 49)]
    plain = tuple(engine.generate(each.prompt, CONFIG).token_ids for each in questions)
    assert [run.answers for run in runs] == [plain] * 12
    assert [(run.sources, run.is_warm) for run in runs[::3]] == [
        ("context", False),
        ("context + logits", False),
        ("context + history", True),
        ("context + history + logits", True),
    ]
    for run in runs:
        total = GenerationStats.total(run.stats)
        assert total.num_backoff_steps == total.num_wasted_drafts == 0
        assert max(total.steps_by_width) == run.num_nodes + 1
        assert set(total.drafted_by_source) <= set(run.sources.split(" + "))
    # The last question repeats the first: who remembers knows its answer.
    again, fresh = run_of(runs, "context + history", 16).stats[-1], run_of(runs, "context", 16).stats[-1]
    assert again.acceptance_length > 2 * fresh.acceptance_length
    first, last = run_of(runs, "context + logits", 4).stats[0], run_of(runs, "context + logits", 4).stats[-1]
    assert counts(first) == counts(last)


def test_datastores_have_sets_of_their_own(engine: Engine, questions: list[EvalPrompt], tmp_path: Path) -> None:
    builder = DatastoreBuilder(engine.tokenizer.fingerprint(), engine.package.manifest.vocab_size)
    builder.add(list(engine.generate(questions[0].prompt, CONFIG).token_ids))
    builder.end_document()
    builder.write(tmp_path / "answers.ds", DatastoreFacts(("answers",), 0), lambda phase: None)
    available = AvailableSources.of_engine(engine, [str(tmp_path / "answers.ds")])
    runs = bench_budgets(engine, questions[:1], CONFIG, [8], available)
    names = ["context", "context + datastore", "context + logits", "context + logits + datastore"]
    assert [run.sources for run in runs if not run.is_warm] == names
    assert len([run for run in runs if run.is_warm]) == 4
    with_it, without = run_of(runs, "context + datastore", 8).stats[0], run_of(runs, "context", 8).stats[0]
    assert with_it.accepted_by_source["datastore"] > 0
    assert with_it.acceptance_length > without.acceptance_length


@pytest.mark.long
@pytest.mark.parametrize("num_nodes", BUDGETS)
def test_a_replay_counts_as_decoding(
    engine: Engine, questions: list[EvalPrompt], recording: Path, num_nodes: int
) -> None:
    runs = bench_budgets(engine, questions, CONFIG, [num_nodes], AvailableSources.of_engine(engine))
    requests = read_recording(recording, engine.tokenizer)
    config = DraftConfig(max_nodes=num_nodes + 1, max_depth=MAX_DEPTH, is_logits_used=False)
    warm = run_of(runs, "context + history", num_nodes)
    assert counts(replay(requests, config).stats) == counts(GenerationStats.total(warm.stats))
    for request, stats in zip(requests, run_of(runs, "context", num_nodes).stats, strict=True):
        assert counts(replay([request], config).stats) == counts(stats)


class PathDrafter(RetrievalDrafter):
    """Hears of accepted drafts only, as a recording does."""

    def begin(self, context: RequestContext) -> RetrievalRequest:
        return PathRequest(self, context)


class PathRequest(RetrievalRequest):
    def observe(self, scored: ScoredTree | None) -> None:
        if scored is None or scored.root < self.num_prompt_tokens:  # the prompt's
            super().observe(scored)
            return
        path, text = [0], self.token_ids[scored.root + 1 : -1]  # without the pending token
        while len(path) <= len(text) and (child := scored.tree.child(path[-1], text[len(path) - 1])) >= 0:
            path.append(child)
        assert len(path) == len(text) + 1
        chain = DraftTree.chain([scored.tree.token_ids[node] for node in path])
        scores = scored.top_ids[path], scored.top_logits[path]
        super().observe(ScoredTree(chain, range(len(path)), scored.root, *scores, vocab_size=1 << 31))


def test_a_replay_with_logits_sees_accepted_drafts(
    engine: Engine, questions: list[EvalPrompt], recording: Path
) -> None:
    requests = read_recording(recording, engine.tokenizer)
    for num_nodes in BUDGETS:
        config = DraftConfig(max_nodes=num_nodes + 1, max_depth=MAX_DEPTH)
        drafter = PathDrafter(config).wait()
        decoded = [answer_at(engine, question, CONFIG, drafter, num_nodes).stats for question in questions]
        replayed = replay(requests, config).stats
        assert counts(replayed) == counts(GenerationStats.total(decoded))
        assert replayed.drafted_by_source["logits"] > 0


def test_a_recording_has_answers_and_successors(engine: Engine, questions: list[EvalPrompt], recording: Path) -> None:
    requests = read_recording(recording, engine.tokenizer)
    assert [request.task for request in requests] == list("abab")
    for request, question in zip(requests, questions, strict=True):
        (turn,) = request.turns
        assert turn.prompt == engine.encode_prompt(question.prompt)
        assert tuple(turn.output) == engine.generate(question.prompt, CONFIG).token_ids
        assert turn.successors is not None
        first = len(turn.prompt) - 1  # after which the first token of the answer was chosen
        is_answer = turn.successors.positions >= first
        assert turn.successors.positions[is_answer].tolist() == list(range(first, first + len(turn.output)))
        assert turn.successors.top_ids[is_answer, 0].tolist() == turn.output
        assert not is_answer[0]
    texts = [json.loads(line)["turns"][0] for line in recording.read_text(encoding="utf-8").split("\n")]
    assert [text["input"] for text in texts] == [question.text for question in questions]
    assert texts[0]["output"] == engine.tokenizer.decode(requests[0].turns[0].output)


def test_with_another_tokenizer_a_recording_is_its_texts(engine: Engine, recording: Path) -> None:
    record = json.loads(recording.read_text(encoding="utf-8").split("\n")[0])
    recording.write_text(json.dumps({**record, "tokenizer": "another"}))
    (request,) = read_recording(recording, engine.tokenizer)
    assert request.turns[0].successors is None
    assert request.turns[0].output[-1] == 32000


@pytest.mark.long
def test_commands_record_and_replay_by_category(runner: CliRunner, chat_package: PackageCopy, tmp_path: Path) -> None:
    prompts, answers = tmp_path / "prompts.jsonl", tmp_path / "answers.jsonl"
    lines = [
        {"turns": ["# tar", "# tar"], "category": "pages"},
        {"messages": [{"role": "user", "content": "1 2 3 1 2 3 1 2"}], "category": "numbers"},
    ]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    common = [str(chat_package.folder), "--prompts", str(prompts), "-n", "24"]
    answers.touch()
    refused = runner.invoke(main, ["bench", "record", *common, "-o", str(answers)])
    assert refused.exit_code == 2
    assert "exists: add --force to replace it." in refused.stderr
    result = runner.invoke(main, ["bench", "record", *common, "--force", "-o", str(answers)])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"3 answers (greedy) in '{answers}'.\n"

    measured = ["bench", "decode", *common, "--rounds", "1", "--nodes", "4,8"]
    result = runner.invoke(main, [*measured, "--json"])
    assert result.exit_code == 0, result.output
    fields = json.loads(result.stdout)
    assert [each["category"] for each in fields["prompts"]] == ["pages", "pages", "numbers"]
    assert fields["categories"]["pages"]["tokens"] == sum(each["tokens"] for each in fields["prompts"][:2])
    assert len(fields["fixed_nodes"]) == 8
    decoded = {(each["sources"], each["nodes"]): each for each in fields["fixed_nodes"]}

    replayed = ["bench", "replay", str(answers), "--tokenizer", str(chat_package.folder), "--nodes", "4,8", "--json"]
    (file,) = json.loads(runner.invoke(main, replayed).stdout)["files"]
    warm = decoded["context + history", 8]
    assert file["acceptance_length"]["8"] == warm["acceptance_length"]
    assert file["acceptance_length_by_task"]["numbers"]["8"] == warm["categories"]["numbers"]["acceptance_length"]
    result = runner.invoke(main, [*replayed, "--sources", "context,history,logits"])
    assert json.loads(result.stdout)["files"][0]["drafted_by_source"]["logits"] > 0

    result = runner.invoke(main, [*measured[:-1], "4,8,4"])
    for text in ("pages", "numbers", "Acceptance length by drafted nodes", "context + history + logits", "warm"):
        assert text in result.stdout
    assert "# tar" not in result.stdout


def test_logits_that_were_not_recorded_are_one_sentence(runner: CliRunner, demo_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"turns": [{"input": "# tar", "output": "# git"}]}))
    arguments = ["bench", "replay", str(path), "--sources", "context,logits"]
    result = runner.invoke(main, [*arguments, "--tokenizer", str(demo_folder)])
    assert result.exit_code == 2
    assert "has no likely successors" in result.stderr
