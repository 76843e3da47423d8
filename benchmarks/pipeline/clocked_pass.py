"""Where the time of a pass through stages goes, by clocks in every process; over loopback, or links of some latency.

    python -m benchmarks.pipeline.clocked_pass PACKAGE [--stages 2,3] [--latencies 0,5] [--passes 300] [--nodes 1]
                                               [--threads 1] --out NAME.json

All processes of a machine have one clock (CLOCK_MONOTONIC), so a part may begin in one and end in another. Medians of
passes that follow each other, as in an answer. `alone` are passes of the same graphs in a process that has the machine
to itself, each stage after the other as in a pass, so that caches are as full as there. Latencies need root and Linux
(`slow_link.py`); 0 is plain loopback.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.pipeline.number_list import number_list
from benchmarks.pipeline.served_stages import ServedStages
from benchmarks.pipeline.slow_link import SlowLinks
from reader_edge_runtime import EngineConfig
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.assembly import open_package
from reader_edge_runtime.atomic_file import write_file
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host import host_stage
from reader_edge_runtime.execution.onnxruntime.host.host_stage import HostStage
from reader_edge_runtime.execution.pipeline import stage_server
from reader_edge_runtime.execution.pipeline.greeting import PASS, Head
from reader_edge_runtime.execution.pipeline.open_pipeline import open_pipeline, serve_stage
from reader_edge_runtime.package.pipeline_file import KEY_NAME
from reader_edge_runtime.package.stage_part import HANDED_OUT
from reader_edge_runtime.target import Pass

_PAST = 64
_NUM_FIRST = 20  # passes that are not counted

Marks = list[float]


class Clock:
    """Marks of what happens in this process, in seconds of the machine's clock."""

    def __init__(self) -> None:
        self.marks: Marks = []

    def mark(self) -> None:
        self.marks.append(time.perf_counter())

    def around(self, function: Any) -> Any:
        """The function, with a mark before and one after."""

        def clocked(*given: Any, **named: Any) -> Any:
            self.mark()
            try:
                return function(*given, **named)
            finally:
                self.mark()

        return clocked


@contextmanager
def clocked_graphs(clock: Clock) -> Iterator[None]:
    """Marks around every graph that a stage of this process runs."""
    names = vars(host_stage)
    run = names["run_bound"]
    names["run_bound"] = clock.around(run)
    yield
    names["run_bound"] = run


class ClockedStages(ServedStages):
    """Stages that tell their marks when they are stopped: of each pass taken in, graph begun, graph done, handed
    on (before and after), and all done."""

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.terminate()
        told = [process.communicate()[0].splitlines() for process in self.processes]
        self.marks: list[list[Marks]] = [list(map(json.loads, lines)) for lines in told]

    def _started(self, number: int) -> "subprocess.Popen[str]":
        stage, address = str(self.folder / str(number + 1)), self.addresses[number]
        command = [sys.executable, "-m", __spec__.name, "--serve", stage, address, str(self.folder / KEY_NAME)]
        process = subprocess.Popen(
            [*self._before[number], *command, str(self._threads)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        return process


def serve(stage: Path, address: str, key: Path, threads: int) -> None:
    """A stage with clocks, until SIGTERM."""
    import signal

    clock, is_over = Clock(), list[bool]()
    taken: list[Marks] = []

    def take(self: stage_server.StageServer, parts: Sequence[memoryview]) -> None:
        clock.marks = []
        clock.around(_take)(self, parts)
        if Head.unpacked(parts[1]).what == PASS:
            taken.append(clock.marks)

    server = stage_server.StageServer
    server._send = clock.around(server._send)  # type: ignore[method-assign]
    _take, server._take = server._take, take  # type: ignore[method-assign]
    signal.signal(signal.SIGTERM, lambda *_: is_over.append(True))
    with clocked_graphs(clock):
        config = EngineConfig(threads=threads)
        serve_stage(open_package(stage), address, key, config, _tell, lambda: bool(is_over))
    print(*map(json.dumps, taken), sep="\n", flush=True)


def _tell(line: str) -> None:
    if "listens" in line:
        print(line, flush=True)


def parts(served: ClockedStages, threads: int, num_passes: int, num_nodes: int) -> dict[str, float]:
    """Milliseconds by part."""
    clock = Clock()
    passes: list[Marks] = []
    wanted = Pass(0, [DraftTree.chain([5] * num_nodes)], [range(num_nodes)])
    with served, clocked_graphs(clock):
        target = open_pipeline(open_package(served.folder), EngineConfig(threads=threads))
        ring = target.under_way.following
        send, receive = ring.send, ring.receive
        ring.send = clock.around(send)  # type: ignore[method-assign]
        ring.receive = clock.around(receive)  # type: ignore[method-assign]
        cache = target.new_cache(1, _PAST + num_nodes)
        cache.fill(0, _PAST)
        for _ in range(num_passes + _NUM_FIRST):
            clock.marks = []
            clock.around(target.forward)(cache, wanted)
            passes.append(clock.marks)
        ring.close()  # type: ignore[attr-defined]
    rows = [
        _parts(*each)
        for each in list(zip(passes, *[marks[-len(passes) :] for marks in served.marks], strict=True))[_NUM_FIRST:]
    ]
    found = {name: 1000 * statistics.median(row[name] for row in rows) for name in rows[0]}
    return found | _alone(served.folder, len(served.addresses) + 1, threads, num_passes, wanted)


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        stage, address, key, threads = sys.argv[2:]
        return serve(Path(stage), address, Path(key), int(threads))
    options = _options()
    rows: list[dict[str, float]] = []
    links = SlowLinks(max(options.stages)) if any(options.latencies) else None
    try:
        for number in options.stages:
            for latency in options.latencies:
                hosts, befores = (links.hosts, links.befores) if links is not None and latency else ((), ())
                if links is not None:
                    links.set_ms(latency)
                with tempfile.TemporaryDirectory() as place:
                    served = ClockedStages(
                        options.package,
                        Path(place) / "out",
                        number,
                        hosts[1:number],
                        befores[1:number],
                        options.threads,
                    )
                    found = parts(served, options.threads, options.passes, options.nodes)
                rows.append({"stages": number, "latency_ms": latency} | {k: round(v, 3) for k, v in found.items()})
                print(rows[-1], flush=True)
    finally:
        if links is not None:
            links.close()
    write_file(options.out, json.dumps(rows).encode())


def _parts(here: Marks, *stages: Marks) -> dict[str, float]:
    """Each link begins where a message is handed to it, and ends where it is taken from it."""
    begun, sends, _, _, has_come, graph, graph_done, done = here
    link_begins = [sends, *(each[3] for each in stages)]
    link_ends = [*(each[0] for each in stages), has_come]
    return {
        "pass": done - begun,
        "frame": sends - begun,
        "links": sum(link_ends) - sum(link_begins),
        "stages before their graph": sum(each[1] - each[0] for each in stages),
        "graphs": graph_done - graph + sum(each[2] - each[1] for each in stages),
        "stages behind it": sum(each[3] - each[2] for each in stages),
        "last stage before its graph": graph - has_come,
        "last stage behind it": done - graph_done,
    }


def _alone(folder: Path, num_stages: int, threads: int, num_passes: int, wanted: Pass) -> dict[str, float]:
    """Graphs of all stages in this process, one after the other; of each the best, and the median pass."""
    clock = Clock()
    stages = [HostStage.open(open_package(folder / str(number + 1)), threads) for number in range(num_stages)]
    caches = [stage.new_cache(1, _PAST + len(wanted.trees[0])) for stage in stages]
    times = []
    for cache in caches:
        cache.fill(0, _PAST)
    with clocked_graphs(clock):
        for _ in range(num_passes):
            clock.marks = []
            handed: Float32Array | None = None
            for stage, cache in zip(stages, caches, strict=True):
                said = stage.forward(cache, wanted, 1, handed)
                handed = said.get(HANDED_OUT)
            times.append([end - begin for begin, end in zip(clock.marks[::2], clock.marks[1::2], strict=True)])
    return {
        "graphs alone": 1000 * statistics.median(map(sum, times)),
        "graphs alone, best": 1000 * sum(map(min, zip(*times, strict=True))),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--stages", type=number_list, default=[2, 3])
    parser.add_argument("--latencies", type=number_list, default=[0], help="of a link one way, in ms")
    parser.add_argument("--passes", type=int, default=300)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
