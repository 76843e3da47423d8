"""Checks that the libraries of the extra "export" are installed, and silences all but their errors."""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import util

from reader_edge_runtime.errors import InstallationError

_NEEDED = ("torch", "transformers", "optimum.exporters", "onnx", "onnx_ir", "onnxruntime", "gguf")

_LOGGERS = ("torch.onnx", "transformers", "optimum", "onnx_ir", "onnxscript", "huggingface_hub")
# transformers gives its root a level when it is first imported, which may be meanwhile; a child's it leaves alone.
_CHILDREN = tuple(
    f"transformers.{child}"
    for child in ("configuration_utils", "integrations", "modeling_rope_utils", "modeling_utils", "models")
)

# Torch's tracer warns from C++, where no Python module is to be named, or in the name of its caller.
_TRACER_MESSAGES = (
    r"Converting a tensor to a Python",
    r"torch\.tensor results are registered as constants",
    r"You are using the legacy TorchScript-based ONNX export",
)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the libraries' log messages and the warnings from their modules; errors and all other warnings pass."""
    levels = {name: logging.getLogger(name).level for name in (*_LOGGERS, *_CHILDREN)}
    with warnings.catch_warnings():
        # Tracing fixes Python values on purpose: the survey and the parity checks vouch for the result.
        for message in _TRACER_MESSAGES:
            warnings.filterwarnings("ignore", message=message)
        warnings.filterwarnings("ignore", module=r"(torch|transformers|optimum|huggingface_hub)\b")
        for name in levels:
            logging.getLogger(name).setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, level in levels.items():
                logging.getLogger(name).setLevel(level)


def check_installation(needed: Sequence[str] = _NEEDED, purpose: str = "Exporting") -> None:
    """Raise InstallationError unless packages of the extra "export" are here: all of them, or those for a purpose."""
    missing = [name for name in needed if not _is_installed(name)]
    if missing:
        raise InstallationError(f"{purpose} needs {missing[0]}, which is missing: pip install 'reader-edge[export]'.")


def _is_installed(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
