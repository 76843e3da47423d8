"""How far packages stray from their source, beside llama.cpp's files of the same source; writes FIDELITY.md.

    python -m benchmarks.fidelity CACHE --model SOURCE --texts FILE... [--gguf FILE] [--precisions int8,...]

SOURCE: a Hugging Face folder or a GGUF file. --texts: recorded answers (the format of `reader-edge bench replay`),
rendered with the model's own chat template. CACHE keeps llama.cpp's environment, packages, GGUF files and the figures
of each text, so that a run which was cut short goes on where it ended, and after a change of the export only packages
are made and measured again.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path

from benchmarks.fidelity.divergence_store import DivergenceStore
from benchmarks.fidelity.models import FidelityModels
from benchmarks.fidelity.recorded_chats import mixed
from benchmarks.fidelity.report import FidelityRow, write_rows
from benchmarks.fidelity.scorers import LogitScorer, llama_cpp_scorer, package_scorer, source_scorer
from benchmarks.peers.measuring import say
from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.sources.find import find_source
from reader_edge_export.sources.source import Source
from reader_edge_export.sources.source_model import vocab_size_of
from reader_edge_export.sources.tokenizer import text_tokenizer
from reader_edge_export.texts.text_set import TextSet
from tests.export.source_models import load_model

MIN_TOKENS = 4096
MAX_LENGTH = 1024
PRECISIONS = "int8,int8-kv-fp32,int8-a16,int8-a16-kv-fp32,int4,int4-kv-fp32"

Opener = Callable[[], AbstractContextManager[LogitScorer]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--model", required=True, help="a Hugging Face folder or a GGUF file")
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="recorded answers, NAME.jsonl")
    parser.add_argument("--gguf", type=Path, help="the same model for llama.cpp; by default made from SOURCE")
    parser.add_argument(
        "--precisions", default=PRECISIONS, help="of our packages; behind -kv- the type of their KV cache"
    )
    parser.add_argument("--tokens", type=int, default=2 * MIN_TOKENS, help="how many to measure on")
    parser.add_argument("--name", help="what the page calls the model; by default as SOURCE is called")
    parser.add_argument("--label", default="", help="a word behind our packages' names, such as 'before'")
    options = parser.parse_args()
    if options.tokens < MIN_TOKENS:
        parser.error(f"--tokens is {options.tokens}, but figures need {MIN_TOKENS} or more.")
    with quiet_libraries():
        source = find_source(options.model, None)
        sequences = token_sequences(source, options.texts, options.tokens)
        models = FidelityModels(options.cache.resolve(), source, options.gguf)
        rows = measure_packages(models, sequences, options.precisions.split(","), options.label)
        rows += measure_gguf_files(models, sequences)
    write_rows(options.name or source.short_name, source, options.texts, sequences, rows)


def token_sequences(source: Source, files: Sequence[Path], num_tokens: int) -> list[list[int]]:
    """Conversations of all files in turn as the model sees them, MAX_LENGTH tokens at most each."""
    tokenizer = text_tokenizer(source.load_tokenizer(vocab_size_of(load_model(source))))
    max_length = min(MAX_LENGTH, source.max_context)
    return TextSet(list(mixed(files))).token_sequences(tokenizer, max_length, num_tokens)


def measure_packages(
    models: FidelityModels, sequences: Sequence[list[int]], precisions: Sequence[str], label: str
) -> list[FidelityRow]:
    """Our packages against the source module in fp32, and llama.cpp's fp32 against it: both read the same model."""
    packages = {f"reader-edge {precision} {label}".strip(): models.package(precision) for precision in precisions}
    openers: dict[Path, Opener] = {folder: partial(package_scorer, folder) for folder in packages.values()}
    f32 = models.gguf_file("f32")
    measure(partial(source_scorer, models.source), openers | {f32: _llama_cpp(models, f32)}, sequences)
    named = packages | {"llama.cpp f32": f32}
    return [FidelityRow.of(name, "the source in fp32", path, sequences) for name, path in named.items()]


def measure_gguf_files(models: FidelityModels, sequences: Sequence[list[int]]) -> list[FidelityRow]:
    """llama.cpp's own quantisation, and the file as it came where there is one, against llama.cpp in fp32."""
    named = {f"llama.cpp {kind}": models.gguf_file(kind) for kind in ("q8_0", "q4_0", "q4_k_m")}
    if models.original is not None:
        named["llama.cpp, the file as it came"] = models.original
    f32 = models.gguf_file("f32")
    measure(_llama_cpp(models, f32), {path: _llama_cpp(models, path) for path in named.values()}, sequences)
    return [FidelityRow.of(name, "llama.cpp f32", path, sequences) for name, path in named.items()]


def _llama_cpp(models: FidelityModels, file: Path) -> Opener:
    return partial(llama_cpp_scorer, models.llama_cpp, file, MAX_LENGTH)


def measure(reference: Opener, models: Mapping[Path, Opener], sequences: Sequence[list[int]]) -> None:
    """Keep the divergence of each model from a reference on each text, as far as it is not kept yet.

    The logits of one text are held at a time, of the reference and of one model.
    """
    stores = {path: DivergenceStore(path) for path in models}
    missing = {path: store.missing(sequences) for path, store in stores.items()}
    if not any(missing.values()):
        return
    with ExitStack() as stack:
        expected_of = stack.enter_context(reference())
        scorers = {path: stack.enter_context(models[path]()) for path, texts in missing.items() if texts}
        for number, token_ids in enumerate(sequences, start=1):
            waiting = [path for path, texts in missing.items() if token_ids in texts]
            expected = expected_of(token_ids) if waiting else None
            for path in waiting:
                assert expected is not None
                stores[path].keep(token_ids, expected, scorers[path](token_ids))
            say(f"  text {number} of {len(sequences)}: {len(token_ids)} tokens, {len(waiting)} models")


if __name__ == "__main__":
    main()
