"""What packages of others add: one that is broken, or takes a name of the house, is left out and named."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import COMMANDS, main
from reader_edge.entry_points import added_commands
from reader_edge_runtime import plug_ins
from reader_edge_runtime.doctor.check_result import Severity
from reader_edge_runtime.doctor.engines import steps
from reader_edge_runtime.errors import InstallationError
from reader_edge_runtime.execution.providers import PROVIDERS, named_provider
from reader_edge_runtime.plug_ins import provider_names

RUN = ("run", "-p", "# tar", "-n", "2", "--no-calibrate")
BUILT_IN = [str(each.name) for each in COMMANDS]
COMMAND = "import click\n@click.command('run')\ndef command(): print('theirs')\n"


def install(folder: Path, group: str, points: str, module: str) -> None:
    """A package `theirs` of one module, `theirs_module`."""
    described = folder / "theirs-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n", "utf-8")
    (described / "entry_points.txt").write_text(f"[reader_edge.{group}]\n{points}\n", "utf-8")
    (folder / "theirs_module.py").write_text(module, "utf-8")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for such a package, whose entry points are read at every look."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs_module", raising=False)
    monkeypatch.setattr(plug_ins, "_every_entry_point", importlib.metadata.entry_points)
    plug_ins._warn_once.cache_clear()
    return tmp_path


@pytest.mark.parametrize(
    ("value", "module"),
    [
        ("theirs_module:command", "import nowhere_at_all"),
        ("theirs_module:command", "import sys; sys.exit(3)"),
        ("theirs_module:nothing", COMMAND),
        ("theirs_module:click.command", COMMAND),
        (".theirs_module:command", COMMAND),
        ("?", COMMAND),
    ],
)
def test_a_broken_command_is_left_out_and_named(installed: Path, value: str, module: str) -> None:
    install(installed, "commands", f"foo = {value}", module)
    with pytest.warns(RuntimeWarning, match=r"'foo' \(reader_edge.commands\) of 'theirs' cannot be loaded") as warned:
        found = added_commands(()), added_commands(())
    assert "foo" not in {**found[0], **found[1]}
    assert len(warned) == 1


def test_a_broken_command_breaks_no_other(tmp_path: Path) -> None:
    install(tmp_path, "commands", "foo = theirs_module:command\nrun = theirs_module:other", "import nowhere_at_all")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "reader_edge", "run", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, timeout=120)
    assert shown.returncode == 0
    assert "--provider" in shown.stdout
    lost, taken = sorted(shown.stderr.splitlines())
    assert lost.startswith("Warning: The plug-in 'foo' (reader_edge.commands) of 'theirs' cannot be loaded (Module")
    assert taken.startswith("Warning: The plug-in 'run' (reader_edge.commands) of 'theirs' is left out, as its name is")


def test_a_command_has_the_name_of_its_entry_point_alone(installed: Path) -> None:
    install(installed, "commands", "foo = theirs_module:command", COMMAND)
    assert added_commands(BUILT_IN).keys() - {"series"} == {"foo"}


@pytest.mark.parametrize(
    ("point", "reason"),
    [("run", "its name is taken"), ("a\x1b[31m", "no name that can be shown"), ("", "no name that can be shown")],
)
def test_a_command_of_no_name_of_its_own_is_left_out(installed: Path, point: str, reason: str) -> None:
    install(installed, "commands", f"{point} = theirs_module:command", COMMAND)
    with pytest.warns(RuntimeWarning, match=rf"of 'theirs' is left out, as .*{reason}") as warned:
        assert added_commands(BUILT_IN).keys() <= {"series"}
    assert str(warned[0].message).isprintable()


def test_a_provider_is_loaded_where_it_is_named_alone(
    installed: Path, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(installed, "providers", "foo = theirs_module:PROVIDER", "raise RuntimeError('boom')")
    assert "foo" in provider_names()
    assert CliRunner().invoke(main, RUN).exit_code == 0
    option = next(each for each in main.commands["run"].params if each.name == "provider")
    monkeypatch.setattr(option.type, "choices", provider_names())  # as at import
    refused = CliRunner().invoke(main, [*RUN, "--provider", "foo"])
    assert (refused.exit_code, refused.stdout) == (1, "")
    sentence = "The plug-in 'foo' (reader_edge.providers) of 'theirs' cannot be loaded (RuntimeError('boom')): repair"
    assert refused.stderr.startswith(f"Error: {sentence}")
    assert refused.stderr.count("\n") == 1
    (found,) = steps(demo_folder, None)["foo"]()
    assert (found.severity, found.remedy) == (Severity.SLOWER, "Repair or uninstall it.")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_built_in_provider_wins_and_another_kind_is_none(installed: Path) -> None:
    points = "cpu = theirs_module:PROVIDER\nfoo = theirs_module:PROVIDER"
    install(installed, "providers", points, "PROVIDER = 1")
    assert provider_names().count("cpu") == 1
    assert named_provider("cpu") is PROVIDERS["cpu"]
    with pytest.raises(InstallationError, match=r"'foo' .* of 'theirs' cannot be loaded .*1 is of the wrong kind"):
        named_provider("foo")


@pytest.mark.parametrize("module", ["raise RuntimeError('boom')", "Rule = 7", "class Rule: pass"])
def test_a_broken_rule_is_refused_in_a_sentence(installed: Path, module: str) -> None:
    install(installed, "rules", "foo = theirs_module:Rule", module)
    refused = CliRunner().invoke(main, [*RUN, "--rule", "foo"])
    assert (refused.exit_code, refused.stdout, refused.stderr.count("\n")) == (1, "", 1)
    assert "The plug-in 'foo' (reader_edge.rules) of 'theirs' cannot be loaded" in refused.stderr


def test_rules_of_the_house_win(installed: Path) -> None:
    install(installed, "rules", "relaxed = theirs_module:Rule", "raise RuntimeError('boom')")
    with pytest.warns(RuntimeWarning, match="'relaxed' .* of 'theirs' is left out, as its name is taken"):
        rules = plug_ins.plug_ins(plug_ins.RULES_GROUP)
    assert rules["relaxed"].value.startswith("reader_edge_lossy.")
