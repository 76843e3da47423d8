"""The interface of a provider; those that ship are in providers.py, those of other packages are entry points."""

from collections.abc import Callable
from dataclasses import dataclass

from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target


@dataclass(frozen=True, slots=True)
class Provider:
    """A way to run packages.

    obstacle: why it cannot be had on this machine, one sentence with the remedy; None where nothing is known to be
    missing. suits: whether a package is made for it. open: load a package with so many threads, with native kernels or
    without; raises ProviderError. is_installed: whether this installation was made for it, so that an obstacle is a
    fault and no mere absence.
    """

    obstacle: Callable[[], str | None]
    suits: Callable[[ModelPackage], bool]
    open: Callable[[ModelPackage, int, bool], Target]
    is_installed: Callable[[], bool] = lambda: False
