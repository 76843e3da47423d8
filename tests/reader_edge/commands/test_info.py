"""`info`, `forget` and the options of commands."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from reader_edge.chat.sampling_options import MeasuredSampling
from reader_edge.cli import main
from reader_edge.commands import options
from reader_edge_runtime import EngineConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.drafting.sources.warmup_answers import WarmupAnswers
from reader_edge_runtime.package.model_package import ModelPackage
from tests.reader_edge.package_copy import PackageCopy


def test_info_tells_what_the_package_is(runner: CliRunner, package: PackageCopy) -> None:
    result = runner.invoke(main, ["info", str(package.folder)])
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = dict(line.strip().split("  ", 1) for line in result.stdout.splitlines())
    manifest = package.read_manifest()
    assert lines["architecture"].strip() == manifest["architecture"]
    assert lines["max context"].strip() == f"{manifest['max_context']} tokens"
    assert (lines["files"].strip(), lines["adapters"].strip()) == ("checksums verified", "none")
    assert set(manifest["files"]) <= set(lines)
    assert lines["top-1 agreement"].strip() == f"{100 * manifest['checks']['top1_agreement']:.1f} % of the tokens"


def test_info_tells_no_version_that_the_manifest_does_not_know(runner: CliRunner, package: PackageCopy) -> None:
    package.change_manifest(exported_with={"onnx": "1.2", "reader-edge": "unknown"})
    shown = runner.invoke(main, ["info", str(package.folder)]).stdout
    assert re.search(r"^exported with +onnx 1\.2$", shown, re.MULTILINE)
    package.change_manifest(exported_with={"reader-edge": "unknown"})
    assert "exported with" not in runner.invoke(main, ["info", str(package.folder)]).stdout


def test_info_tells_what_warm_has_put_beside_a_package(runner: CliRunner, package: PackageCopy) -> None:
    command = ["info", str(package.folder)]
    assert "none: `reader-edge warm` writes them" in runner.invoke(main, command).stdout
    path = WarmupAnswers([np.arange(5, dtype=np.int32), np.arange(2, dtype=np.int32)]).write(
        ModelPackage.open(package.folder)
    )
    assert (
        f"7 tokens in 2 answers, {path.stat().st_size} bytes (own_answers.bin)" in runner.invoke(main, command).stdout
    )
    assert json.loads(runner.invoke(main, [*command, "--json"]).stdout)["num_own_answer_tokens"] == 7
    path.write_bytes(bytes(200))
    assert runner.invoke(main, command).exit_code == 1


def test_info_tells_what_a_package_lacks_for_drafting(runner: CliRunner, package: PackageCopy) -> None:
    package.change_manifest(hidden_size=None, state_ids=[])
    shown = runner.invoke(main, ["info", str(package.folder)]).stdout
    assert re.search(r"^hidden states +none: no speculator of train-drafter can read it$", shown, re.MULTILINE)
    assert re.search(r"^successor table +none$", shown, re.MULTILINE)
    assert re.search(r"^chat template +no$", shown, re.MULTILINE)
    assert json.loads(runner.invoke(main, ["info", str(package.folder), "--json"]).stdout)["num_table_tokens"] == 0


def test_info_tells_what_a_first_start_left_out(runner: CliRunner, package: PackageCopy) -> None:
    command = ["info", str(package.folder)]
    shown = runner.invoke(main, command).stdout
    assert "not tuned: `reader-edge tune` measures its quality, and lets it draft better" in shown
    assert json.loads(runner.invoke(main, [*command, "--json"]).stdout)["is_tuned"] is False


def test_info_tells_how_many_experts_a_mixture_has(runner: CliRunner, package: PackageCopy) -> None:
    command = ["info", str(package.folder)]
    assert "experts" not in runner.invoke(main, command).stdout
    package.change_manifest(num_experts=8, num_experts_per_token=2)
    assert re.search(r"^experts +8, 2 a token$", runner.invoke(main, command).stdout, re.MULTILINE)
    fields = json.loads(runner.invoke(main, [*command, "--json"]).stdout)
    assert (fields["num_experts"], fields["num_experts_per_token"]) == (8, 2)


def test_info_tells_what_stays_as_in_a_file_and_its_bits(runner: CliRunner, package: PackageCopy) -> None:
    package.change_manifest(precision="keep", kept_types={"Q4_K": 70, "Q6_K": 15})
    shown = runner.invoke(main, ["info", str(package.folder)]).stdout
    assert "kept as in the file: 70 Q4_K, 15 Q6_K" in shown
    assert "with native kernels and without, the last bits of logits differ" in shown


def test_a_model_that_is_not_exported_is_shown_and_stays_so(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    result = runner.invoke(main, ["info", str(tmp_path)])
    assert result.exit_code == 1
    assert "is a model to be exported, not a package: `reader-edge export` makes one of it." in result.stderr
    assert len(list(tmp_path.iterdir())) == 1


def test_info_as_json_holds_the_manifest_and_what_follows_from_it(runner: CliRunner, package: PackageCopy) -> None:
    fields = json.loads(runner.invoke(main, ["info", str(package.folder), "--json"]).stdout)
    manifest = package.read_manifest()
    assert fields["files"] == manifest["files"]
    assert fields["num_bytes"] == sum(entry["num_bytes"] for entry in manifest["files"].values())
    row_bytes = manifest["head_dim"] + 2  # int8, and the scale of each row
    assert fields["kv_bytes_per_token"] == 2 * manifest["num_layers"] * manifest["num_kv_heads"] * row_bytes
    assert fields["checksums_verified"] is True


def test_info_tells_how_the_maker_of_the_model_has_tokens_chosen(runner: CliRunner, package: PackageCopy) -> None:
    def shown() -> str:
        lines = runner.invoke(main, ["info", str(package.folder)]).stdout.splitlines()
        return next(line.split(maxsplit=1)[1] for line in lines if line.startswith("sampling"))

    assert shown() == "greedy"
    package.change_manifest(sampling={"repetition_penalty": 1.1})
    assert shown() == "greedy, repetition-penalty 1.1, as the model's maker recommends"
    package.change_manifest(sampling={"temperature": 0.6, "top_k": 20, "top_p": 0.95})
    assert shown() == "temperature 0.6, top-k 20, top-p 0.95, as the model's maker recommends"
    fields = json.loads(runner.invoke(main, ["info", str(package.folder), "--json"]).stdout)
    assert fields["sampling"] == {"temperature": 0.6, "top_k": 20, "top_p": 0.95}


def test_a_history_that_run_made_is_erased(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "past"
    assert (
        runner.invoke(main, ["run", "-p", "# tar", "-n", "4", "--no-calibrate", "--history", str(file)]).exit_code == 0
    )
    assert file.stat().st_size > 64
    result = runner.invoke(main, ["forget", str(file)])
    assert (result.exit_code, result.stdout) == (0, "")
    assert not file.exists()


def test_another_file_is_left_alone(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "thesis.txt"
    file.write_text("All is well.")
    result = runner.invoke(main, ["forget", str(file)])
    assert result.exit_code == 1
    assert "not a history file" in result.stderr
    assert file.read_text() == "All is well."


def test_a_missing_file_exits_2(runner: CliRunner, tmp_path: Path) -> None:
    refused = runner.invoke(main, ["forget", str(tmp_path / "none")])
    assert (refused.exit_code, refused.stderr) == (2, f"Error: There is nothing at '{tmp_path / 'none'}' to erase.\n")


@dataclass(frozen=True)
class Output:
    as_json: bool


@pytest.fixture
def shown() -> list[object]:
    return []


@pytest.fixture
def command(shown: list[object]) -> click.Command:
    @click.command()
    @click.argument("model")
    @options.of(MeasuredSampling)
    @options.engine
    @options.of(options.EngineFlags, "is_drafted")
    @options.as_json
    @options.grouped(output=Output, sampling="SamplingConfig", config="GenerationConfig", engine_config="EngineConfig")
    def answer(model: str, output: Output, config: GenerationConfig, engine_config: EngineConfig) -> None:
        shown.extend([model, output, config, engine_config])

    return answer


def test_options_land_in_the_configs(runner: CliRunner, command: click.Command, shown: list[object]) -> None:
    given = ["demo", "-t", "0.5", "--threads", "3", "--no-native", "--no-draft", "--provider", "cpu", "--json"]
    result = runner.invoke(command, given)
    assert result.exit_code == 0, result.output
    generation = GenerationConfig(sampling=SamplingConfig(temperature=0.5), is_drafted=False)
    engine = EngineConfig(threads=3, uses_native=False, provider="cpu")
    assert shown == ["demo", Output(as_json=True), generation, engine]


def test_without_options_configs_are_defaults(runner: CliRunner, command: click.Command, shown: list[object]) -> None:
    result = runner.invoke(command, ["demo"])
    assert result.exit_code == 0, result.output
    assert shown == ["demo", Output(as_json=False), GenerationConfig(sampling=SamplingConfig()), EngineConfig()]
