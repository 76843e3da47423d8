"""`reader-edge bench replay --model`: recorded tokens through real passes, everything else the decoder's own."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reader_edge.bench.recording import RecordedRequest, RecordedTurn
from reader_edge.bench.replay.model_replay import time_stretches
from reader_edge.bench.replay.rehearsal import RehearsalDrafter, Rehearser, Stretch, StretchTimes, choose_stretches
from reader_edge.cli import main
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.target import Pass
from tests.fake_target import FakeTarget, make_manifest


class BlindTarget(FakeTarget):
    """Has no opinion, and minds no made-up rows."""

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        shape = (len(wanted.trees), max(map(len, wanted.rows)), self.manifest.top_k)
        return ForwardResult(np.zeros(shape, np.int64), np.zeros(shape, np.float32))


COST = PassCost(1, (64, 128), (1, 8, 64), np.array([[1.0, 1.1, 2.0]] * 2))


def replay(requests: list[RecordedRequest], stretches: list[Stretch], max_tokens: int = 16) -> list[StretchTimes]:
    target = BlindTarget(make_manifest(64, max_context=400))
    rehearser = Rehearser(target, COST, RehearsalDrafter(True, None), max_tokens)
    return list(time_stretches(rehearser, requests, stretches))


def recorded(task: str, *turns: tuple[list[int], list[int]]) -> RecordedRequest:
    return RecordedRequest(task, [RecordedTurn(prompt, output) for prompt, output in turns])


def repeating(num_tokens: int, period: int = 9) -> list[int]:
    return [1 + i % period for i in range(num_tokens)]


def test_the_recording_decides_what_is_accepted() -> None:
    varied = np.random.default_rng(1).integers(0, 64, 100).tolist()
    requests = [recorded("copy", ([0, 1, 2], repeating(100))), recorded("new", ([3], varied))]
    copied, new = replay(requests, [Stretch(0, 0, 48), Stretch(1, 0, 48)])
    assert (copied.task, copied.past, new.past) == ("copy", 51, 49)
    assert copied.plain.num_decoded_tokens == new.plain.num_decoded_tokens == 16
    assert copied.plain.num_drafted_tokens == 0
    assert copied.drafted.acceptance_length > 4 > 2 > new.drafted.acceptance_length
    assert copied.drafted.num_drafted_tokens > 0
    assert copied.drafted.num_decoded_tokens >= 16
    assert min(copied.plain_s, copied.drafted_s) > 0


def test_the_history_learns_what_comes_before_but_nothing_of_the_stretch_itself() -> None:
    answer = np.random.default_rng(2).permutation(60).tolist()
    requests = [recorded("same", ([61], answer)), recorded("same", ([62], answer))]
    first, again = replay(requests, [Stretch(0, 0, 16), Stretch(1, 0, 16)])
    assert first.drafted.num_accepted_tokens < 3  # were it learned from the plain way, all would be accepted
    assert again.drafted.accepted_by_source["history"] > 10


def test_an_earlier_turn_is_context_and_history() -> None:
    answer = np.random.default_rng(3).permutation(60).tolist()
    (again,) = replay([recorded("chat", ([61], answer), ([62], answer))], [Stretch(0, 1, 0)])
    assert again.past == 1 + 60 + 1
    assert again.drafted.num_accepted_tokens > 10


def test_stretches_spread_evenly_and_keep_to_the_context() -> None:
    requests = [recorded("", ([1] * 10, [2] * 100)) for _ in range(10)]
    stretches, num_left_out = choose_stretches(requests, 5, 25, max_context=1000)
    assert num_left_out == 0
    assert [stretch.request for stretch in stretches] == [1, 3, 5, 7, 9]
    every, _ = choose_stretches(requests, 1000, 25, max_context=1000)
    assert every == [Stretch(r, 0, start) for r in range(10) for start in (0, 25, 50, 75)]
    held, num_left_out = choose_stretches(requests, 1000, 25, max_context=10 + 25 + 25 + 64)
    assert {stretch.start for stretch in held} == {0, 25}
    assert num_left_out == 20


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "pages.jsonl"
    text = "- Create an archive:\n\n`tar cf target.tar file`\n\n" * 6
    requests = [{"task": "page", "turns": [{"input": "# tar\n\n", "output": text}]}] * 2
    path.write_text("\n".join(json.dumps(request) for request in requests))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", "replay", *map(str, arguments)])


def test_json_has_every_figure_and_says_that_it_is_a_replay(recording: Path, demo_folder: Path) -> None:
    result = run(recording, "--model", demo_folder, "--stretches", "2", "-n", "16", "--priors", "none", "--json")
    assert result.exit_code == 0, result.output
    fields = json.loads(result.stdout)
    assert fields["note"].startswith("A replay:")
    (file,) = fields["files"]
    assert (file["file"], len(file["stretches"])) == ("pages", 2)
    assert file["speedup"] == pytest.approx(file["drafted_tokens_per_s"] / file["plain_tokens_per_s"])
    assert file["speedup_by_task"].keys() == {"page"}
    assert file["acceptance_length"] >= 1  # more where passes, as they are timed here, let drafting pay
    assert file["speedup_error"] >= 0


def test_the_table_has_a_row_a_file_and_their_mean(recording: Path, demo_folder: Path) -> None:
    result = run(recording, recording, "--model", demo_folder, "--stretches", "1", "-n", "8")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("pages") == 2
    for text in ("speed-up", "mean", "A replay:"):
        assert text in result.stdout


def test_tokens_the_model_does_not_have_are_refused(recording: Path, demo_folder: Path) -> None:
    result = run(recording, "--model", demo_folder, "--tokenizer", demo_folder)
    assert result.exit_code == 2
    assert "token id 32000" in result.stderr
    assert "leave --tokenizer out" in result.stderr


def test_answers_beyond_the_context_are_told(tmp_path: Path, demo_folder: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"turns": [{"input": "1 2 3 4 5 " * 500, "output": "six"}]}))
    result = run(path, "--model", demo_folder)
    assert result.exit_code == 1
    assert "fits this model's context of 2048 tokens" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--tokenizer is needed"),
        (["--tokenizer", "t", "--stretches", "3"], "need --model"),
        (["--model", "m", "--nodes", "8"], "leave --nodes out"),
    ],
)
def test_options_of_the_other_replay_exit_2(recording: Path, arguments: list[str], sentence: str) -> None:
    result = run(recording, *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
