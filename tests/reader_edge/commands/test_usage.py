"""One mistake has one exit code: 2 and one sentence for whatever is wrong with the command line itself.

All options of all commands are tried, by click's own tree of them, so that none is forgotten.
"""

import math
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner, Result

from reader_edge.cli import main
from reader_edge.commands.options import FILE_PATH, FiniteRange, IntegerRange
from reader_edge_runtime.config import EngineConfig, GenerationConfig, SamplingConfig, ServingConfig
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.untrusted.config_checks import Range
from tests.reader_edge.package_copy import PackageCopy

CONFIGS = (EngineConfig, GenerationConfig, SamplingConfig, ServingConfig, DraftSources)
# Wrong values of options that take texts of some form.
TEXTS: dict[str, tuple[str, ...]] = {
    "--stop": ("",),
    "--adapter": ("pirate", "a pirate=adapters", "pirate=nowhere"),
    "--template-arg": ("mood", "messages=1"),
    "--at": ("10.0.0.2", "tcp://a:1,b"),
    "--listen": ("here", "tcp://here", "http://here:1"),
    "--max-memory": ("much",),
    "--nodes": ("a", "0", "300"),
    "--sources": ("history", "context,all"),
    "--quantiles": ("a", "2", "0.1,0.1"),
    "--rule": ("exact", "relaxed:a:b", "relaxed:1:2:3"),
    "--fit": ("", "8GB,many", "8"),
    "--url": ("ftp://127.0.0.1:1", "127.0.0.1"),
}


def _commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _commands(command, *path, name)
        else:
            yield (*path, name), command


OPTIONS = [
    (path, parameter)
    for path, command in _commands(main)
    for parameter in command.params
    if isinstance(parameter, click.Option) and not parameter.is_flag
]


def _wrong_values(option: click.Option) -> list[str]:
    kind = option.type
    if isinstance(kind, click.IntRange | click.FloatRange):
        step = 1 if isinstance(kind, click.IntRange) or kind.min_open else 1e-3
        below = [] if kind.min is None else [str(kind.min if kind.min_open else kind.min - step)]
        above = [] if kind.max is None else [str(kind.max + step)]
        return [*below, *above, "nan", "inf", "-inf", "x", "", *(["1.5"] if isinstance(kind, click.IntRange) else [])]
    if isinstance(kind, click.Choice):
        return ["no-such-choice", ""]
    if isinstance(kind, click.Path) and (kind.exists or kind is FILE_PATH):
        return ["/no/such/folder/file"]
    return list(TEXTS.get(option.opts[-1], ())) if option.callback else []


def _assert_usage(result: Result) -> None:
    assert result.exit_code == 2, (result.exit_code, result.stderr, result.exception)
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.rstrip("\n").endswith((".", "?"))
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("path", "option"), OPTIONS, ids=lambda each: "-".join(each) if isinstance(each, tuple) else each.name
)
def test_a_wrong_value_of_an_option_exits_2(runner: CliRunner, path: tuple[str, ...], option: click.Option) -> None:
    for value in _wrong_values(option):
        result = runner.invoke(main, [*path, f"{option.opts[-1]}={value}"], prog_name="reader-edge")
        _assert_usage(result)
        assert option.opts[-1] in result.stderr
        assert " range." not in result.stderr


def test_numbers_are_bounded_and_texts_of_a_form_are_tried() -> None:
    for path, option in OPTIONS:
        kind = option.type
        assert not isinstance(kind, click.types.IntParamType) or isinstance(kind, IntegerRange), (path, option)
        assert not isinstance(kind, click.types.FloatParamType) or isinstance(kind, FiniteRange), (path, option)
        if option.callback and not _wrong_values(option):
            raise AssertionError(f"{path} {option.opts} has a form, and no wrong value here")


def test_options_take_what_the_configs_take_that_they_are_for() -> None:
    ranges: dict[str, Range] = {
        each.name: get_args(each.type)[1]
        for config in CONFIGS
        for each in fields(config)
        if get_args(each.type) and isinstance(get_args(each.type)[-1], Range)
    }
    compared = set()
    for path, option in OPTIONS:
        kind, name = option.type, option.name or ""
        if isinstance(kind, click.IntRange | click.FloatRange) and (allowed := ranges.get(name)):
            assert kind.min == allowed.least, (path, name)
            assert kind.max == allowed.most or allowed.most == math.inf, (path, name)
            compared.add(name)
    assert {"temperature", "seed", "threads", "max_batch", "max_waiting"} <= compared


@pytest.fixture
def there(tmp_path: Path) -> Path:
    path = tmp_path / "there"
    path.write_text("of somebody")
    return path


def _late(demo: Path, there: Path) -> list[list[str]]:
    """What click's types cannot see: options that exclude each other, or have no place with this model; names that
    lead nowhere; places that are taken."""
    model, missing, out = str(demo), str(demo / "no-such-model"), str(there)
    free = str(there.with_name("free"))
    return [
        ["run", missing, "-p", "a"],
        ["run", "no-such-model", "-p", "a"],
        ["run", "smollm2:9b", "-p", "a"],
        ["run", model, "-p", ""],
        ["run", model, "-p", "a", "-s", "b"],
        ["run", model, "-p", "a", "-s", "b", "--raw"],
        ["run", model, "-p", "a", "--text-is-text"],
        ["run", model, "-p", "a", "--template-arg", "n=2"],
        ["run", model, "-p", "a", "--greedy", "-t", "1"],
        ["run", model, "-p", "a", "--compare", "--no-draft"],
        ["run", "-p", "a", "--server", "nowhere"],
        ["run", "-p", "a", "--api-key-file", out],
        ["run", model, "-p", "a", *["--datastore", out] * 5],
        ["run", model, "-p", "a", "--workspace", missing],
        ["serve", model, "--workspace", out],
        ["run", "-p", "a", "--rule", "relaxed", "--compare"],
        ["serve", model, "--host", "10.0.0.1"],
        ["info", missing],
        ["verify", missing],
        ["pull", "smollm2:9b"],
        ["export", missing, free],
        ["export", model, out],
        ["export", model, free, "--precision", "fp16", "--kv", "int8"],
        ["export", model, free, "--target", "cuda"],
        ["split", model, out, "--stages", "2"],
        ["split", model, free, "--stages", "3", "--at", "tcp://127.0.0.1:1"],
        ["split", model, free, "--stages", "60"],
        ["split", model, free],
        ["split", model, free, "--fit", "much"],
        ["stage", model, "--listen", "here"],
        ["stage", model],
        ["train-drafter", model, "-o", out],
        ["datastore", "build", out, "-o", out, "--tokenizer", model],
        ["bench", "record", model, "-o", out],
        ["bench", "decode", model, "--plot", f"{free}.txt"],
        ["bench", "replay", out],
        ["series", "forecast", "-o", f"{free}.txt"],
        ["series", "forecast", "--plot", f"{free}.txt"],
        ["series", "forecast", "--paths", "1000000000"],
        ["series", "forecast", "--column", "no-such-column"],
        ["series", "train", out, "-o", free],
    ]


def test_a_wrong_command_line_exits_2(runner: CliRunner, package: PackageCopy, there: Path) -> None:
    found: dict[str, Any] = {}
    for arguments in _late(package.folder, there):
        result = runner.invoke(main, arguments, prog_name="reader-edge")
        try:
            _assert_usage(result)
        except AssertionError as error:
            found[" ".join(arguments)] = (result.exit_code, result.stderr[-200:], str(error)[:100])
    assert not found, "\n".join(f"{name}: {each}" for name, each in found.items())
    assert there.read_text() == "of somebody"
