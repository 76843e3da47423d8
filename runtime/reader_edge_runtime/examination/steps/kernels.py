"""The native kernels: whether they are here, and for which instructions."""

from collections.abc import Iterator

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.execution.onnxruntime.native import instructions_here, native_instructions


def check_kernels() -> Iterator[Finding]:
    """Whether the best kernels that this processor can run are used. Raises InstallationError as they do."""
    used, here = native_instructions(), instructions_here()
    if used is None:
        yield Finding(
            "kernels",
            Severity.SLOWER,
            "There are no native kernels for this processor here, so graphs run by plain operators.",
            "Install reader-edge's wheel, or its source on a machine with a C++ compiler.",
        )
    elif used != here[0]:
        yield Finding(
            "kernels",
            Severity.SLOWER,
            f"READER_EDGE_INSTRUCTIONS holds native kernels to {used}; this processor has {here[0]}.",
            "Unset READER_EDGE_INSTRUCTIONS.",
        )
    else:
        yield Finding("kernels", Severity.WELL, f"Native kernels use {used}, the best that this processor has.")
