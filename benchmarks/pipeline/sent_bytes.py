"""Bytes that a step of one pass sends over each link of a pipeline, by kind, plain and drafted.

    python -m benchmarks.pipeline.sent_bytes PACKAGE [--stages 3] [--latency 20] [--prompts FILE.jsonl]
                                             [--num-prompts 3] [--tokens 64] [--threads 1] --out NAME.md

Frames are counted where they are sent and activations where they come back, in steps that follow an answer's first
token; what ZeroMQ puts around them is added by its rules. Links are slowed, as trees are wider over slower ones (root,
Linux); with --latency 0 they are loopback.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.peers.tables import table
from benchmarks.pipeline.one_pass import load_one_pass
from benchmarks.pipeline.served_stages import ServedStages
from benchmarks.pipeline.slow_link import SlowLinks
from reader_edge.prompt_file import VERIFY_PROMPTS, read_prompts
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.execution.pipeline.greeting import PASS, Head
from reader_edge_runtime.execution.pipeline.pass_frame import PassFrame
from reader_edge_runtime.execution.pipeline.under_way import Came

KINDS = ("head", "lengths", "cache operations", "tokens", "activations", "ZeroMQ", "encryption")
_HEAD = len(Head(PASS, bytes(16), 1).packed())
_ENCRYPTION = 33  # of each part of a message: CURVE's command, nonce, tag and flags
_SHORT = 255  # bytes of a part, up to which its length takes one byte, and 8 beyond; a byte of flags stands before it


def frame_bytes(frame: bytes) -> dict[str, int]:
    """A frame's own bytes, by kind."""
    read = PassFrame.unpacked(memoryview(frame))
    tokens = sum(2 + 6 * len(tree) for tree in read.wanted.trees)
    bare = len(read._replace(steps=[]).packed())
    return {"lengths": bare - tokens, "cache operations": len(frame) - bare, "tokens": tokens}


def link_bytes(frame: bytes, activations: int) -> dict[str, dict[str, int]]:
    """Of one pass, by link and kind. activations: bytes of the residual stream of all its nodes."""
    whole = frame_bytes(frame) | {"head": _HEAD}
    links = {
        "to the first stage": (whole, [_HEAD, len(frame)]),
        "between two stages": (whole | {"activations": activations}, [_HEAD, len(frame), activations]),
        "back to the last stage": ({"head": _HEAD, "activations": activations}, [_HEAD, activations]),
    }
    return {name: kinds | _around(parts) for name, (kinds, parts) in links.items()}


def _around(parts: Sequence[int]) -> dict[str, int]:
    framing = sum(2 if part + _ENCRYPTION <= _SHORT else 9 for part in parts)
    return {"ZeroMQ": framing, "encryption": _ENCRYPTION * len(parts)}


class Counted:
    """Passes of an engine over stages. passes: frame and bytes of activations of each, while `is_counting`."""

    def __init__(self, engine: Engine) -> None:
        ring = engine.decoder.target.under_way.following  # type: ignore[attr-defined]
        self._send, self._receive = ring.send, ring.receive
        ring.send, ring.receive = self._sent, self._received
        self.is_counting = False
        self.passes: list[tuple[bytes, int]] = []
        self._frame = b""

    def _sent(self, frame: bytes) -> int:
        self._frame = frame
        return int(self._send(frame))

    def _received(self) -> Came:
        came: Came = self._receive()
        if self.is_counting and isinstance(came.data, memoryview):
            self.passes.append((self._frame, came.data.nbytes))
        return came


def measured(engine: Engine, prompts: Sequence[Any], tokens: int) -> dict[str, list[tuple[bytes, int]]]:
    """Passes of plain and of drafted answers, those of prompts left out."""
    counted, found = Counted(engine), {}
    for kind in ("plain", "drafted"):
        engine.forget()
        counted.passes = []
        for prompt in prompts:
            config = GenerationConfig(max_tokens=tokens, ignores_eos=True, is_drafted=kind == "drafted")
            for _ in engine.stream(prompt, config):
                counted.is_counting = True
            counted.is_counting = False
        found[kind] = counted.passes
    return found


def lines(found: dict[str, list[tuple[bytes, int]]]) -> list[str]:
    """A table of means over steps."""
    rows = []
    for kind, passes in found.items():
        nodes = fmean(sum(map(len, PassFrame.unpacked(memoryview(frame)).wanted.trees)) for frame, _ in passes)
        links = [link_bytes(*each) for each in passes]
        for name in links[0]:
            means = [fmean(each[name].get(column, 0) for each in links) for column in KINDS]
            cells = [f"{mean:,.0f}" for mean in (*means, sum(means))]
            rows.append([f"{kind}, {nodes:.1f} nodes", name, *cells])
    return table(["step", "link", *KINDS, "all"], rows)


def main() -> None:
    options = _options()
    prompts = [each.turns[0] for each in read_prompts(options.prompts)[: options.num_prompts]]
    links = SlowLinks(options.stages) if options.latency else None
    try:
        hosts, befores = (links.hosts, links.befores) if links is not None else ((), ())
        if links is not None:
            links.set_ms(options.latency)
        with tempfile.TemporaryDirectory() as place:
            far = hosts[1 : options.stages], befores[1 : options.stages]
            with ServedStages(options.package, Path(place) / "out", options.stages, *far, options.threads) as served:
                engine = load_one_pass(served.folder, EngineConfig(threads=options.threads))
                found = measured(engine, prompts, options.tokens)
    finally:
        if links is not None:
            links.close()
    write_file(options.out, ("\n".join(lines(found)) + "\n").encode())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--latency", type=float, default=20, help="of a link one way, in ms")
    parser.add_argument("--prompts", type=Path, default=VERIFY_PROMPTS)
    parser.add_argument("--num-prompts", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
