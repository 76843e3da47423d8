"""`reader-edge export`: the package's path on standard output, the rest beside it, nothing left behind."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge_export import pipeline
from reader_edge_export.options import ExportOptions, ExportReport
from reader_edge_export.package.package_folder import new_package
from reader_edge_runtime.errors import InstallationError, NoLaterLayersError


@pytest.fixture(autouse=True)
def _fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of the hub are here already, each in a folder that bears its name."""
    monkeypatch.setattr("reader_edge.models.model_source.pulled", Path)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, Path, ExportOptions]]:
    """Exports that were requested, none of them done."""
    calls: list[tuple[str | None, Path, ExportOptions]] = []

    def export_model(
        source: Path,
        out: Path,
        options: ExportOptions,
        on_phase: Callable[[str], None],
        name: str | None,
        on_message: Callable[[str], None],
        on_share: object,
    ) -> ExportReport:
        on_message("Going on.")
        on_phase("tracing")
        assert source == Path(name or "")
        calls.append((name, out, options))
        return ExportReport(
            out,
            7_900_000,
            options.precision,
            options.attention,
            {
                "mean_kl_nats": 0.0123,
                "top1_agreement": 0.987,
                "source_weight_bits": 4,
                "another_check": 5,
                "chats_compared": 35,
            },
            {"tracing": 2},
            warning="it strays" if options.precision == "int4" else None,
            kept_types={"Q4_K": 70, "Q6_K": 15} if options.precision == "keep" else {},
            other_types={"IQ4_NL": 2} if options.precision == "keep" else {},
            adapted_chats=("tools", "names"),
            different_chats=("a question",),
            ends=("<|im_end|>", "\n") if options.precision == "int4" else (),
        )

    monkeypatch.setattr(pipeline, "export_model", export_model)
    return calls


def test_standard_output_holds_the_path_alone(
    runner: CliRunner, sent: list[tuple[str | None, Path, ExportOptions]], tmp_path: Path
) -> None:
    result = runner.invoke(main, ["export", "some/model", str(tmp_path / "out")])
    assert result.stdout == f"{tmp_path / 'out'}\n"
    for words in ("Exporting some/model: tracing", "Going on.", "7.9 MB", "2.0 s"):
        assert words in result.stderr
    assert "Warning" not in result.stderr
    assert sent == [("some/model", tmp_path / "out", ExportOptions())]


def test_figures_of_the_checks_are_words(runner: CliRunner, sent: list[tuple[str, Path, ExportOptions]]) -> None:
    shown = runner.invoke(main, ["export", "some/model", "out"]).stderr
    rows = dict(line.strip("│ ").split("│") for line in shown.splitlines() if line.count("│") == 3)
    figures = {name.strip(): value.strip() for name, value in rows.items()}
    assert figures["KL divergence, mean"] == "0.012 nats a token"
    assert figures["top-1 agreement"] == "98.7 % of the tokens"
    assert figures["conversations compared"] == "35, with transformers' own rendering"
    assert figures["adapted to the template"].startswith("tools; names (nothing to do: the template would drop a part")
    assert figures["unlike transformers"].startswith("a question (not on purpose: look at such prompts")
    assert figures["unlike transformers"].endswith("before you rely on their answers)")
    assert "refused by transformers" not in figures
    assert figures["measured against"] == "the source's own 4-bit weights, in fp32"
    assert figures["another check"] == "5"


def test_end_tokens_are_named(runner: CliRunner, sent: list[tuple[str | None, Path, ExportOptions]]) -> None:
    rows = runner.invoke(main, ["export", "some/model", "out", "--precision", "int4"]).stderr
    assert re.search(r"answers end at +│ <\|im_end\|>, \\n +│", rows)
    rows = runner.invoke(main, ["export", "some/model", "out"]).stderr
    assert re.search(r"answers end at +│ their limit of tokens alone", rows)


def test_what_stays_as_in_the_file_is_shown(runner: CliRunner, sent: list[tuple[str, Path, ExportOptions]]) -> None:
    shown = runner.invoke(main, ["export", "some/model", "out", "--precision", "keep"]).stderr
    assert "kept as in the file: 70 Q4_K, 15 Q6_K; as int8: 2 IQ4_NL" in shown
    assert "kept" not in runner.invoke(main, ["export", "some/model", "out", "--precision", "int8"]).stderr


def test_a_warning_goes_to_standard_error(runner: CliRunner, sent: list[tuple[str, Path, ExportOptions]]) -> None:
    result = runner.invoke(main, ["export", "some/model", "out", "--precision", "int4"])
    assert (result.exit_code, result.stdout) == (0, "out\n")
    assert result.stderr.endswith("Warning: it strays\n")
    assert "'reader-edge warm'" in result.stderr  # what may come next


def test_options_reach_the_exporter(
    runner: CliRunner, sent: list[tuple[str | None, Path, ExportOptions]], tmp_path: Path
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("words")
    options = f"--precision int4 --attention fast --kv fp32 --max-context 128 --calibration-text {text} --force".split()
    options += ["--chat-template", str(text)]
    assert runner.invoke(main, ["export", "some/model", "out", *options]).exit_code == 0
    assert sent[0][2] == ExportOptions(
        "int4", "fast", max_context=128, force=True, calibration_text=text, kv="fp32", chat_template=text
    )


@pytest.mark.parametrize(
    ("name", "words"), [("Qwen3-4B", "`hf download z-lab/"), ("tiny", "`reader-edge train-drafter`")]
)
def test_where_auto_finds_nothing_the_only_line_has_the_remedy(
    name: str, words: str, runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def export_model(*given: object, **named: object) -> None:
        raise NoLaterLayersError("none")

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(pipeline, "export_model", export_model)
    (tmp_path / name).mkdir()
    result = runner.invoke(main, ["export", str(tmp_path / name), str(tmp_path / "out"), "--speculator", "auto"])
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert words in line


def test_a_context_that_is_too_short_is_one_sentence(runner: CliRunner) -> None:
    result = runner.invoke(main, ["export", "some/model", "out", "--max-context", "2"])
    assert result.exit_code == 2
    assert "Invalid value for '--max-context': 2 is not in the range x>=16." in result.stderr


def test_a_merged_adapter_has_no_name(runner: CliRunner) -> None:
    result = runner.invoke(main, ["export", "some/model", "out", "--adapter", "pirate=adapters/pirate"])
    assert result.exit_code == 2
    assert "'pirate=adapters/pirate' does not exist. A merged adapter has no name" in result.stderr


def test_a_target_in_the_way_is_refused_first(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("reader_edge.models.model_source.pulled", None)  # calling it would fail
    result = runner.invoke(main, ["export", "some/model", str(tmp_path)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"Error: '{tmp_path}' exists already")


def test_without_the_extra_a_remedy_is_given(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse() -> None:
        raise InstallationError("Exporting needs torch, which is missing: pip install 'reader-edge[export]'.")

    monkeypatch.setattr("reader_edge.models.model_source.check_installation", refuse)
    result = runner.invoke(main, ["export", "some/model", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert result.stderr == "Error: Exporting needs torch, which is missing: pip install 'reader-edge[export]'.\n"
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_nothing_behind(runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @contextmanager
    def interrupted_package(out: Path, force: bool, key: str) -> Iterator[Path]:
        with new_package(out, force, key) as folder:
            (folder / "half").write_text("written")
            raise KeyboardInterrupt
        yield folder

    monkeypatch.setattr(pipeline, "check_installation", lambda: None)
    found = SimpleNamespace(is_kept=False, config={"model_type": "llama"})
    monkeypatch.setattr(pipeline, "find_source", lambda path, max_context: found)
    monkeypatch.setattr(pipeline, "find_images", lambda *_: None)
    monkeypatch.setattr(pipeline, "export_key", lambda *_: "key")
    monkeypatch.setattr(pipeline, "new_package", interrupted_package)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    result = runner.invoke(main, ["export", str(tmp_path / "model"), str(tmp_path / "out")])
    assert result.exit_code == 130
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
