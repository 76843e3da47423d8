"""What drafts of a remote client gain a server, by the round trip between them: tokens a second of whole answers.

    python -m benchmarks.device PACKAGE [--prompts FILE] [--skip N] [--round-trips 0,10,40,100,200] [--out FILE.json]

Two sets: "known", where the device's history has the answers and the server's has not, as with a server that was
started again or that others use; and "unknown", where nobody has them. Ways take turns prompt by prompt, and the server
forgets past answers before each. Answers must be those of the server alone, else it ends.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.device.forgetting_server import FORGET
from benchmarks.device.relay import Relay
from reader_edge.prompts import VERIFY_PROMPTS, read_prompts
from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge_runtime import GenerationConfig, SamplingConfig
from reader_edge_runtime.text.conversation import Prompt

WAYS = {"server alone": ("none", 0), "hints": ("hints", 0), "lock-step": ("verify", 0), "optimistic": ("verify", 1)}
SETS = ("known", "unknown")


@dataclass(frozen=True)
class Seen:
    """One answer. seconds: from asking for it to its end. num_steps: passes that it took."""

    way: str
    kind: str
    round_trip_ms: float
    prompt: int
    num_tokens: int
    num_steps: int
    num_from_device: int
    seconds: float


class Measurement:
    """Asks a server over a slow link, by all ways in turn."""

    def __init__(self, port: int, round_trip_ms: float, max_tokens: int) -> None:
        self._server = f"http://127.0.0.1:{port}"
        self._round_trip_ms = round_trip_ms
        self._config = GenerationConfig(max_tokens, SamplingConfig(), ignores_eos=True)

    def seen(self, port: int, prompts: Sequence[Prompt], num_rounds: int) -> list[Seen]:
        """port: of the link."""
        engines = {
            name: RemoteEngine(f"http://127.0.0.1:{port}", drafts=drafts, num_ahead=num_ahead)
            for name, (drafts, num_ahead) in WAYS.items()
        }
        found = []
        for number, prompt in enumerate(prompts):
            answers = set()
            for engine in engines.values():  # what the device knows of the prompts that follow
                engine.forget()
            for kind in reversed(SETS):
                for turn in range(num_rounds):
                    names = [*WAYS][turn % len(WAYS) :] + [*WAYS][: turn % len(WAYS)]
                    for name in names:
                        seen, token_ids = self._answered(engines[name], name, kind, number, prompt)
                        answers.add(token_ids)
                        found.append(seen)
            if len(answers) > 1:
                sys.exit(f"Prompt {number} has {len(answers)} answers at {self._round_trip_ms:g} ms: this is a bug.")
        for engine in engines.values():
            engine.close()
        return found

    def _answered(
        self, engine: RemoteEngine, name: str, kind: str, number: int, prompt: Prompt
    ) -> tuple[Seen, tuple[int, ...]]:
        if kind == "unknown":
            engine.forget()
        request = urllib.request.Request(self._server + FORGET, b"", method="POST")  # noqa: S310  # our own server
        urllib.request.urlopen(request).close()  # noqa: S310
        start = time.perf_counter()
        result = engine.generate(prompt, self._config)
        seconds, stats = time.perf_counter() - start, result.stats
        num_from_device = stats.accepted_by_source["device"]
        counts = stats.num_tokens, stats.num_steps, num_from_device
        seen = Seen(name, kind, self._round_trip_ms, number, *counts, seconds)
        check_steps(seen)
        return seen, result.token_ids


def check_steps(seen: Seen) -> None:
    """End where steps in lock-step, each of which waits for the device, were too many for their time."""
    if seen.way == "lock-step" and seen.seconds < (seen.num_steps - 1) * seen.round_trip_ms / 1000:
        sys.exit(f"{seen.num_steps} steps took {seen.seconds:.2f} s over {seen.round_trip_ms:g} ms: not in lock-step.")


def table(found: Sequence[Seen]) -> str:
    """Tokens a second of a cell's fastest answers together; over prompts, median and range of how they compare."""
    lines = ["| round trip, ms | set | " + " | ".join(WAYS) + " | hints to alone |", "|---" * (len(WAYS) + 3) + "|"]
    for round_trip_ms in sorted({seen.round_trip_ms for seen in found}):
        for kind in SETS:
            cell = [seen for seen in found if (seen.round_trip_ms, seen.kind) == (round_trip_ms, kind)]
            best = {name: _best([seen for seen in cell if seen.way == name]) for name in WAYS}
            rates = [
                sum(seen.num_tokens for seen in each.values()) / sum(seen.seconds for seen in each.values())
                for each in best.values()
            ]
            alone, hints = best["server alone"], best["hints"]
            ratios = [alone[number].seconds / hints[number].seconds for number in alone]
            spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            figures = " | ".join(f"{rate:.1f}" for rate in rates)
            lines.append(f"| {round_trip_ms:g} | {kind} | {figures} | {spread} |")
    return "\n".join(lines)


def _best(cell: Sequence[Seen]) -> dict[int, Seen]:
    """The fastest of each prompt's answers: a busy neighbour only adds time."""
    return {seen.prompt: seen for seen in sorted(cell, key=lambda seen: -seen.seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description="A device before a server, over links of several round trips.")
    parser.add_argument("package", type=Path)
    parser.add_argument("--prompts", type=Path, help="as of `reader-edge bench`; a bundled set by default")
    parser.add_argument("--round-trips", default="0,10,40,100,200", help="milliseconds")
    parser.add_argument("--skip", type=int, default=0, help="leave so many prompts out, from the first")
    parser.add_argument("--num-prompts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="of the server; leave a core to the device")
    parser.add_argument("--out", type=Path, help="every answer, as JSON")
    options = parser.parse_args()
    given = [prompt.turns[0] for prompt in read_prompts(options.prompts or VERIFY_PROMPTS)]
    prompts = given[options.skip : options.skip + options.num_prompts]
    if options.skip < 0 or not prompts:
        parser.error(f"--skip {options.skip}: of {len(given)} prompts none is left")
    command = [sys.executable, "-m", "benchmarks.device.forgetting_server", str(options.package), str(options.threads)]
    found: list[Seen] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            for round_trip_ms in map(float, options.round_trips.split(",")):
                with Relay(port, round_trip_ms / 2000) as relay:
                    measurement = Measurement(port, round_trip_ms, options.tokens)
                    found += measurement.seen(relay.port, prompts, options.rounds)
                print(f"{round_trip_ms:g} ms measured", file=sys.stderr)
        finally:
            server.terminate()
    if options.out is not None:
        options.out.write_text(json.dumps([asdict(seen) for seen in found]), encoding="utf-8")
    print(table(found))


if __name__ == "__main__":
    main()
