"""What keeping the KV cache in order costs: rows that are copied, against tokens that are committed.

    python -m benchmarks.kv_upkeep RECORDING.jsonl... --tokenizer TOKENIZER [--batches 1,2,4,8,16,32]
        [--contexts 256,512,1024,2048,4096,8192] [--answers 128] [--row-bytes 11880] [--plot upkeep.svg]

The decoder's own loop over recorded texts: requests come as others end, twice as many as the batch takes, and are
drafted by the real drafter, up to 16 nodes a step. No model runs; what comes next is read from the text. Rows are
counted where the cache copies them: when a walk through a tree left the first branch (commit), when slots change places
(swap), and when the cache moves to other memory (growth). A swap of two slots counts the rows of both. Beside them
stand the rows that passes read, and bytes of a model with --row-bytes a token. At last, by context: the power of the
batch with which rows copied for each token grow from a batch of two on; below 1, the cache's upkeep is amortised
sublinear in the batch (the claim of READER, arXiv 2508.09072).
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from reader_edge.bench.plot import check_plot, new_figure, save_plot
from reader_edge.bench.recording import read_recording
from reader_edge.model_source import load_tokenizer
from reader_edge_runtime import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.execution.onnxruntime.host.kv_slab import KvSlab
from reader_edge_runtime.package.manifest import FileEntry, Manifest
from reader_edge_runtime.target import Cache, ForwardResult, Int64Array, Pass

CAUSES = ("commit", "swap", "growth")
_MAX_NODES = 16
_ROUNDS = 2  # of requests, as many as the batch takes each


class CountedCache(HostCache):
    """rows: copied so far, by cause."""

    def __init__(self, manifest: Manifest, num_slots: int, capacity: int) -> None:
        self.rows: Counter[str] = Counter()
        super().__init__(manifest, num_slots, capacity)

    def _move_rows(self, slot: int, rows: Int64Array, start: int) -> None:
        self.rows["commit"] += len(rows)
        super()._move_rows(slot, rows, start)

    def _swap_contents(self, slot: int, other: int) -> None:
        self.rows["swap"] += self.lengths[slot] + self.lengths[other]
        super()._swap_contents(slot, other)

    def _move_to(self, slabs: list[KvSlab], is_paged: bool, kept: Sequence[int]) -> None:
        self.rows["growth"] += sum(kept)
        super()._move_to(slabs, is_paged, kept)


class TextTarget:
    """A target that says what the text says. A text's first token is its number, which its cache rows hold."""

    provider = "text"
    is_native = False
    instructions: str | None = None
    min_rows = 1
    pass_facts: tuple[str, ...] = ()

    def __init__(self, manifest: Manifest, texts: Sequence[list[int]]) -> None:
        self.manifest = manifest
        self.texts = texts

    def with_min_rows(self, min_rows: int) -> "TextTarget":
        return self

    def new_cache(self, num_slots: int, capacity: int) -> CountedCache:
        return CountedCache(self.manifest, num_slots, capacity)

    def prefill_chunk(self, past: int) -> int:
        return 128

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        assert isinstance(cache, CountedCache)
        slots = range(wanted.first_slot, wanted.first_slot + len(wanted.trees))
        width = max(map(len, wanted.trees))
        cache.extend(wanted.first_slot, len(slots), width)
        top_ids = np.zeros((len(wanted.trees), max(map(len, wanted.rows)), 1), np.int64)
        for b, (slot, tree) in enumerate(zip(slots, wanted.trees, strict=True)):
            length, rows = cache.lengths[slot], cache.slab[0, slot, 0]
            rows[length : length + len(tree), 0] = tree.token_ids
            text = self.texts[int(rows[0, 0])]
            _, depths = tree.ancestors_and_depths()
            is_said = [True] * len(tree)
            for node in range(1, len(tree)):
                is_said[node] = is_said[tree.parents[node]] and tree.token_ids[node] == text[length + depths[node]]
            for r, node in enumerate(wanted.rows[b]):
                top_ids[b, r, 0] = text[length + depths[node] + 1] if is_said[node] else 0
        return ForwardResult(top_ids, np.zeros(top_ids.shape, np.float32))

    def release_memory(self) -> None:
        """There is none."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+", help="recorded answers, NAME.jsonl")
    parser.add_argument("--tokenizer", required=True, help="the recordings' tokenizer.json")
    parser.add_argument("--batches", default="1,2,4,8,16,32")
    parser.add_argument("--contexts", default="256,512,1024,2048,4096,8192", help="tokens of a prompt")
    parser.add_argument("--answers", type=int, default=128, help="tokens of an answer, each request's a little other")
    parser.add_argument("--row-bytes", type=int, default=11880, help="of a token in the cache; SmolLM2-135M's in int8")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    check_plot(options.plot)
    batches, contexts = ([int(part) for part in text.split(",")] for text in (options.batches, options.contexts))
    tokenizer = load_tokenizer(options.tokenizer)
    requests = chain.from_iterable(read_recording(path, tokenizer) for path in options.recordings)
    token_ids = [token_id for each in requests for turn in each.turns for token_id in (*turn.prompt, *turn.output)]
    needed = max(contexts) + 2 * options.answers + _MAX_NODES
    if min(*batches, *contexts, options.answers // 2) < 1 or len(token_ids) <= needed:
        parser.error(
            f"The recordings hold {len(token_ids)} tokens and {needed} are needed; batches and contexts are 1 or more, "
            "answers 2."
        )
    columns = ["context", "batch", "tokens a step", "rows a step: commit", "swap", "growth", "a token", "MB a step"]
    print("| " + " | ".join([*columns, "of rows read"]) + " |")
    print("|---" * 9 + "|")
    found = {}
    for context in contexts:
        for batch in batches:
            steps, num_tokens, rows, num_read = upkeep(token_ids, context, batch, options.answers)
            found[context, batch] = sum(rows.values()) / num_tokens
            by_cause = " | ".join(f"{rows[cause] / steps:.1f}" for cause in CAUSES)
            megabytes = sum(rows.values()) / steps * options.row_bytes / 1e6
            print(
                f"| {context} | {batch} | {num_tokens / steps:.2f} | {by_cause} | {found[context, batch]:.2f} "
                f"| {megabytes:.2f} | {sum(rows.values()) / num_read:.2%} |",
                flush=True,
            )
    print()
    for context in contexts:
        several = {batch: found[context, batch] for batch in batches if batch > 1}
        if len(several) > 1:
            print(f"context {context}: rows copied for each token grow as batch^{exponent(several):.2f}")
    if options.plot is not None:
        _plot(found, batches, contexts, options.plot)


def upkeep(token_ids: Sequence[int], context: int, batch: int, num_answer: int) -> tuple[int, int, Counter[str], int]:
    """Steps, committed tokens of answers, rows copied by cause, and rows that steps of running requests read."""
    num_texts = _ROUNDS * batch
    texts = []
    for number in range(num_texts):
        start = number * (context + num_answer) % (len(token_ids) - context - 2 * num_answer - _MAX_NODES)
        texts.append([number, *token_ids[start : start + context + 2 * num_answer + _MAX_NODES]])
    manifest = _manifest(max(max(token_ids), num_texts) + 1, context + 2 * num_answer + _MAX_NODES)
    drafter = RetrievalDrafter(DraftConfig(max_nodes=_MAX_NODES))
    drafter.wait()
    decoder = Decoder(TextTarget(manifest, texts), drafter, EngineConfig(max_batch=batch), Planner(_MAX_NODES))
    random = np.random.default_rng(0)
    lengths = random.integers(num_answer // 2, num_answer * 3 // 2, num_texts)  # so that they end at different times
    requests = [
        decoder.submit(text[:context], GenerationConfig(max_tokens=int(length), ignores_eos=True))
        for text, length in zip(texts, lengths, strict=True)
    ]
    cache, steps, num_read = decoder.cache, 0, 0
    assert isinstance(cache, CountedCache)
    while any(request.is_running for request in requests):
        steps += bool(decoder.running)
        num_read += sum(cache.lengths[: len(decoder.running)])
        decoder.step()
    for request, text, length in zip(requests, texts, lengths, strict=True):
        assert request.output_token_ids == text[context : context + int(length)], (
            "an answer that the text does not give"
        )
    return steps, int(lengths.sum()), cache.rows, num_read


def exponent(by_batch: Mapping[int, float]) -> float:
    """The power with which values grow with the batch, by least squares of their logarithms."""
    batches, values = np.log2(list(by_batch)), np.log2(list(by_batch.values()))
    return float(np.polyfit(batches, values, 1)[0])


def _manifest(vocab_size: int, max_context: int) -> Manifest:
    entry = FileEntry(0, "0" * 64)
    return Manifest(
        architecture="llama",
        num_heads=1,
        num_kv_heads=1,
        head_dim=2,
        num_layers=1,
        vocab_size=vocab_size,
        top_k=1,
        max_context=max_context,
        sliding_window=None,
        precision="fp32",
        attention="exact",
        kv_dtype="float32",
        eos_token_ids=(),
        bos_token_id=None,
        source_name="text",
        source_fingerprint="text",
        exported_with={},
        checks={},
        files={"model.onnx": entry, "tokenizer.json": entry},
    )


def _plot(found: dict[tuple[int, int], float], batches: Sequence[int], contexts: Sequence[int], path: Path) -> None:
    figure = new_figure(6, 4)
    axes = figure.subplots()
    for context in contexts:
        axes.plot(batches, [found[context, batch] for batch in batches], marker="o", label=f"context {context}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("batch")
    axes.set_ylabel("rows copied for each token of an answer")
    axes.legend()
    save_plot(figure, path)


if __name__ == "__main__":
    main()
