"""Checks of an export whose results are in its journal: a resumed export repeats none of them."""

import math
import shutil
from collections.abc import Callable
from dataclasses import asdict

from reader_edge_export.journal import TABLE_NAME, WORK_NAME, Journal
from reader_edge_runtime.drafting.sources.successor_table import SuccessorTable
from reader_edge_runtime.package.manifest import SUCCESSORS_NAME, FileEntry, file_entry
from reader_edge_runtime.package.model_package import ModelPackage

_QUALITY, _SUCCESSORS = "quality", "successors"


class CachedCheck:
    """Of a package whose files are there. Results are those of its very files, and of others done again."""

    def __init__(self, journal: Journal, package: ModelPackage) -> None:
        self._journal = journal
        self._folder = package.folder
        self._of = package.fingerprint().hex()

    def quality(self, kind: str, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Figures for the manifest. kind: how much is measured."""
        name = f"{_QUALITY}, {kind}, of {self._of}"
        match self._journal.results.get(name):
            case dict(figures) if all(map(_is_figure, figures.values())):
                return figures
        figures = measure()
        self._journal.record(name, figures)
        return figures

    def successors(self, tokenizer_fingerprint: str, ask: Callable[[], SuccessorTable]) -> FileEntry:
        """Put the package's table of likely successors into its folder."""
        name, cached = f"{_SUCCESSORS} of {self._of}", self._folder / WORK_NAME / TABLE_NAME
        if not cached.is_file() or asdict(file_entry(cached)) != self._journal.results.get(name):
            ask().write(cached, tokenizer_fingerprint)
            self._journal.record(name, asdict(file_entry(cached)))
        path = self._folder / SUCCESSORS_NAME
        shutil.copyfile(cached, path)
        return file_entry(path)


def has_checks(journal: Journal) -> bool:
    """Whether a journal has results of checks."""
    return any(name.startswith((_QUALITY, _SUCCESSORS)) for name in journal.results)


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
