"""A datastore in shards by subject: text of folders, made longer, and texts that are held out of it.

    python -m benchmarks.scale.shards OUT --tokenizer TOKENIZER [--tokens 8000000] [--read 2000000] NAME=FOLDER...

writes OUT/NAME.ds for each subject, its share of held-out texts (OUT/held-out.npz) and how often each subject uses each
token (OUT/profiles.npz), by which look-ups are routed. Where a folder has less text than asked for, its own text is
copied on in runs that begin where the last one's final token occurs: a large file of text that stays alike.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from reader_edge.model_source import load_tokenizer
from reader_edge_runtime.arrays import Int64Array
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.header import DatastoreFacts
from reader_edge_runtime.text.tokenizer import Tokenizer

_SUFFIXES = {".c", ".h", ".hpp", ".js", ".md", ".pl", ".pm", ".py", ".rst", ".txt", ".vim"}
_MAX_BYTES = 1 << 18  # of a file that is read
_LONGEST_LINE = 500  # longer ones are no text that somebody wrote, and slow to encode
_RUN = 24  # tokens of a copied run, in the mean
_HELD_OUT = 50  # one document in so many


def folder_documents(folder: Path, tokenizer: Tokenizer, max_tokens: int) -> Iterator[list[int]]:
    """Token ids of a folder's text files, until there are enough; in an order drawn once."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _SUFFIXES and path.is_file())
    order = np.random.default_rng(0).permutation(len(paths))
    num_tokens = 0
    for path in (paths[i] for i in order):
        if num_tokens >= max_tokens:
            return
        text = path.read_bytes()[:_MAX_BYTES].decode("utf-8", "ignore")
        if max(map(len, text.splitlines()), default=0) <= _LONGEST_LINE and (ids := tokenizer.encode(text, False)):
            num_tokens += len(ids)
            yield ids


def longer(text: Int64Array, num_tokens: int, rng: np.random.Generator) -> Int64Array:
    """So many tokens: the text, then runs of it, each behind another occurrence of the last run's final token."""
    parts, count = [text[:num_tokens]], min(len(text), num_tokens)
    order = np.argsort(text, kind="stable")
    firsts = np.searchsorted(text[order], np.arange(text.max() + 2))
    token_id = int(text[-1])
    while count < num_tokens:
        start = int(order[rng.integers(firsts[token_id], firsts[token_id + 1])]) + 1
        run = text[start : start + 1 + rng.geometric(1 / _RUN)]
        if len(run):
            parts.append(run)
            count += len(run)
            token_id = int(run[-1])
        else:
            token_id = int(text[rng.integers(len(text))])
    return np.concatenate(parts)[:num_tokens]


def build_shard(path: Path, documents: Sequence[Sequence[int]], num_tokens: int, tokenizer: Tokenizer) -> Int64Array:
    """Write a subject's shard; returns how often it uses each token, int64 (V,)."""
    text = longer(np.concatenate([np.asarray(each) for each in documents]), num_tokens, np.random.default_rng(0))
    builder = DatastoreBuilder(tokenizer.fingerprint(), tokenizer.vocab_size)
    for part in np.array_split(text, max(1, num_tokens // 100_000)):
        builder.add(part.tolist())
        builder.end_document()
    builder.write(path, DatastoreFacts((path.stem,), 1), lambda stage: None)
    return np.bincount(text, minlength=tokenizer.vocab_size)


def save_arrays(path: Path, arrays: Mapping[str, Int64Array]) -> None:
    """By name, as numpy reads them."""
    np.savez(path, allow_pickle=False, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("subjects", nargs="+", metavar="NAME=FOLDER")
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--tokens", type=int, default=8_000_000, help="of each shard")
    parser.add_argument("--read", type=int, default=2_000_000, help="tokens of each folder at most")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer = load_tokenizer(options.tokenizer)
    held_out: dict[str, Int64Array] = {}
    profiles: dict[str, Int64Array] = {}
    for name, _, folder in (subject.partition("=") for subject in options.subjects):
        documents = list(folder_documents(Path(folder), tokenizer, options.read))
        kept = [each for number, each in enumerate(documents) if number % _HELD_OUT]
        held_out[name] = np.concatenate(documents[::_HELD_OUT])
        num_real = sum(map(len, kept))
        print(f"{name}: {num_real} tokens of {len(kept)} files, made {options.tokens}", file=sys.stderr)
        profiles[name] = build_shard(options.out / f"{name}.ds", kept, options.tokens, tokenizer)
    save_arrays(options.out / "held-out.npz", held_out)
    save_arrays(options.out / "profiles.npz", profiles)


if __name__ == "__main__":
    main()
