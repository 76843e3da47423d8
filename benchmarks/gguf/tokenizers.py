"""Compare the tokenizer that is built from a GGUF file with the model's own, text by text.

    python -m benchmarks.gguf.tokenizers FILE.gguf TOKENIZER.json TEXT...
    python -m benchmarks.gguf.tokenizers FILE.gguf    (beside it .inp and .out, as in llama.cpp/models)

TEXT: UTF-8 files, or .xz of them. Every line is a text, and so is every twelfth run of twelve lines; some are drawn
from letters, digits, marks, spaces and emoji of many scripts. Special tokens are not added. Exit code 1 where ids
differ.
"""

import argparse
import lzma
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.tokenizer import build_tokenizer
from reader_edge_export.sources.gguf.vocabulary import vocabulary_of

RUN = 12
NUM_DRAWN = 5000
CHARACTERS = (
    "aZ s'S\t\n\r  123.,!-=>{}_<|>"
    "\u00e9\u0301\u017f\u2019\u0663\u00bd\u2167\u4e2d\u6587\u3072\u3089\u30ab\ud55c\u0642\u0394\u0436\u0639"
    "\U0001f642\u200d\ufe0f\u00a0\u2028\ufffd\u2581"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("tokenizer", type=Path, nargs="?")
    parser.add_argument("texts", type=Path, nargs="*")
    options = parser.parse_args()
    built = build_tokenizer(vocabulary_of(GgufFile.open(options.gguf)))
    if options.tokenizer is None:
        sys.exit(compare_with_ids(built, options.gguf))
    own = Tokenizer.from_file(str(options.tokenizer))
    different = [
        *compare("files", built, own, [text for path in options.texts for text in texts_of(path)]),
        *compare("drawn", built, own, list(drawn_texts())),
    ]
    for text in different[:5]:
        print(f"{text!r:.200}")
    sys.exit(bool(different))


def compare_with_ids(built: Tokenizer, file: Path) -> bool:
    """Whether ids differ from those that llama.cpp keeps beside a file: of the model's own tokenizer."""
    texts = file.with_name(f"{file.name}.inp").read_bytes().decode("utf-8").split("\n__ggml_vocab_test__\n")
    lines = file.with_name(f"{file.name}.out").read_text().splitlines()
    expected = [[int(token_id) for token_id in line.split()] for line in lines]
    found = [built.encode(text, add_special_tokens=False).ids for text in texts[: len(expected)]]
    num_different = sum(left != right for left, right in zip(found, expected, strict=True))
    print(f"{file.name}: {len(expected)} texts, {sum(map(len, expected))} ids, {num_different} differ")
    return bool(num_different)


def texts_of(path: Path) -> Iterator[str]:
    content = path.read_bytes()
    lines = (lzma.decompress(content) if path.suffix == ".xz" else content).decode("utf-8").split("\n")
    yield from lines
    for start in range(0, len(lines), RUN * RUN):
        yield "\n".join(lines[start : start + RUN])


def drawn_texts() -> Iterator[str]:
    drawn = np.random.default_rng(0)
    for _ in range(NUM_DRAWN):
        yield "".join(drawn.choice(list(CHARACTERS), drawn.integers(1, 60)))


def compare(name: str, built: Tokenizer, own: Tokenizer, texts: list[str]) -> list[str]:
    """The texts whose ids differ; tells how many there are, and whether equal ids make equal texts."""
    ours, theirs = (each.encode_batch_fast(texts, add_special_tokens=False) for each in (built, own))
    pairs = list(zip(texts, ours, theirs, strict=True))
    different = [text for text, left, right in pairs if left.ids != right.ids]
    num_undecoded = sum(built.decode(right.ids) != own.decode(right.ids) for _, _, right in pairs)
    num_ids = sum(len(right.ids) for right in theirs)
    print(f"{name}: {len(texts):,} texts, {num_ids:,} ids, {len(different)} differ, {num_undecoded} decode otherwise")
    return different


if __name__ == "__main__":
    main()
