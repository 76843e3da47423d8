"""Recorded answers over measured passes: what drafting would bring to packages, and to GGUF files in llama.cpp.

    python -m benchmarks.passes RECORDING.jsonl... --tokenizer TOKENIZER --packages NAME=PACKAGE...
                                [--past 512] [--rounds 12]

Passes of every package are timed first, in one interleaved run. Then each recording is replayed on each curve T(n),
which decides how wide its trees are: tokens a second, drafting's own time included, and their ratio to the first
package's. NAME=FILE.gguf@PYTHON is a file for llama.cpp; PYTHON is the interpreter of an environment with
llama-cpp-python. Its tokens a second are what our drafts would give with its pass times.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.passes.contenders import GgufContender, PackageContender, contender
from benchmarks.passes.modelling import modelled, replay_reader_edge
from benchmarks.peers.measuring import VOCAB_SIZE, Record
from benchmarks.peers.pass_times import WIDTHS, Effort, measure_passes
from benchmarks.peers.tables import table
from reader_edge.bench.recording import RecordedRequest, read_recording
from reader_edge.models.model_source import load_tokenizer
from reader_edge_runtime.package.model_package import ModelPackage

Curve = Mapping[int, float]  # width -> seconds of a pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+", help="recorded answers, NAME.jsonl")
    parser.add_argument("--tokenizer", required=True, help="the recordings' tokenizer.json")
    parser.add_argument("--packages", nargs="+", metavar="NAME=PACKAGE", required=True)
    parser.add_argument("--past", type=int, default=512, help="tokens that the passes are timed behind")
    parser.add_argument("--rounds", type=int, default=12, help="passes of every width")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            contenders = [contender(text, Path(folder)) for text in options.packages]
        except ValueError as error:
            parser.error(str(error))
        figures = timed(contenders, options.past, options.rounds)
    failed = [f"{name}: {record['error']}" for name, record in figures.items() if "error" in record]
    if failed:
        parser.error("; ".join(failed))
    curves = curves_of(figures, options.past)
    times = [[name, *(f"{1e3 * second:.1f}" for second in curve.values())] for name, curve in curves.items()]
    print("\n".join(table([f"T(n) behind {options.past}, ms; n =", *map(str, WIDTHS)], times)), end="\n\n")
    tokenizer = load_tokenizer(options.tokenizer)
    recordings = {path.stem: read_recording(path, tokenizer) for path in options.recordings}
    print("\n".join(compared(recordings, curves)))


def timed(contenders: Sequence[PackageContender | GgufContender], past: int, rounds: int) -> dict[str, Record]:
    """Passes of packages and files. Files must have the tokens of packages."""
    packages = [each.package for each in contenders if isinstance(each, PackageContender)]
    sizes = [ModelPackage.open(package).manifest.vocab_size for package in packages]
    shape = "demo" if min(sizes, default=VOCAB_SIZE) < VOCAB_SIZE else ""  # whose tokens all of them have
    return measure_passes(contenders, Effort(shape, (past,), num_answers=0, num_passes=rounds))


def curves_of(figures: Mapping[str, Any], past: int) -> dict[str, Curve]:
    """Contender -> its median passes behind so many tokens."""
    curves: dict[str, Curve] = {}
    for name, record in figures.items():
        passes = record["pasts"].get(str(past), {}).get("pass_s", {})
        if passes:
            curves[name] = {int(width): statistics.median(seconds) for width, seconds in passes.items()}
    return curves


def compared(recordings: Mapping[str, Sequence[RecordedRequest]], curves: Mapping[str, Curve]) -> list[str]:
    """A table of drafted tokens a second and their ratio to the first curve's; a row a recording, and the means."""
    rates = [[_tokens_per_s(requests, curve) for curve in curves.values()] for requests in recordings.values()]
    means = [statistics.mean(column) for column in zip(*rates, strict=True)]
    rows = [[name, *_row(of_name)] for name, of_name in zip([*recordings, "mean"], [*rates, means], strict=True)]
    return table(["drafted tokens/s", *curves], rows)


def _row(rates: Sequence[float]) -> list[str]:
    return [f"{rates[0]:.1f}", *(f"{rate:.1f} ({rate / rates[0]:.2f})" for rate in rates[1:])]


def _tokens_per_s(requests: Sequence[RecordedRequest], curve: Curve) -> float:
    replay = replay_reader_edge(requests, curve)
    return 1 / modelled(replay, curve, replay.prefill_s + replay.draft_s + replay.learn_s).token_s


if __name__ == "__main__":
    main()
