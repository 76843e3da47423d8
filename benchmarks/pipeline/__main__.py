"""What links of some latency leave of a model's speed: 1, 2 and 3 stages, plain and drafted, and several requests.

    python -m benchmarks.pipeline PACKAGE [--prompts FILE.jsonl] [--num-prompts 3] [--tokens 64] [--stages 2,3]
                                  [--latencies 0,5,20,50,100] [--threads 1] [--requests 1,2,4,8] [--at 20] --out NAME

Every box is a network namespace of this machine, whose packets a relay delays (`slow_link.py`; root, Linux): the
latency is one way, and a pass crosses as many links as there are stages. Tokens are compared with those of one box.
Drafts are verified by one pass a step, and over stages also by two behind each other where that promises more; each
way has an engine of its own, and they take turns prompt by prompt.
Without the relay, over loopback, a stage's overhead is measured. Writes NAME.json, NAME.md and NAME.svg.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.pipeline.pass_parts import PassParts, pass_parts
from benchmarks.pipeline.report import KINDS, PipelineRow, write_report
from benchmarks.pipeline.served_stages import ServedStages
from benchmarks.pipeline.slow_link import SlowLinks
from reader_edge.bench.plot import check_plot
from reader_edge.prompts import VERIFY_PROMPTS, read_prompts
from reader_edge_runtime import AsyncEngine, Engine, EngineConfig, GenerationConfig, GenerationResult, SamplingConfig
from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.measuring.cost_cache import load_or_measure
from reader_edge_runtime.stats import GenerationStats


def main() -> None:
    options = _options()
    check_plot(options.out.with_suffix(".svg"))
    warnings.simplefilter("ignore", RuntimeWarning)
    config = EngineConfig(threads=options.threads, max_batch=max(8, *options.requests))
    prompts = [each.turns[0] for each in read_prompts(options.prompts)[: options.num_prompts]]
    rows, parts, several, expected = list[PipelineRow](), list[PassParts](), list[PipelineRow](), list[list[int]]()
    most = max(options.stages)
    links = SlowLinks(most)
    try:
        one_box = _engines(options.package, config, KINDS[:2])
        expected = _tokens(one_box["plain"], prompts, options.tokens)
        rows += _rows(one_box, 1, 0.0, prompts, options.tokens, expected)
        with tempfile.TemporaryDirectory() as place:
            for number in options.stages:
                here = Path(place)
                with ServedStages(options.package, here / f"near{number}", number, threads=options.threads) as near:
                    parts.append(pass_parts(options.package, near.folder, options.threads))
                far_boxes = links.hosts[1:number], links.befores[1:number]
                with ServedStages(options.package, here / f"far{number}", number, *far_boxes, options.threads) as far:
                    for latency in options.latencies:
                        links.set_ms(latency)
                        engines = _engines(far.folder, config, KINDS)
                        rows += _rows(engines, number, latency, prompts, options.tokens, expected)
                        if latency == options.at:
                            several += _several(engines["plain"], number, latency, prompts, options, expected)
                        print(*rows[-len(KINDS) :], sep="\n", file=sys.stderr, flush=True)
    finally:
        links.close()
    record = {"rows": [asdict(each) for each in rows], "parts": [asdict(each) for each in parts]}
    record |= {"several": [asdict(each) for each in several]}
    write_file(options.out.with_suffix(".json"), json.dumps(record).encode())
    write_report(rows, parts, several, options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--prompts", type=Path, default=VERIFY_PROMPTS)
    parser.add_argument("--num-prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--stages", type=_numbers, default=[2, 3])
    parser.add_argument("--latencies", type=_numbers, default=[0, 5, 20, 50, 100], help="of a link one way, in ms")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--requests", type=_numbers, default=[1, 2, 4, 8], help="together, at one latency")
    parser.add_argument("--at", type=int, default=20, help="that latency")
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def _config(tokens: int, is_drafted: bool) -> GenerationConfig:
    return GenerationConfig(max_tokens=tokens, sampling=SamplingConfig(), ignores_eos=True, is_drafted=is_drafted)


def _tokens(engine: Engine, prompts: list[Any], tokens: int) -> list[list[int]]:
    return [list(engine.generate(prompt, _config(tokens, False)).token_ids) for prompt in prompts]


def _numbers(text: str) -> list[int]:
    return list(map(int, text.split(",")))


def _load_one_pass(package: Path, config: EngineConfig) -> Engine:
    """An engine over stages whose steps have one pass, as on one box."""
    engine, planner = Engine.load(package, config), Planner()
    planner.take(load_or_measure(engine.decoder.target, config.threads, 1))
    engine.decoder.planner = planner
    return engine


def _engines(package: Path, config: EngineConfig, kinds: Sequence[str]) -> dict[str, Engine]:
    """One for each way to decode, by name."""
    return {kind: (_load_one_pass if kind == "one pass" else Engine.load)(package, config) for kind in kinds}


def _rows(
    engines: Mapping[str, Engine],
    num_stages: int,
    latency_ms: float,
    prompts: list[Any],
    tokens: int,
    expected: list[list[int]],
) -> list[PipelineRow]:
    """One request after the other, each in every way."""
    for engine in engines.values():
        engine.forget()
    answers: dict[str, list[GenerationResult]] = {kind: [] for kind in engines}
    for prompt in prompts:
        for kind, engine in engines.items():
            answers[kind].append(engine.generate(prompt, _config(tokens, kind != "plain")))
    rows = []
    for kind, results in answers.items():
        stats = GenerationStats.total([result.stats for result in results])
        is_same = [list(result.token_ids) for result in results] == expected
        nodes = (stats.num_drafted_tokens + stats.num_steps) / stats.num_steps
        step_ms = 1000 * (stats.forward_s + stats.verify_s) / stats.num_steps
        rows.append(
            PipelineRow(
                num_stages, latency_ms, kind, 1, stats.tokens_per_s, stats.acceptance_length, nodes, step_ms, is_same
            )
        )
    return rows


def _several(
    engine: Engine,
    num_stages: int,
    latency_ms: float,
    prompts: list[Any],
    options: argparse.Namespace,
    expected: list[list[int]],
) -> list[PipelineRow]:
    """Requests that come together: what they get a second, prompts included, after a round that is not counted."""
    return asyncio.run(_served(engine, num_stages, latency_ms, prompts, options, expected))


async def _served(
    engine: Engine,
    num_stages: int,
    latency_ms: float,
    prompts: list[Any],
    options: argparse.Namespace,
    expected: list[list[int]],
) -> list[PipelineRow]:
    config = _config(options.tokens, False)
    rows = []
    async with AsyncEngine(engine) as serving:
        await serving.generate(prompts[0], _config(8, False))
        for num_requests in options.requests:
            engine.forget()
            started = time.perf_counter()
            results = await asyncio.gather(
                *[serving.generate(prompts[n % len(prompts)], config) for n in range(num_requests)]
            )
            rate = num_requests * options.tokens / (time.perf_counter() - started)
            stats = GenerationStats.total([result.stats for result in results])
            is_same = all(list(each.token_ids) == expected[n % len(prompts)] for n, each in enumerate(results))
            step_ms = 1000 * stats.forward_s / stats.num_steps
            rows.append(PipelineRow(num_stages, latency_ms, "plain", num_requests, rate, 1.0, 1.0, step_ms, is_same))
    return rows


if __name__ == "__main__":
    main()
