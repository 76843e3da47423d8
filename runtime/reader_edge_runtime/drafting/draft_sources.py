"""What an engine drafts from, as one value: files, a smaller model, and sources of the caller's own."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.untrusted.config_checks import Range, check, require
from reader_edge_runtime.untrusted.user_input import given_path

FilePath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class DraftSources:
    """What to draft from besides a request's own text and past answers. Nothing is opened if an engine does not draft.

    history: a file that keeps past answers between runs; it is made if it does not exist.
    workspace: the folder of files that are worked on: what git would track there, followed as it changes.
    datastores: files of `reader-edge datastore build`, with the model's tokenizer; at most 4.
    draft_model: the package of a smaller model with the same tokenizer.
    draft_context: tokens of a prompt that the draft model reads at most: its end, and the passages that bear on that;
        0 is all of it.
    has_speculator: whether the trained speculator of a package that has one drafts.
    extra: sources of your own (`DraftSource`); at most 4 together with workspace, speculator and draft model.

    Raises ConfigError.
    """

    history: FilePath | None = None
    datastores: Sequence[FilePath] = ()
    draft_model: FilePath | None = None
    draft_context: Annotated[int, Range(0, 1 << 28)] = 0
    has_speculator: bool = True
    extra: Sequence[DraftSource] = ()
    workspace: FilePath | None = None

    def __post_init__(self) -> None:
        check(self)
        for name in ("history", "draft_model", "workspace"):
            if (file := getattr(self, name)) is not None:
                given_path(file, name)
        for name, members in (("datastores", "files"), ("extra", "sources")):
            value = getattr(self, name)
            require(isinstance(value, list | tuple), name, value, f"a list of {members}")
            object.__setattr__(self, name, tuple(value))
        for file in self.datastores:
            given_path(file, "A datastore")
        for source in self.extra:
            require(isinstance(source, DraftSource), "A source", source, "a DraftSource")
