"""Look at engines, kernels and a package: `python -m reader_edge_runtime.examination.steps.engines FOLDER [STEP...]`.

The steps named are left out: one of them ended the process before.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from reader_edge_runtime.errors import PackageError, ReaderEdgeError
from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.step_process import tell_finding, tell_plan, tell_step
from reader_edge_runtime.examination.steps.copy_rate import copy_rate
from reader_edge_runtime.examination.steps.kernels import check_kernels
from reader_edge_runtime.examination.steps.memory import check_memory
from reader_edge_runtime.examination.steps.package import check_package
from reader_edge_runtime.examination.steps.passes import check_passes
from reader_edge_runtime.examination.steps.providers import check_provider
from reader_edge_runtime.execution.providers import PROVIDERS, preferred
from reader_edge_runtime.machine.free_memory import free_bytes
from reader_edge_runtime.package.model_package import ModelPackage

Step = Callable[[], Iterator[Finding]]


def main(folder: Path, skipped: list[str]) -> None:
    """Take the steps, and tell what each finds as it is found."""
    package = None
    with suppress(PackageError):  # which the step of the package tells
        package = ModelPackage.open(folder)
    taken = {name: step for name, step in steps(folder, package).items() if name not in skipped}
    tell_plan(taken)
    for name, step in taken.items():
        tell_step(name)
        try:
            for finding in step():
                tell_finding(finding)
        except ReaderEdgeError as error:
            tell_finding(Finding.of_error(name, Severity.BROKEN, str(error)))
        except Exception as error:  # of a driver or an engine, whose classes are unrelated
            found = f"Looking at this failed ({type(error).__name__}: {error!s:.200})."
            tell_finding(Finding(name, Severity.BROKEN, found, "Report it, with what `reader-edge doctor` prints."))


def steps(folder: Path, package: ModelPackage | None) -> dict[str, Step]:
    """By their names, what takes longer later. package: None where it cannot be opened; then no more is asked of it."""
    taken: dict[str, Step] = {"kernels": check_kernels}
    own = None if package is None else preferred(package)
    taken |= {name: partial(check_provider, name, each, name == own) for name, each in PROVIDERS.items()}
    taken["package"] = partial(check_package, folder)
    if package is None:
        return taken
    free = free_bytes(), free_bytes(has_swap=False)
    taken["memory"] = partial(check_memory, package.manifest, *free)
    taken["passes"] = partial(check_passes, package, copy_rate)
    return taken


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
