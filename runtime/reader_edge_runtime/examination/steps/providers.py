"""Which engines run here, and what the others lack: the registry's own sentences."""

from collections.abc import Iterator
from dataclasses import replace

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.execution.providers import Provider


def check_provider(name: str, provider: Provider, is_preferred: bool) -> Iterator[Finding]:
    """Whether a provider is to be had. is_preferred: it is the package's own.

    An obstacle is a fault where the installation, or the package, was made for it, else worth knowing.
    """
    obstacle = provider.obstacle()
    if obstacle is None:
        yield Finding(name, Severity.WELL, f"--provider {name} has what it needs.")
        return
    is_wanted = is_preferred or provider.is_installed()
    found = Finding.of_error(name, Severity.SLOWER, obstacle)
    if not is_wanted:
        found = replace(found, severity=Severity.NOTE, remedy=f"If you want it: {found.remedy}")
    yield found
