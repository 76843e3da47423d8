"""Options reach a command in groups: what a user leaves out is what the configs say by themselves."""

from dataclasses import dataclass

import click
import pytest
from click.testing import CliRunner

from reader_edge.chat.given_sampling import MeasuredSampling
from reader_edge.commands import options
from reader_edge_runtime import EngineConfig, GenerationConfig, SamplingConfig


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


def test_every_option_lands_in_the_config_that_has_its_field(
    runner: CliRunner, command: click.Command, shown: list[object]
) -> None:
    given = ["demo", "-t", "0.5", "--threads", "3", "--no-native", "--no-draft", "--provider", "cpu", "--json"]
    result = runner.invoke(command, given)
    assert result.exit_code == 0, result.output
    generation = GenerationConfig(sampling=SamplingConfig(temperature=0.5), is_drafted=False)
    engine = EngineConfig(threads=3, uses_native=False, provider="cpu")
    assert shown == ["demo", Output(as_json=True), generation, engine]


def test_without_options_configs_are_their_own_defaults(
    runner: CliRunner, command: click.Command, shown: list[object]
) -> None:
    result = runner.invoke(command, ["demo"])
    assert result.exit_code == 0, result.output
    assert shown == ["demo", Output(as_json=False), GenerationConfig(sampling=SamplingConfig()), EngineConfig()]
