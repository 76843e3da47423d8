"""Many short requests on one engine: does memory grow, does speed fall?

    python -m tests.durability.soak [MODEL] -o OUT

Writes OUT.csv, a row every few requests, and OUT.svg. Prompts are parts of the held-out documents, of changing length.
The history and the recorded successors are filled to their bounds before the first request, as in a service that has
long been running: what grows then is no table on its way to its bound. Exit code 1 when the last tenth of the requests
held over a hundredth more memory than the second.
"""

import argparse
import csv
import io
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import median

import numpy as np

from reader_edge.bench.plot import check_plot, new_figure, save_plot
from reader_edge.models.model_source import find_package
from reader_edge.terminal.memory import peak_bytes, resident_bytes
from reader_edge_runtime import Engine, GenerationConfig, GenerationStats, SamplingConfig
from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.draft_tree import DraftTree, ScoredTree
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter

DOCUMENTS = Path(__file__).resolve().parents[1] / "data" / "held_out.jsonl"
MAX_GROWTH = 0.01
CHAIN = 1000


@dataclass(frozen=True, slots=True)
class Row:
    """What was seen after `requests` requests; speed and acceptance are those since the row before."""

    requests: int
    tokens: int
    resident_mb: float
    tokens_per_s: float
    acceptance_length: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("-o", "--out", type=Path, required=True, help="name of the results, without suffix")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=96, help="new tokens of each request")
    parser.add_argument("--every", type=int, default=100, help="requests between two rows")
    options = parser.parse_args()
    plot = options.out.with_suffix(".svg")
    check_plot(plot)

    engine = Engine.load(find_package(options.model))
    fill_stores(engine)
    rows = list(soak(engine, options.requests, options.tokens, options.every))
    write_csv(rows, options.out.with_suffix(".csv"))
    draw(rows, plot)

    tenth = len(rows) // 10
    early, late = rows[tenth : 2 * tenth], rows[-tenth:]
    before_mb, after_mb = (median(row.resident_mb for row in each) for each in (early, late))
    print(
        f"{rows[-1].requests} requests, {rows[-1].tokens} tokens; second tenth, last tenth: "
        f"{before_mb:.1f} and {after_mb:.1f} MB, {speed(early):.0f} and {speed(late):.0f} tokens/s; "
        f"peak {peak_bytes() / 1e6:.1f} MB"
    )
    if after_mb > (1 + MAX_GROWTH) * before_mb:
        sys.exit(f"Memory grew by {after_mb - before_mb:.1f} MB.")


def fill_stores(engine: Engine) -> None:
    """Texts without repetition, which take the most memory, up to the bounds of what is kept."""
    drafter = engine.decoder.drafter
    assert isinstance(drafter, RetrievalDrafter)
    core = drafter.wait().core()
    assert core is not None
    random, vocab_size = np.random.default_rng(0), engine.package.manifest.vocab_size
    while core.history.epoch == 0:
        core.history.add(random.integers(0, vocab_size, 100).astype(np.int32))
    for _ in range(0, 8 * core.successors.max_pairs, CHAIN):
        tree = DraftTree.chain(random.integers(0, vocab_size, CHAIN).tolist())
        top_ids = random.integers(0, vocab_size, (CHAIN, 8))
        top_logits = np.tile(np.arange(8, 0, -1, dtype=np.float32), (CHAIN, 1))
        core.successors.learn(ScoredTree(tree, range(CHAIN), 0, top_ids, top_logits, vocab_size), [])


def soak(engine: Engine, num_requests: int, num_tokens: int, every: int) -> Iterator[Row]:
    """Answer request after request, greedy and sampled in turn."""
    documents = [json.loads(line)["text"] for line in DOCUMENTS.read_text(encoding="utf-8").splitlines()]
    stats, since, tokens = GenerationStats(), time.perf_counter(), 0
    for number in range(num_requests):
        document = documents[number % len(documents)]
        start = 31 * number % max(1, len(document) - 400)
        prompt = document[start : start + 20 + number * 7 % 380]
        sampling = SamplingConfig(temperature=0.8 * (number % 2), seed=number)
        result = engine.generate(prompt, GenerationConfig(num_tokens, sampling, ignores_eos=True))
        stats = GenerationStats.total((stats, result.stats))
        if (number + 1) % every == 0:
            tokens += stats.num_tokens
            seconds = time.perf_counter() - since
            megabytes = round(resident_bytes() / 1e6, 2)
            length = round(stats.acceptance_length, 3)
            yield Row(number + 1, tokens, megabytes, round(stats.num_tokens / seconds, 1), length)
            if sys.stderr.isatty():
                print(f"\r{number + 1} requests, {megabytes} MB", end="", file=sys.stderr)
            stats, since = GenerationStats(), time.perf_counter()


def speed(rows: list[Row]) -> float:
    return median(row.tokens_per_s for row in rows)


def write_csv(rows: list[Row], path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([field.name for field in fields(Row)])
    writer.writerows(astuple(row) for row in rows)
    write_file(path, text.getvalue().encode())


def draw(rows: list[Row], path: Path) -> None:
    figure = new_figure(8, 4)
    above, below = figure.subplots(2, 1, sharex=True)
    numbers = [row.requests for row in rows]
    above.plot(numbers, [row.resident_mb for row in rows])
    above.set_ylabel("resident MB")
    above.set_ylim(0)
    below.plot(numbers, [row.tokens_per_s for row in rows])
    below.set_ylabel("tokens/s, prompts included")
    below.set_ylim(0)
    below.set_xlabel("requests")
    save_plot(figure, path)


if __name__ == "__main__":
    main()
