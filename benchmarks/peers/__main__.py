"""Measure what `benchmarks.peers.prepare` made, and write RESULTS.md, PASSES.md and results.json beside this file.

    python -m benchmarks.peers CACHE [--parts PART,...] [--real SOURCE --prompts FILE]
    python -m benchmarks.peers CACHE --parts passes-real,passes-0.5b,passes-3b --real SOURCE [--name NAME] [--rounds N]

Each part is one interleaved run of a few minutes and replaces its own figures only, so that parts can be run again.
Part "real" asks a real model, which `benchmarks.peers.prepare --real SOURCE` converted, the prompts of a file. Parts of
passes need what `benchmarks.peers.prepare --passes` made, and write PASSES.md.
"""

import argparse
import datetime
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.measuring import Record, measure_answers, measure_decoding, measure_long_prompt, say
from benchmarks.peers.pass_contenders import pass_contenders
from benchmarks.peers.pass_report import write_pass_report
from benchmarks.peers.pass_times import Effort, measure_passes
from benchmarks.peers.real_model import measure_real
from benchmarks.peers.real_source import real_contenders, shape_of
from benchmarks.peers.report import write_report
from benchmarks.peers.runtimes import DEMO, ROOT, RUNTIMES, Contender, contenders
from benchmarks.peers.tables import machine
from reader_edge.models.model_source import load_tokenizer

QWEN, SMOL = "qwen2.5-0.5b", "smollm2-135m"
NUM_PROMPTS, PROMPT_CHARACTERS, ANSWER_TOKENS = 12, 300, 96

PASSES = {
    "passes-real": Effort("", pasts=(64, 512, 2048, 4096), num_answers=3, num_passes=12),
    "passes-0.5b": Effort(QWEN, pasts=(64, 512, 2048, 4096), num_answers=2, num_passes=5),
    "passes-3b": Effort("qwen2.5-3b", pasts=(64, 512), num_answers=1, num_passes=3, left_out="int8-kv-fp32"),
}
RESULTS = Path(__file__).parent / "results.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path, help="the folder that `benchmarks.peers.prepare` filled")
    parser.add_argument("--parts", default="", help=f"from {', '.join(KNOWN)}; all but passes by default")
    parser.add_argument("--only", default="", help="runtimes, of part real also contenders; all by default")
    parser.add_argument("--real", type=Path, help="a Hugging Face folder or GGUF file that was prepared")
    parser.add_argument("--name", help="what PASSES.md calls it; by default as SOURCE is called")
    parser.add_argument("--rounds", type=int, help="of passes; by default as many as take ten minutes on two cores")
    parser.add_argument("--prompts", type=Path, help="its prompts, in a file as `reader-edge bench decode` takes it")
    parser.add_argument("--max-tokens", type=int, default=128, help="tokens of its answers at most")
    options = parser.parse_args()
    parts = options.parts.split(",") if options.parts else [*PARTS, "real"]
    unknown = set(parts) - {*KNOWN}
    if unknown:
        parser.error(f"There is no part {min(unknown)}.")
    only = options.only.split(",") if options.only else [runtime.name for runtime in RUNTIMES]
    wanted = [contender for contender in contenders(options.cache.resolve()) if contender.runtime.name in only]
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for part in parts:
        say(part)
        start = time.perf_counter()
        if part == "real":
            figures = _ask_real_model(options, only)
        elif part in PASSES:
            figures = _measure_passes(options, PASSES[part], only)
        else:
            figures = PARTS[part](wanted)
        if figures is None:
            continue
        results[part] = {
            "model": (options.name or options.real.name) if part in ("real", "passes-real") else "",
            "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "command": f"python -m benchmarks.peers CACHE --parts {part}",
            "machine": machine(),
            "seconds": round(time.perf_counter() - start),
            "figures": figures,
        }
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        write_report(results)
        write_pass_report(results)


def _ask_real_model(options: argparse.Namespace, only: list[str]) -> dict[str, Any] | None:
    if options.real is None or options.prompts is None:
        say("  left out: it needs --real and --prompts")
        return None
    found = real_contenders(options.cache.resolve(), options.real)
    wanted = [contender for contender in found if contender.runtime.name in only or contender.name in only]
    ours = next(contender for contender in found if contender.runtime.name == "reader-edge")
    return measure_real(wanted, ours, options.real, options.prompts, options.max_tokens)


def _measure_passes(options: argparse.Namespace, effort: Effort, only: list[str]) -> dict[str, Record] | None:
    if not effort.shape:
        if options.real is None:
            say("  left out: it needs --real")
            return None
        effort = effort._replace(shape=shape_of(options.real))
    effort = _in_rounds(effort, options.rounds)
    found = pass_contenders(options.cache.resolve(), effort.shape)
    wanted = [each for each in found if each.runtime.name in only and each.precision != effort.left_out]
    return measure_passes(wanted, effort)


def _in_rounds(effort: Effort, rounds: int | None) -> Effort:
    if rounds is None:
        return effort
    return effort._replace(num_answers=min(rounds, effort.num_answers), num_passes=rounds)


def _decoding(shape: str, bits: tuple[int, ...], rounds: int, num_tokens: int) -> Callable[[list[Contender]], Any]:
    return lambda wanted: measure_decoding([c for c in wanted if c.bits in bits], shape, rounds, num_tokens)


def _long_prompt(shape: str, bits: tuple[int, ...], rounds: int) -> Callable[[list[Contender]], Any]:
    return lambda wanted: measure_long_prompt([c for c in wanted if c.bits in bits], shape, rounds)


def _answers(wanted: list[Contender]) -> dict[str, Record]:
    tokenizer = load_tokenizer(str(DEMO))
    lines = (ROOT / "tests" / "data" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line)["text"][:PROMPT_CHARACTERS] for line in lines]
    prompts = [tokenizer.encode(text) for text in texts[:: len(texts) // NUM_PROMPTS]]
    return measure_answers(wanted, "demo", prompts, ANSWER_TOKENS)


PARTS: dict[str, Callable[[list[Contender]], Any]] = {
    "0.5b-quantised": _decoding(QWEN, (8, 4), rounds=4, num_tokens=49),
    "0.5b-full": _decoding(QWEN, (32, 16), rounds=3, num_tokens=33),
    "0.5b-prompt": _long_prompt(QWEN, (8, 4), rounds=2),
    "135m-quantised": _decoding(SMOL, (8, 4), rounds=4, num_tokens=49),
    "135m-full": _decoding(SMOL, (32, 16), rounds=3, num_tokens=33),
    "135m-prompt": _long_prompt(SMOL, (8, 4, 32, 16), rounds=2),
    "demo": _answers,
}
KNOWN = (*PARTS, "real", *PASSES)


if __name__ == "__main__":
    main()
