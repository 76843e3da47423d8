"""What benchmarks of decoding and of costs measure, compare, report and plot."""

import importlib.util
import json
import math
from mmap import mmap
from pathlib import Path
from statistics import median

import matplotlib.font_manager
import pytest
from click.testing import CliRunner, Result
from matplotlib.text import Text

from reader_edge.bench import plot
from reader_edge.bench.comparison import ROUNDS, Comparison, bench_decode, compare
from reader_edge.bench.comparison_report import _label
from reader_edge.bench.plot import new_figure, save_plot
from reader_edge.cli import main
from reader_edge.prompts import EvalPrompt
from reader_edge.terminal.memory import peak_bytes, resident_bytes
from reader_edge_runtime import Engine, GenerationConfig
from reader_edge_runtime.measuring import pass_cost

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
    ("plot", "sentence"), [("speed.gif", "names no kind of plot"), ("no/such/speed.png", "There is no folder")]
)
def test_a_plot_without_a_place_is_refused_first(runner: CliRunner, tmp_path: Path, plot: str, sentence: str) -> None:
    result = runner.invoke(main, ["bench", "decode", "--plot", str(tmp_path / plot)])
    assert result.exit_code == 2
    assert sentence in result.stderr


def test_without_matplotlib_plots_are_refused(
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


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pass_cost, "_MOST_SPREAD", math.inf)  # tests run beside others


def cost(runner: CliRunner, *arguments: str) -> Result:
    result = runner.invoke(main, ["bench", "cost", "--threads", "1", *arguments])
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.long
def test_what_was_measured_is_shown_again_until_it_is_to_be_redone(runner: CliRunner, own_cache: None) -> None:
    first, again, redone = (json.loads(cost(runner, *more, "--json").stdout) for more in ((), (), ("--redo",)))
    assert first == again != redone
    assert len(first["seconds"]) == len(first["pasts"])
    assert all(len(each) == len(first["widths"]) for each in first["seconds"])
    assert all(second > 0 for each in first["seconds"] for second in each)


def test_a_table_has_a_line_for_each_number_of_nodes(runner: CliRunner, own_cache: None) -> None:
    shown = cost(runner, "--batch", "2").output
    measured = json.loads(cost(runner, "--batch", "2", "--json").stdout)
    assert "2 in a batch" in shown
    lines = [line.replace("│", " ").split()[:1] for line in shown.splitlines()]
    assert [line for line in lines if line and line[0].isdigit()] == [[str(width)] for width in measured["widths"]]


CONFIG = GenerationConfig(max_tokens=24, ignores_eos=True)


def test_both_ways_emit_the_same_tokens(engine: Engine) -> None:
    comparison = compare(engine, "# tar\n\n", CONFIG)
    assert comparison.is_identical
    assert len(comparison.plain.answers) == len(comparison.drafted.answers) == ROUNDS
    assert all(result.stats.num_drafted_tokens == 0 for result in comparison.plain.answers)


def test_an_answer_is_the_engine_s_own_and_its_times_hold_its_steps(engine: Engine) -> None:
    comparison = compare(engine, "# tar\n\n", CONFIG, num_rounds=1)
    engine.forget()
    result = engine.generate("# tar\n\n", CONFIG)
    for answer in (*comparison.plain.answers, *comparison.drafted.answers):
        assert (answer.text, answer.token_ids) == (result.text, result.token_ids)
        assert answer.finish_reason == result.finish_reason
        assert answer.first_token_s >= answer.stats.prefill_s > 0
        assert answer.decode_s >= answer.stats.decode_s > 0


def test_no_round_learns_from_another(engine: Engine) -> None:
    comparison = compare(engine, "1 2 3 1 2 3 1 2", CONFIG)
    for result in (*comparison.plain.answers, *comparison.drafted.answers):
        assert result.stats.num_reused_tokens == 0
        assert result.stats.drafted_by_source["history"] == 0


def test_the_order_alternates(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    order = []
    stream = Engine.stream

    def watch(self: Engine, prompt: str, config: GenerationConfig) -> object:
        order.append(config.is_drafted)
        return stream(self, prompt, config)

    monkeypatch.setattr(Engine, "stream", watch)
    shown: list[tuple[int, int]] = []
    compare(engine, "# tar", CONFIG, on_progress=lambda done, total: shown.append((done, total)))
    assert order == [False, True, True, False, False, True]
    assert shown[-1] == (6, 6)


def test_a_single_token_leaves_nothing_to_speed_up(engine: Engine) -> None:
    assert compare(engine, "# tar", GenerationConfig(max_tokens=1)).speedup == 1


SCRIPTS = [
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u0394\u03b5\u03af\u03be\u03b5",
    "\u4f60\u597d world",
    "\u3053\u3093\u306b\u3061\u306f",
    "\u05e9\u05dc\u05d5\u05dd",
    "\U0001f600",
]


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_plot_in_any_script_is_drawn(tmp_path: Path, suffix: str) -> None:
    figure = new_figure(6, 4)
    axes = figure.subplots()
    axes.barh(range(len(SCRIPTS)), range(len(SCRIPTS)))
    axes.set_yticks(range(len(SCRIPTS)), [_label(each) for each in SCRIPTS])
    save_plot(figure, tmp_path / f"plot{suffix}")  # a glyph that is missing would warn
    shown = [each.get_text() for each in axes.get_yticklabels()]
    assert not any("?" in each for each in shown)
    assert shown[:2] == SCRIPTS[:2]  # which matplotlib's own font has
    assert shown[2].endswith(" world")


def test_what_no_font_has_is_an_ellipsis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matplotlib.font_manager.fontManager, "ttflist", [])
    plot._fonts_with.cache_clear()
    figure = new_figure(3, 2)
    text = figure.text(0.5, 0.5, "\u4f60\u597d, world")
    save_plot(figure, tmp_path / "plot.png")
    plot._fonts_with.cache_clear()
    assert isinstance(text, Text)
    assert text.get_text() == "\u2026, world"
