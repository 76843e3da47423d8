"""`reader-edge doctor`: what keeps models from running here, or from running fast."""

import os
import time
from typing import TYPE_CHECKING

import click

from reader_edge.commands import options
from reader_edge.terminal.command_help import helpful_command
from reader_edge.terminal.shell_completion import MODEL

if TYPE_CHECKING:
    from pathlib import Path

    from reader_edge_runtime.doctor.check_result import CheckResult
    from reader_edge_runtime.doctor.environment import Environment

_MAX_S = 4.0  # of the five that it may take with Python's own start
_EXIT_CODES = {"well": 0, "slower": 1, "broken": 2}


@helpful_command("Find what keeps models from running, or from running fast.", "reader-edge doctor smollm2:135m")
@click.argument("model", type=MODEL, required=False)
@options.as_json
@click.pass_context
def doctor(ctx: click.Context, model: str | None, as_json: bool) -> None:
    """Examine this machine, the engines installed on it and a package: what is wrong, and what to do about it.

    MODEL is what `info` takes; without one, doctor uses $READER_EDGE_MODEL, or else the bundled demo. It takes five
    seconds at most, and asks no network. Exit code 0: all is well; 1: it works, but slower than it could; 2: it does
    not work.
    """
    from reader_edge.models.model_source import MODEL_VARIABLE
    from reader_edge.terminal.console import count_progress
    from reader_edge.terminal.doctor_report import print_results, results_as_json
    from reader_edge_runtime.doctor.check_result import verdict
    from reader_edge_runtime.doctor.environment import Environment
    from reader_edge_runtime.doctor.examine import examine_machine

    ends_at = time.monotonic() + _MAX_S
    environment = Environment.here()
    with count_progress("Examining") as on_progress:
        on_progress(0, 2)
        results = examine_machine(environment, ends_at)
        on_progress(1, 2)
        if verdict(results) != "broken":
            results += _package(model, environment, ends_at)
    if as_json:
        click.echo(results_as_json(results, model or os.environ.get(MODEL_VARIABLE, "")))
    else:
        print_results(results)
    ctx.exit(_EXIT_CODES[verdict(results)])


def _package(model: str | None, environment: "Environment", ends_at: float) -> "list[CheckResult]":
    """Of engines and a package; of the demo where the model itself is none."""
    from reader_edge_runtime.doctor.check_result import CheckResult, Severity
    from reader_edge_runtime.doctor.examine import examine_package
    from reader_edge_runtime.errors import ReaderEdgeError

    try:
        folder, results = _folder(model)
    except ReaderEdgeError as error:
        return [CheckResult.of_error("model", Severity.BROKEN, str(error))]
    except OSError as error:
        found = f"'{error.filename}' cannot be looked at ({error.strerror})."
        return [CheckResult("model", Severity.BROKEN, found, "Give the path of a folder that you may read.")]
    return results + examine_package(folder, environment, ends_at)


def _folder(model: str | None) -> "tuple[Path, list[CheckResult]]":
    """The package to look at, and the note on a model that is not exported yet."""
    from reader_edge.models.exported import ModelSource, package_of
    from reader_edge.models.model_source import bundled_demo, find_stored
    from reader_edge_runtime.doctor.check_result import CheckResult, Severity
    from reader_edge_runtime.doctor.machine import check_stages
    from reader_edge_runtime.package.manifest import MANIFEST_NAME
    from reader_edge_runtime.package.pipeline_file import PIPELINE_NAME, read_pipeline

    path = find_stored(model)
    if (path / PIPELINE_NAME).exists():
        found = f"'{path}' is a model over several boxes; besides them the bundled demo is looked at."
        note = CheckResult("model", Severity.NOTE, found, "`reader-edge verify` tries all its boxes.")
        return bundled_demo(), [note, *check_stages(read_pipeline(path))]
    if path.is_dir() and ((path / MANIFEST_NAME).exists() or (path / MANIFEST_NAME).is_symlink()):
        return path, []
    package = package_of(ModelSource(path))  # of a file or a folder; of a name `find_stored` has it
    if (package / MANIFEST_NAME).is_file():
        return package, []
    found = f"'{path}' is not exported yet; the bundled demo is looked at in its place."
    return bundled_demo(), [
        CheckResult("model", Severity.NOTE, found, "`reader-edge run` exports it at its first use.")
    ]
