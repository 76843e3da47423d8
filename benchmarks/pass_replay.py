"""How much faster drafted decoding of one precision is than of another: recorded answers over the passes of PASSES.md.

    python -m benchmarks.pass_replay RECORDING.jsonl... --tokenizer TOKENIZER [--part passes-0.5b] [--past 512]
                                     [--contenders "reader-edge int8,reader-edge int4"]

Each recording is replayed for each contender on its own curve T(n), which decides how wide its trees are: tokens a
second, drafting's own time counted in, and their ratio to the first contender's. It reads results.json, where
`benchmarks.run` keeps what it measured, and writes nothing.
"""

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.modelling import modelled, replay_reader_edge
from benchmarks.run import PASSES, RESULTS
from benchmarks.tables import table
from reader_edge.bench.recording import RecordedRequest, read_recording
from reader_edge.model_source import load_tokenizer

Curve = Mapping[int, float]  # width -> seconds of a pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path, nargs="+", help="recorded answers, NAME.jsonl")
    parser.add_argument("--tokenizer", required=True, help="the recordings' tokenizer.json")
    parser.add_argument("--part", default="passes-0.5b", choices=PASSES, help="of results.json")
    parser.add_argument("--past", type=int, default=512, help="tokens that the passes were measured behind")
    parser.add_argument("--contenders", default="reader-edge int8,reader-edge int4", help="as PASSES.md names them")
    options = parser.parse_args()
    curves = curves_of(json.loads(RESULTS.read_text()), options.part, options.past)
    unknown = set(options.contenders.split(",")) - {*curves}
    if unknown:
        parser.error(f"{options.part} has no passes of {min(unknown)} behind {options.past} tokens.")
    tokenizer = load_tokenizer(options.tokenizer)
    recordings = {path.stem: read_recording(path, tokenizer) for path in options.recordings}
    print("\n".join(compared(recordings, {name: curves[name] for name in options.contenders.split(",")})))


def curves_of(results: Mapping[str, Any], part: str, past: int) -> dict[str, Curve]:
    """Contender -> its median passes behind so many tokens."""
    curves: dict[str, Curve] = {}
    for name, record in results.get(part, {}).get("figures", {}).items():
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
