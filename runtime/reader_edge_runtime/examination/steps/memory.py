"""Free memory against what a package needs on the CPU."""

from collections.abc import Iterator

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.execution.onnxruntime.host.needed_memory import needed_bytes
from reader_edge_runtime.package.manifest import COMMIT_NAME, Manifest

_REMEDY = "End other programs, take a smaller model, or export with fewer bits (--precision int4)."


def check_memory(manifest: Manifest, free: int | None, free_ram: int | None) -> Iterator[Finding]:
    """Nothing is said where the system does not tell, nor of a package whose weights go to a device.

    free, free_ram: bytes with swap and without.
    """
    if free is None or free_ram is None or COMMIT_NAME in manifest.files:
        return
    needed = needed_bytes(manifest)
    whole = needed + manifest.max_context * manifest.kv_row_bytes
    if needed > free:
        found = f"The model needs {_size(needed)} of memory at least, and {_size(free)} are free."
        yield Finding("memory", Severity.BROKEN, found, _REMEDY)
    elif needed > free_ram:
        found = f"The model needs {_size(needed)} of memory, of which only {_size(free_ram)} are no swap."
        yield Finding("memory", Severity.SLOWER, found, _REMEDY)
    elif whole > free:
        found = (
            f"The model fits, but not a text as long as its context ({manifest.max_context} tokens): that needs "
            f"{_size(whole)}, and {_size(free)} are free."
        )
        yield Finding("memory", Severity.NOTE, found, "Bound the KV cache with --kv-bytes where you serve.")
    else:
        found = f"{_size(free)} are free; the model needs {_size(needed)}, and {_size(whole)} with a "
        yield Finding("memory", Severity.WELL, f"{found}text as long as its context.")


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
