"""Checks engines, kernels and a package: `python -m reader_edge_runtime.doctor.engines FOLDER [STEP...]`.

The steps named are left out: one of them ended the process before.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from reader_edge_runtime.doctor.check_result import CheckResult, Severity, report_plan, report_result, report_step
from reader_edge_runtime.doctor.passes import check_passes, copy_rate
from reader_edge_runtime.errors import InstallationError, PackageError, ReaderEdgeError
from reader_edge_runtime.execution.onnxruntime.host.needed_memory import needed_bytes
from reader_edge_runtime.execution.onnxruntime.native import instructions_here, native_instructions
from reader_edge_runtime.execution.provider import Provider
from reader_edge_runtime.execution.providers import named_provider, preferred
from reader_edge_runtime.machine.process_memory import free_bytes
from reader_edge_runtime.package.manifest import COMMIT_NAME, GRAPH_NAME, Manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.onnx_versions import onnx_versions
from reader_edge_runtime.plug_ins import provider_names

Step = Callable[[], Iterator[CheckResult]]


def main(folder: Path, skipped: list[str]) -> None:
    """Take the steps, and tell what each finds as it is found."""
    package = None
    with suppress(PackageError):  # which the step of the package tells
        package = ModelPackage.open(folder)
    taken = {name: step for name, step in steps(folder, package).items() if name not in skipped}
    report_plan(taken)
    for name, step in taken.items():
        report_step(name)
        try:
            for result in step():
                report_result(result)
        except ReaderEdgeError as error:
            report_result(CheckResult.of_error(name, Severity.BROKEN, str(error)))
        except Exception as error:  # of a driver or an engine, whose classes are unrelated
            found = f"Looking at this failed ({type(error).__name__}: {error!s:.200})."
            report_result(
                CheckResult(name, Severity.BROKEN, found, "Report it, with what `reader-edge doctor` prints.")
            )


def steps(folder: Path, package: ModelPackage | None) -> dict[str, Step]:
    """By their names, what takes longer later. package: None where it cannot be opened: then nothing else of it."""
    taken: dict[str, Step] = {"kernels": check_kernels}
    own = None if package is None else preferred(package)
    taken |= {name: partial(_check_named, name, name == own) for name in provider_names()}
    taken["package"] = partial(check_package, folder)
    if package is None:
        return taken
    free = free_bytes(), free_bytes(has_swap=False)
    taken["memory"] = partial(check_memory, package.manifest, *free)
    taken["passes"] = partial(check_passes, package, copy_rate)
    return taken


def check_kernels() -> Iterator[CheckResult]:
    """Whether the best kernels that this processor can run are used. Raises InstallationError as they do."""
    used, here = native_instructions(), instructions_here()
    if used is None:
        yield CheckResult(
            "kernels",
            Severity.SLOWER,
            "There are no native kernels for this processor here, so graphs run by plain operators.",
            "Install reader-edge's wheel, or its source on a machine with a C++ compiler.",
        )
    elif used != here[0]:
        yield CheckResult(
            "kernels",
            Severity.SLOWER,
            f"READER_EDGE_INSTRUCTIONS holds native kernels to {used}; this processor has {here[0]}.",
            "Unset READER_EDGE_INSTRUCTIONS.",
        )
    else:
        yield CheckResult("kernels", Severity.WELL, f"Native kernels use {used}, the best that this processor has.")


def _check_named(name: str, is_preferred: bool) -> Iterator[CheckResult]:
    try:
        provider = named_provider(name)
    except InstallationError as error:  # without it a model runs as well
        yield CheckResult.of_error(name, Severity.SLOWER, str(error))
    else:
        yield from check_provider(name, provider, is_preferred)


def check_provider(name: str, provider: Provider, is_preferred: bool) -> Iterator[CheckResult]:
    """Whether a provider is to be had. is_preferred: it is the package's own.

    An obstacle is a fault where the installation, or the package, was made for it, else worth knowing.
    """
    obstacle = provider.obstacle()
    if obstacle is None:
        yield CheckResult(name, Severity.WELL, f"--provider {name} has what it needs.")
        return
    is_wanted = is_preferred or provider.is_installed()
    found = CheckResult.of_error(name, Severity.SLOWER, obstacle)
    if not is_wanted:
        found = replace(found, severity=Severity.NOTE, remedy=f"If you want it: {found.remedy}")
    yield found


_MOST_HASHED = 1 << 30  # bytes that take about a second


def check_package(folder: Path) -> Iterator[CheckResult]:
    """Raises PackageError for what is wrong, in its own words."""
    package = ModelPackage.open(folder)
    manifest = package.manifest
    versions = onnx_versions(package.path(GRAPH_NAME))
    if manifest.num_bytes <= _MOST_HASHED:
        package.check_files()
        yield CheckResult("package", Severity.WELL, f"{_summary(manifest)}; its files are what the manifest says.")
    else:
        package.check_sizes()
        found = f"{_summary(manifest)}; its files have the right sizes, and were too large to read here."
        yield CheckResult("package", Severity.NOTE, found, "`reader-edge info` compares every checksum.")
    yield CheckResult("package", Severity.WELL, f"Its graph is ONNX IR {versions.ir}, opset {versions.opset}.")


def _summary(manifest: Manifest) -> str:
    size = f"{manifest.num_bytes / 1e6:.1f} MB"
    return f"A {manifest.architecture} model, {size} in {manifest.precision} with {manifest.attention} attention"


_REMEDY = "End other programs, take a smaller model, or export with fewer bits (--precision int4)."


def check_memory(manifest: Manifest, free: int | None, free_ram: int | None) -> Iterator[CheckResult]:
    """No result where the system does not tell, nor of a package whose weights go to a device.

    free, free_ram: bytes with swap and without.
    """
    if free is None or free_ram is None or COMMIT_NAME in manifest.files:
        return
    needed = needed_bytes(manifest)
    whole = needed + manifest.max_context * manifest.kv_row_bytes
    if needed > free:
        found = f"The model needs {_size(needed)} of memory at least, and {_size(free)} are free."
        yield CheckResult("memory", Severity.BROKEN, found, _REMEDY)
    elif needed > free_ram:
        found = f"The model needs {_size(needed)} of memory, of which only {_size(free_ram)} are no swap."
        yield CheckResult("memory", Severity.SLOWER, found, _REMEDY)
    elif whole > free:
        found = (
            f"The model fits, but not a text as long as its context ({manifest.max_context} tokens): that needs "
            f"{_size(whole)}, and {_size(free)} are free."
        )
        yield CheckResult("memory", Severity.NOTE, found, "Bound the KV cache with --kv-bytes where you serve.")
    else:
        found = f"{_size(free)} are free; the model needs {_size(needed)}, and {_size(whole)} with a "
        context = f"text as long as its context ({manifest.max_context} tokens, KV cache in {manifest.kv_dtype})."
        yield CheckResult("memory", Severity.WELL, found + context)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
