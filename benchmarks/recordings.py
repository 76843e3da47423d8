"""The modelled part: every runtime's own drafting on recorded answers, over the pass times it was measured at."""

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.measuring import say
from benchmarks.modelling import Modelled, modelled, replay_reader_edge
from benchmarks.prompt_lookup import replay_lookup
from benchmarks.runtimes import RUNTIMES
from reader_edge.bench.recording import RecordedRequest, read_recording
from reader_edge.model_source import load_tokenizer

MEASURED_PARTS = ("0.5b-quantised", "0.5b-full")


def model_recordings(folder: Path, tokenizer_name: str, results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Recording -> contender -> its modelled decoding at the 0.5B shape."""
    curves = pass_curves(results)
    tokenizer = load_tokenizer(tokenizer_name)
    figures: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        figures[path.stem] = model_recording(read_recording(path, tokenizer), curves)
        say(f"  {path.stem}")
    return figures


def pass_curves(results: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Contender -> width -> median seconds of a pass, from the parts measured so far."""
    curves = {}
    for part in MEASURED_PARTS:
        for name, record in results.get(part, {}).get("figures", {}).items():
            if record["pass_s"]:
                curves[name] = {int(w): statistics.median(seconds) for w, seconds in record["pass_s"].items()}
    return curves


def model_recording(requests: list[RecordedRequest], curves: dict[str, dict[int, float]]) -> dict[str, Any]:
    """Contender -> its modelled decoding of one recording."""
    figures: dict[str, Modelled] = {}
    for runtime in RUNTIMES:
        looked_up = replay_lookup(requests, runtime.lookup) if runtime.lookup else None
        for precision in runtime.precisions:
            name = f"{runtime.name} {precision}"
            if name not in curves:
                continue
            if looked_up is None:
                replay = replay_reader_edge(requests, curves[name])
                figures[name] = modelled(replay, curves[name], replay.prefill_s + replay.draft_s + replay.learn_s)
            else:
                figures[name] = modelled(looked_up, curves[name])
    return {name: asdict(figure) for name, figure in figures.items()}
