"""First tokens behind an image, beside llama.cpp's server: the tower, the first question, a second one, memory.

    python -m benchmarks.images NAME=PACKAGE ... [--llama-server PROGRAM --gguf FILE --mmproj NAME=FILE ...]
                                [--template FILE] [--sizes 448,1024] [--rounds 2]

A package and an mmproj file after another, two threads each, square pictures of random spots; the fastest
round, and the highest peak of its process. A tower's time is taken in the process, llama.cpp's between two lines of its
log.
"""

import argparse
import base64
import io
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from benchmarks.peers.llama_server import LlamaServer
from benchmarks.peers.tables import table
from reader_edge.terminal.memory import peak_bytes
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.execution.onnxruntime.host.host_vision import HostVision

_FIRST, _SECOND = "What is in this picture?", "And how many are there?"
_CONTEXT, _THREADS = 4096, 2
_ENCODING = re.compile(r"^(\d+)\.(\d+)\.(\d+)\.\d+ .*?(encoding mtmd batch|decoding image batch)", re.MULTILINE)

Ask = Callable[[str, bytes], int]


class Answered(NamedTuple):
    """Of one picture. tokens: of the prompt. first_s, second_s: from a question to its first token."""

    tokens: int
    tower_s: float
    first_s: float
    second_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="NAME=PACKAGE")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument("--mmproj", nargs="*", default=[], metavar="NAME=FILE")
    parser.add_argument("--template", type=Path, help="of chats, for llama.cpp")
    parser.add_argument("--sizes", default="448,1024")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    sizes = list(map(int, given.sizes.split(",")))
    if given.alone:
        _print_package(given.packages[0], sizes, given.rounds)
        return
    print("\n".join(table(["", "pixels", "tokens", "tower, s", "first token, s", "second, s", "peak, MiB"], [])))
    for each in given.packages:  # a process each, whose peak is its own
        command = [sys.executable, "-m", "benchmarks.images", each, "--alone"]
        subprocess.run([*command, "--sizes", given.sizes, "--rounds", str(given.rounds)], check=True)
    for each in given.mmproj:
        name, _, file = each.partition("=")
        options = ["--mmproj", file, "-lv", "4", "--jinja"]
        options += ["--chat-template-file", str(given.template)] if given.template else []
        with LlamaServer(given.llama_server, str(given.gguf), _CONTEXT, _THREADS, options=options) as server:
            for side, best in _best(partial(_ask_server, server), partial(_encoded, server), sizes, given.rounds):
                _print_row(name, side, best, server.peak_bytes())


def _print_package(named: str, sizes: list[int], rounds: int) -> None:
    name, _, package = named.partition("=")
    seconds, plain = list[float](), HostVision.features

    def timed(self: HostVision, *inputs: object) -> object:
        start = time.perf_counter()
        found = plain(self, *inputs)  # type: ignore[arg-type]
        seconds.append(time.perf_counter() - start)
        return found

    HostVision.features = timed  # type: ignore[method-assign, assignment]
    config = GenerationConfig(max_tokens=1, ignores_eos=True)
    with Engine.load(Path(package), EngineConfig(threads=_THREADS, is_calibrated=False)) as engine:

        def ask(text: str, image: bytes) -> int:
            return engine.generate(text, config, images=[image]).usage.prompt_tokens

        for side, best in _best(ask, lambda: seconds, sizes, rounds):
            _print_row(name, side, best, peak_bytes())


def _best(
    ask: Ask, tower_s: Callable[[], list[float]], sizes: list[int], rounds: int
) -> Iterator[tuple[int, Answered]]:
    """Of each size the least times. The first picture of all, which opens what has to be opened, does not count."""
    ask(_FIRST, _picture(256, 0))
    for side in sizes:
        found = []
        for number in range(rounds):
            image, before = _picture(side, 1000 * number + side), len(tower_s())
            start = time.perf_counter()
            tokens = ask(_FIRST, image)
            first_s, seen_s = time.perf_counter() - start, sum(tower_s()[before:])
            start = time.perf_counter()
            ask(_SECOND, image)
            found.append(Answered(tokens, seen_s, first_s, time.perf_counter() - start))
        least = (min(times) for times in list(zip(*found, strict=True))[1:])
        yield side, Answered(found[0].tokens, *least)


def _ask_server(server: LlamaServer, text: str, image: bytes) -> int:
    url = {"url": "data:image/png;base64," + base64.b64encode(image).decode()}
    parts = [{"type": "image_url", "image_url": url}, {"type": "text", "text": text}]
    body = {"max_tokens": 1, "temperature": 0, "messages": [{"role": "user", "content": parts}]}
    tokens: int = server.chat(body)["usage"]["prompt_tokens"]
    return tokens


def _encoded(server: LlamaServer) -> list[float]:
    """Seconds of each image so far, by the clock before the log's lines: minutes, seconds, milliseconds."""
    found, start = list[float](), 0.0
    for minutes, whole, milli, what in _ENCODING.findall(server.log()):
        now = 60 * int(minutes) + int(whole) + int(milli) / 1e3
        if what.startswith("decoding") and start:
            found.append(now - start)
        start = now if what.startswith("encoding") else 0.0
    return found


def _print_row(name: str, side: int, best: Answered, peak: int) -> None:
    times = (f"{each:.3f}" for each in best[1:])
    print("| " + " | ".join([name, str(side), str(best.tokens), *times, f"{peak / 2**20:.0f}"]) + " |", flush=True)


def _picture(side: int, seed: int) -> bytes:
    spots = np.random.default_rng(seed).integers(0, 256, (12, 12, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(spots).resize((side, side), Image.Resampling.BICUBIC).save(file, "PNG")
    return file.getvalue()


if __name__ == "__main__":
    main()
