"""The text the demo model is trained on: reading, splitting and packing documents."""

from __future__ import annotations

import hashlib
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RECORD_SEPARATOR = "\x1e"

#: Licence of every corpus; the evaluation and the test data carry it along.
LICENCES = {
    "tldr": "CC BY 4.0, tldr-pages contributors",
    "rust-book": "MIT OR Apache-2.0",
    "rust-reference": "MIT OR Apache-2.0",
    "prometheus": "Apache-2.0",
    "opentelemetry": "CC BY 4.0, OpenTelemetry authors",
}

#: Share of each corpus that is never trained on. The documentation corpora have few (long)
#: documents, so they give up a larger share to leave enough of them for an evaluation.
HELD_OUT_SHARE = {"tldr": 0.03}
HELD_OUT_SHARE_DEFAULT = 0.05

#: How the command lines of a tldr page begin, and those that only open another tldr page.
COMMAND_LINE = "`"
POINTER_LINE = "`tldr "

#: A document cut at the end of a row goes on in the next row only if at least this many of its
#: tokens are left. Otherwise the next row starts with a new document, which teaches the model
#: what a beginning looks like when nothing stands before it: the situation of every prompt.
MIN_CONTINUATION = 128


@dataclass(frozen=True, slots=True)
class Document:
    """One page of a corpus."""

    corpus: str
    path: str
    text: str

    @property
    def key(self) -> str:
        """A hexadecimal digest of corpus and path: a stable, arbitrary order of documents."""
        return hashlib.sha256(f"{self.corpus}/{self.path}".encode()).hexdigest()

    @property
    def is_pointer(self) -> bool:
        """Whether this is a tldr page (of an alias, mostly) that only points to other pages."""
        commands = [line for line in self.text.splitlines() if line.startswith(COMMAND_LINE)]
        return self.corpus == "tldr" and all(line.startswith(POINTER_LINE) for line in commands)


def read_corpus(file: Path) -> list[Document]:
    """Reads one ``NAME.txt.xz``: record separator, path, newline, text; repeated."""
    name = file.name.removesuffix(".txt.xz")
    with lzma.open(file, "rt", encoding="utf-8", newline="") as stream:
        records = stream.read().split(RECORD_SEPARATOR)[1:]
    documents = []
    for record in records:
        path, _, text = record.partition("\n")
        if text.strip():
            documents.append(Document(name, path, text.strip("\n") + "\n"))
    return documents


def split_documents(corpora: Path) -> tuple[list[Document], list[Document]]:
    """Splits all corpora into (train, held-out).

    Within each corpus the documents with the smallest digests are held out, so that every
    corpus is represented. A held-out page whose text also occurs word for word among the
    training pages would measure memory instead of prediction, so such pages are left out of both.
    """
    train: list[Document] = []
    held_out: list[Document] = []
    for name in LICENCES:
        documents = sorted(read_corpus(corpora / f"{name}.txt.xz"), key=lambda d: d.key)
        share = HELD_OUT_SHARE.get(name, HELD_OUT_SHARE_DEFAULT)
        count = max(2, round(share * len(documents)))
        held_out += documents[:count]
        train += documents[count:]
    seen = {document.text for document in train}
    return train, [document for document in held_out if document.text not in seen]


def training_rows(
    documents: list[NDArray[np.int32]], length: int, rng: np.random.Generator
) -> Iterator[NDArray[np.int32]]:
    """Yields rows of ``length + 1`` tokens for ever, in a new order in every pass.

    ``documents`` are tokens with the end-of-text token last. A row's last token is the target
    of the one before it, and is the first token of the row that continues it.
    """
    row = np.empty(length + 1, dtype=np.int32)
    filled = 0
    while True:
        for index in rng.permutation(len(documents)):
            rest = documents[index]
            while len(rest):
                taken = min(len(rest), length + 1 - filled)
                row[filled : filled + taken] = rest[:taken]
                filled += taken
                rest = rest[taken:]
                if filled == length + 1:
                    yield row.copy()
                    filled = 0
                    if len(rest) < MIN_CONTINUATION:
                        break
                    row[0] = row[-1]
                    filled = 1
