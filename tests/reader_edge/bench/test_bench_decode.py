"""`reader-edge bench decode`: what it tells, draws and refuses."""

import importlib.util
import json
from mmap import mmap
from pathlib import Path
from statistics import median

import pytest
from click.testing import CliRunner

from reader_edge.bench.comparison import Comparison, bench_decode
from reader_edge.cli import main
from reader_edge.prompts import EvalPrompt
from reader_edge.terminal.memory import peak_bytes, resident_bytes
from reader_edge_runtime import Engine, GenerationConfig

PROMPTS = ["# tar\n\n", "1 2 3 1 2 3 1 2"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    return path


def test_all_prompts_count_and_parts_add_up_to_the_wall_clock(engine: Engine) -> None:
    shown: list[tuple[int, int]] = []
    config = GenerationConfig(max_tokens=24, ignores_eos=True)
    bench = bench_decode(
        engine, list(map(EvalPrompt, PROMPTS)), config, 2, lambda done, total: shown.append((done, total))
    )
    assert shown == [(done, 8) for done in range(1, 9)]
    overall = bench.overall
    assert overall.is_identical
    assert overall.plain.stats.num_decoded_tokens == overall.drafted.stats.num_decoded_tokens == 2 * 2 * 23
    for way in (overall.plain, overall.drafted):
        assert all(seconds > 0 for seconds in way.parts_s.values())
        wall_s = sum(answer.decode_s for rounds in way.rounds for answer in rounds)
        assert sum(way.parts_s.values()) * way.stats.num_steps == pytest.approx(wall_s)
    assert [c.plain.rounds[0] for c in bench.comparisons] == list(overall.plain.rounds)
    assert overall.speedup == pytest.approx(overall.drafted.tokens_per_s / overall.plain.tokens_per_s)
    first = bench.comparisons[0]
    whole_s = [median(a.first_token_s + a.decode_s for a in way.rounds[0]) for way in (first.plain, first.drafted)]
    assert first.answer_speedup == pytest.approx(whole_s[0] / whole_s[1])
    assert overall.answer_speedup == pytest.approx(median(each.answer_speedup for each in bench.comparisons))
    assert bench.peak_bytes > bench.package_bytes > 8e6
    assert bench.kv_bytes == engine.decoder.cache.num_bytes


@pytest.mark.long
def test_json_and_a_plot(runner: CliRunner, prompts: Path, tmp_path: Path) -> None:
    plot = tmp_path / "speed.svg"
    arguments = ["bench", "decode", "--prompts", str(prompts), "-n", "8", "--rounds", "1", "--plot", str(plot)]
    result = runner.invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    fields = json.loads(result.stdout)
    assert fields["identical"] is True
    assert [each["prompt"] for each in fields["prompts"]] == PROMPTS
    assert all(each["tokens"] == 8 for each in fields["prompts"])
    parts = {"draft", "forward", "verify", "commit", "learn", "other"}
    assert set(fields["plain"]["step_s_by_part"]) == set(fields["drafted"]["step_s_by_part"]) == parts
    assert fields["plain"]["acceptance_length"] == 1
    assert "<svg" in plot.read_text()
    assert [path.name for path in tmp_path.iterdir() if "partial" in path.name] == []


def test_the_table_tells_speeds_parts_and_memory(runner: CliRunner, prompts: Path) -> None:
    result = runner.invoke(main, ["bench", "decode", "--prompts", str(prompts), "-n", "8", "--rounds", "1"])
    assert result.exit_code == 0, result.output
    for text in ("# tar", "acceptance length", "identical", "time to first token", "commit", "Peak memory"):
        assert text in result.stdout


def test_different_tokens_exit_1(runner: CliRunner, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comparison, "is_identical", property(lambda _: False))
    result = runner.invoke(main, ["bench", "decode", "--prompts", str(prompts), "-n", "4", "--rounds", "1"])
    assert result.exit_code == 1
    assert "DIFFERENT" in result.stdout
    assert "emitted different tokens" in result.stderr


@pytest.mark.parametrize(
    ("plot", "sentence"),
    [("speed.gif", "names no kind of plot"), ("no/such/speed.png", "There is no folder")],
)
def test_a_plot_that_cannot_be_written_is_shown_before_the_work(
    runner: CliRunner, tmp_path: Path, plot: str, sentence: str
) -> None:
    result = runner.invoke(main, ["bench", "decode", "--plot", str(tmp_path / plot)])
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_without_matplotlib_a_plot_is_one_sentence(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reader_edge.bench.plot.find_spec", lambda name: None)
    assert importlib.util.find_spec("matplotlib") is not None
    result = runner.invoke(main, ["bench", "decode", "--plot", str(tmp_path / "speed.png")])
    assert result.exit_code == 1
    assert result.stderr == "Error: Plots need matplotlib: pip install 'reader-edge[plot]'.\n"


def test_memory_is_seen_to_grow() -> None:
    before = resident_bytes()
    num_bytes = 50_000_000
    with mmap(-1, num_bytes) as held:  # pages of its own, whatever the process has let go of
        held.write(bytes(num_bytes))
        after = resident_bytes()
    assert after - before > 0.9 * num_bytes
    assert peak_bytes() - before > 0.9 * num_bytes
