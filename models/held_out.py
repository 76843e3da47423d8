"""Writes the held-out documents that the tests and benchmarks read.

python -m models.held_out --corpora corpora --out tests/data/held_out.jsonl
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from models.corpus import LICENCES, Document, split_documents

#: Documents of each kind: tldr pages and documentation pages.
DOCUMENTS_EACH = 24
MAX_CHARACTERS = 6000
#: Shorter pages are front matter or redirects with nothing to predict.
MIN_CHARACTERS = 200


def truncated(text: str) -> str:
    """Cuts a text after the last whole line within ``MAX_CHARACTERS``."""
    if len(text) <= MAX_CHARACTERS:
        return text
    return text[: text.rfind("\n", 0, MAX_CHARACTERS) + 1]


def spread(documents: list[Document], count: int) -> list[Document]:
    """Takes documents from the corpora in turn, in digest order, until there are ``count``.

    Taking turns keeps the largest corpus from crowding out the small ones.
    """
    queues = {name: [d for d in documents if d.corpus == name] for name in LICENCES}
    chosen: list[Document] = []
    while len(chosen) < count and any(queues.values()):
        for queue in queues.values():
            if queue and len(chosen) < count:
                chosen.append(queue.pop(0))
    if len(chosen) < count:
        raise ValueError(f"only {len(chosen)} of {count} documents are long enough")
    return chosen


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the held-out documents.")
    parser.add_argument("--corpora", type=Path, required=True, help="folder of NAME.txt.xz")
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file")
    arguments = parser.parse_args()
    _, held_out = split_documents(arguments.corpora)
    usable = [document for document in held_out if len(document.text) >= MIN_CHARACTERS]
    chosen = spread([d for d in usable if d.corpus == "tldr"], DOCUMENTS_EACH)
    chosen += spread([d for d in usable if d.corpus != "tldr"], DOCUMENTS_EACH)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    with arguments.out.open("w", encoding="utf-8") as stream:
        for document in chosen:
            record = {
                "id": document.path,
                "corpus": document.corpus,
                "licence": LICENCES[document.corpus],
                "text": truncated(document.text),
            }
            stream.write(json.dumps(record, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
