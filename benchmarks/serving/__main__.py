"""Servers with 1 to 16 clients: tokens a second, the wait for the first piece of text, and between pieces.

    python -m benchmarks.serving PACKAGE --prompts FILE.jsonl [--gguf FILE --llama PYTHON] [--out NAME]
                                 [--clients 1,2,4,8,16] [--requests 16] [--tokens 96] [--rounds 2]
                                 [--categories rag,...] [--title NAME]

Ours drafted, ours plain, ours with one answer at a time (drafted), and `llama_cpp.server` with the same weights where
GGUF names them, whose Python must have llama-cpp-python[server]. Each cell is a fresh server, so that no answer was
seen before; all clients ask as soon as they have their last answer, until the prompts are through. One run that is not
counted comes first: passes are measured then, and drafting compiled where that is due. Contenders take turns round by
round; figures are of all rounds together. Ours tell in `/metrics` what their decoding steps took, prompts apart. Writes
NAME.json, NAME.md and NAME.svg.
"""

import argparse
import asyncio
import json
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.serving.report import write_report
from reader_edge.bench.plot import check_plot
from reader_edge.prompts import read_prompts
from reader_edge_runtime.atomic_file import write_file
from tests.durability.server_process import Seen, ServerProcess, reader_edge, watch

_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a contender, a number of clients, the seconds that all answers took and what each client saw.

    decoding_s: of them, those of decoding steps; None of a server that does not tell.
    """

    contender: str
    num_clients: int
    wall_s: float
    decoding_s: float | None
    seen: list[Seen]


def main() -> None:
    options = _options()
    check_plot(options.out.with_suffix(".svg"))
    bodies = list(_bodies(options.prompts, options.categories, options.requests, options.tokens))
    contenders = _contenders(options)
    cells: list[Cell] = []
    _measure("drafted", contenders["drafted"], max(options.clients), bodies)
    for turn in range(options.rounds):
        for num_clients in options.clients:
            names = list(contenders)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                cell = _measure(name, contenders[name], num_clients, bodies)
                rate = sum(seen.num_tokens for seen in cell.seen) / cell.wall_s
                print(f"{name}, {num_clients} clients: {rate:.1f} tokens/s", file=sys.stderr, flush=True)
                cells.append(cell)
    numbers = ("requests", "tokens", "rounds", "categories")
    settings = {name: getattr(options, name) for name in numbers if getattr(options, name)}
    record = {"settings": settings, "model": options.title, "cells": [asdict(cell) for cell in cells]}
    write_file(options.out.with_suffix(".json"), json.dumps(record).encode())
    write_report(record, options.out)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--prompts", type=Path, required=True, help="one prompt or list of messages a line")
    parser.add_argument("--categories", default="", help="of the prompts; all where none is named")
    parser.add_argument("--gguf", type=Path, help="the same weights, for llama.cpp")
    parser.add_argument("--llama", default=sys.executable, help="its Python, and what shall stand before that")
    parser.add_argument("--clients", type=_numbers, default=[1, 2, 4, 8, 16])
    parser.add_argument("--requests", type=int, default=16, help="of all clients together, in each cell")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer, at most")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--title", default="a model", help="what the page calls it")
    parser.add_argument("--out", type=Path, default=Path("serving"), help="name of the results, without suffix")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _bodies(path: Path, categories: str, count: int, num_tokens: int) -> Iterator[dict[str, Any]]:
    """The prompts' first questions, so many, none of them twice: a prompt's rows would serve again by luck."""
    wanted = set(filter(None, categories.split(",")))
    prompts = [prompt for prompt in read_prompts(path) if not wanted or prompt.category in wanted]
    if len(prompts) < count:
        raise SystemExit(f"'{path}' has {len(prompts)} prompts of {categories or 'any kind'}: lower --requests.")
    for prompt in prompts[:count]:
        first = prompt.turns[0]
        messages = [{"role": "user", "content": first}] if isinstance(first, str) else list(first)
        yield {"model": "model", "messages": messages, "temperature": 0, "max_tokens": num_tokens}


def _contenders(options: argparse.Namespace) -> dict[str, list[str]]:
    many = max(options.clients)
    waiting = ("--max-waiting", str(4 * many))
    contenders = {
        "drafted": reader_edge(options.package, "--max-batch", str(many), *waiting),
        "plain": reader_edge(options.package, "--max-batch", str(many), *waiting, "--no-draft"),
        "one at a time": reader_edge(options.package, "--max-batch", "1", *waiting),
    }
    if options.gguf is not None:
        # Without the last option a new request cuts the answer that runs.
        arguments = ["--model", str(options.gguf), "--n_ctx", "4096", "--n_threads", "2", "--n_threads_batch", "2"]
        own = ["--port", "{port}", "--model_alias", "model", "--interrupt_requests", "False"]
        contenders["llama.cpp"] = [*shlex.split(options.llama), "-m", "llama_cpp.server", *arguments, *own]
    return contenders


def _measure(name: str, command: Sequence[str], num_clients: int, bodies: Sequence[dict[str, Any]]) -> Cell:
    with tempfile.TemporaryDirectory() as folder, ServerProcess(command, Path(folder) / "log") as server:
        before = _decoding_s(server.url)
        wall_s, seen = asyncio.run(_ask_all(server.url, num_clients, bodies))
        after = _decoding_s(server.url)
    decoding_s = None if before is None or after is None else after - before
    return Cell(name, num_clients, wall_s, decoding_s, seen)


def _decoding_s(url: str) -> float | None:
    """Seconds of a server's decoding steps so far."""
    lines = httpx.get(f"{url}/metrics", timeout=_TIMEOUT_S).text.splitlines()
    parts = [line.rpartition(" ")[2] for line in lines if line.startswith("reader_edge_step_seconds_total{")]
    return sum(map(float, parts)) if parts else None


async def _ask_all(url: str, num_clients: int, bodies: Sequence[dict[str, Any]]) -> tuple[float, list[Seen]]:
    left = iter(bodies)
    seen: list[Seen] = []
    async with httpx.AsyncClient(timeout=_TIMEOUT_S) as client:
        warm = {"model": "model", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
        for _ in range(2):
            await watch(client, url, warm)

        async def ask() -> None:
            for body in left:
                seen.append(await watch(client, url, body))

        start = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(num_clients):
                tasks.create_task(ask())
        return time.perf_counter() - start, seen


if __name__ == "__main__":
    main()
