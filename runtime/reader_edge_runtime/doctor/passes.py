"""Whether a package runs, where its nodes run, and how long a pass takes against what memory allows."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.doctor.check_result import CheckResult, Severity
from reader_edge_runtime.errors import InstallationError, MemoryShortageError, ProviderError
from reader_edge_runtime.execution.onnxruntime.host.needed_memory import product_bytes
from reader_edge_runtime.execution.onnxruntime.session import nodes_elsewhere
from reader_edge_runtime.execution.providers import open_target
from reader_edge_runtime.machine.processor import num_usable_cores
from reader_edge_runtime.measuring.cost_cache import kept_cost
from reader_edge_runtime.measuring.pass_cost import PassCost, single_pass_seconds
from reader_edge_runtime.measuring.width_cache import kept_verdict
from reader_edge_runtime.measuring.width_probe import WidthReport
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target

_MAX_COPY_S, _MAX_PASS_S = 0.3, 0.4
_MAX_THREADS = 8  # that copy: so many saturate the memory of most machines
_CACHED = 64 << 20  # bytes of weights that a processor's caches may hold, so that memory is no bound
_FAR = 4.0  # times the bound, from which on something is wrong
_NEWER_FORMAT = re.compile(r"Unsupported model IR version: (\d+), max supported IR version: (\d+)")
_ALLOCATION = re.compile(r"Failed to allocate|BFCArena|out of memory", re.IGNORECASE)


def check_passes(package: ModelPackage, measure_rate: Callable[[int, float], float]) -> Iterator[CheckResult]:
    """What takes longer comes later. measure_rate: of memory, by threads and seconds."""
    try:
        target = open_target(package, EngineConfig())
        yield placement_result(target.provider, nodes_elsewhere(target))
        verdict = kept_verdict(target, 0)
        settled, report = (target, None) if verdict is None else verdict
        yield widths_result(report, package.manifest.attention == "exact")
        yield cost_result(kept_cost(settled, 0, 1))
        yield from _speed_results(package, target, measure_rate)
    except (InstallationError, MemoryShortageError):  # the steps of kernels and memory reported it
        return
    except ProviderError as error:
        yield failed_opening(str(error))


def failed_opening(message: str) -> CheckResult:
    """Of what a provider says. message: of a ProviderError."""
    if newer := _NEWER_FORMAT.search(message):
        found = f"The package is in ONNX IR version {newer[1]}, and this ONNX Runtime reads up to {newer[2]}."
        remedy = "pip install --upgrade 'reader-edge[cpu]' (or [gpu]), or export the model again here."
        return CheckResult("passes", Severity.BROKEN, found, remedy)
    if _ALLOCATION.search(message):
        found = "Memory was short while the model was loaded or run; arenas of GPUs grow by doubling."
        remedy = "End other programs that hold memory of that device, or export with fewer bits."
        return CheckResult("passes", Severity.BROKEN, found, remedy)
    if "ONNX Runtime cannot load" in message:
        return CheckResult("passes", Severity.BROKEN, message, "Export or copy the package again.")
    return CheckResult.of_error("passes", Severity.BROKEN, message)


def placement_result(provider: str, elsewhere: dict[str, list[str]] | None) -> CheckResult:
    """elsewhere: as `nodes_elsewhere` has it."""
    if elsewhere is None:
        return CheckResult(
            "placement", Severity.WELL, f"The model runs on {provider}, which does not tell of its nodes."
        )
    if not elsewhere:
        found = f"The whole graph runs on {provider}, and nothing is copied between devices."
        return CheckResult("placement", Severity.WELL, found)
    names = [name for nodes in elsewhere.values() for name in nodes]
    found = (
        f"{provider} leaves {len(names)} nodes to {' and '.join(elsewhere)} ({', '.join(names[:3])}), and tensors are "
        "copied there and back."
    )
    return CheckResult(
        "placement",
        Severity.SLOWER,
        found,
        "Use --provider cpu, or export in a form that it runs whole (--attention, --precision).",
    )


def widths_result(report: WidthReport | None, is_exact: bool) -> CheckResult:
    """Of the width probe. is_exact: whether the package promises the same bits in passes of every width."""
    if report is None:
        return CheckResult("widths", Severity.WELL, "The width probe has not run yet; the first answer begins with it.")
    upto = "" if report.max_rows is None else f" of up to {report.max_rows} nodes"
    if report.is_invariant:
        return CheckResult("widths", Severity.WELL, f"Passes of every width{upto} give the same bits here.")
    found = f"In wider passes, {report.num_rows - report.num_equal} of {report.num_rows} rows have other bits here"
    if is_exact:
        found = f"{found}, so drafting is off."
        return CheckResult(
            "widths", Severity.SLOWER, found, "--guard drafts all the same, and decides near ties singly."
        )
    found = f"{found}, as this form of attention allows."
    return CheckResult(
        "widths", Severity.NOTE, found, "Nothing need be done; --guard decides near ties by single passes."
    )


def cost_result(cost: PassCost | None) -> CheckResult:
    """Of the pass times that trees are planned by."""
    if cost is None:
        return CheckResult("cost curve", Severity.WELL, "Pass times were not measured yet; the first start does it.")
    shown = [k for k, width in enumerate(cost.widths) if width in (1, 8, 64)]
    widths = ", ".join(str(cost.widths[k]) for k in shown)
    times = ", ".join(f"{1e3 * cost.seconds[0, k]:.2f}" for k in shown)
    found = f"Passes of {widths} nodes were measured at {times} ms"
    if cost.is_in_doubt:
        found = f"{found}, beside other work (rounds were {cost.spread:.0%} apart)."
        return CheckResult("cost curve", Severity.NOTE, found, "`reader-edge bench cost --redo` when it is quiet.")
    return CheckResult("cost curve", Severity.WELL, f"{found}.")


def pass_result(seconds: float, weight_bytes: int, rate: float) -> CheckResult:
    """Of a pass of one token. weight_bytes: that it reads; rate: of memory, bytes a second."""
    found = (
        f"A pass of one token takes {1e3 * seconds:.2f} ms; memory, at {rate / 1e9:.1f} GB/s, gives its "
        f"{weight_bytes / 1e6:.0f} MB of weights in {1e3 * weight_bytes / rate:.2f} ms"
    )
    if weight_bytes < _CACHED:
        return CheckResult("pass time", Severity.WELL, f"{found}; so few bytes that caches may hold many of them.")
    if seconds * rate <= _FAR * weight_bytes:
        return CheckResult("pass time", Severity.WELL, f"{found}.")
    remedy = "Look at the other findings; where all are well, other programs or a slow clock take the time."
    return CheckResult("pass time", Severity.SLOWER, f"{found}: it could be several times as fast.", remedy)


def _speed_results(
    package: ModelPackage, target: Target, measure_rate: Callable[[int, float], float]
) -> Iterator[CheckResult]:
    seconds = single_pass_seconds(target, _MAX_PASS_S)
    threads = min(num_usable_cores(), _MAX_THREADS)
    rate = measure_rate(threads, _MAX_COPY_S)
    yield CheckResult(
        "copy rate", Severity.WELL, f"{threads} threads move {rate / 1e9:.1f} GB/s when they copy memory."
    )
    if target.pass_sizes or package.manifest.num_experts:  # memory of a device, or some experts of many
        yield CheckResult("pass time", Severity.WELL, f"A pass of one token takes {1e3 * seconds:.2f} ms.")
    else:
        yield pass_result(seconds, product_bytes(package.manifest), rate)


_BYTES = 64 << 20  # that all threads copy: with the copies more than most caches hold, and little of any memory
_LEAST_ROUNDS = 3  # in the first, pages are made


def copy_rate(num_threads: int, max_seconds: float) -> float:
    """Bytes a second, read and written, that so many threads copy together; the best of several rounds."""
    share = _BYTES // num_threads
    arrays = [(np.ones(share, np.uint8), np.zeros(share, np.uint8)) for _ in range(num_threads)]
    seconds: list[float] = []
    start = time.perf_counter()
    with ThreadPoolExecutor(num_threads) as pool:
        while len(seconds) < _LEAST_ROUNDS or time.perf_counter() - start < max_seconds:
            began = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), arrays))
            seconds.append(time.perf_counter() - began)
    return 2 * share * num_threads / min(seconds)
