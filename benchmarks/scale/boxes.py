"""A thousand boxes behind one address, simulated: how long answers take by how the front chooses a box.

    python -m benchmarks.scale.boxes [--boxes 1000] [--answers 20] [--loads 0.5,0.8,0.95]

Needs the extra `fleet`. Every box is a server of `benchmarks.fleet` on passes as they were measured; questions come by
chance (Poisson). A load of 1 is as many tokens a second as boxes say whose passes take in eight answers.
"""

import argparse
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
import simpy

from benchmarks.fleet.answers import Answer, emitted_table, read_answers
from benchmarks.fleet.pass_times import PassTimes
from benchmarks.fleet.server import BatchingServer, Stream
from benchmarks.fleet.tree_widths import TreeWidths
from benchmarks.fleet.ways import WAYS
from benchmarks.peers.tables import table

Choose = Callable[[Sequence[int], Sequence[int], np.random.Generator], int]  # running answers, now and a second ago

_PAST = 512
_FULL = 8  # answers in a pass of a box that is fully used
_STALE_S = 1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boxes", type=int, default=1000)
    parser.add_argument("--answers", type=int, default=20, help="for each box, in the mean")
    parser.add_argument("--loads", default="0.5,0.8,0.95")
    options = parser.parse_args()
    loads = [float(load) for load in options.loads.split(",")]
    rows = []
    for name, choose in CHOICES.items():
        cells = []
        for load in loads:
            seconds = simulate(choose, options.boxes, options.answers, load, seed=0)
            cells.append(f"{np.mean(seconds):.2f}; {np.percentile(seconds, 99):.2f}")
        rows.append([name, *cells])
    print("\n".join(table(["mean; p99, s", *(f"load {load}" for load in loads)], rows)))


def _least(running: Sequence[int], among: Sequence[int]) -> int:
    return min(among, key=running.__getitem__)


CHOICES: dict[str, Choose] = {
    "by chance": lambda now, before, rng: int(rng.integers(len(now))),
    "the lesser of two by chance": lambda now, before, rng: _least(now, rng.integers(len(now), size=2).tolist()),
    "the lesser of two, a second ago": lambda now, before, rng: _least(before, rng.integers(len(now), size=2).tolist()),
    "the least of all": lambda now, before, rng: _least(now, range(len(now))),
    "the least of all, a second ago": lambda now, before, rng: _least(before, range(len(now))),
}


def simulate(choose: Choose, num_boxes: int, num_answers: int, load: float, seed: int) -> list[float]:
    """Seconds of each answer. num_answers: of a box, in the mean."""
    rng = np.random.default_rng(seed)
    env, times, answers = simpy.Environment(), PassTimes.read(), read_answers()
    widths = TreeWidths(WAYS["server alone"].widths(), times, _PAST, emitted_table(answers))
    boxes = [BatchingServer(env, times, 1.0, widths) for _ in range(num_boxes)]
    now, before, seconds = [0] * num_boxes, [0] * num_boxes, list[float]()
    rate = load * num_boxes * full_tokens_s(times, widths, answers) / float(np.mean([len(each) for each in answers]))

    def answer(box: int, said: Answer) -> Generator[simpy.Event, Any, None]:
        begun_s = env.now
        now[box] += 1
        yield boxes[box].ask(Stream(env.event(), _PAST, said, None))
        now[box] -= 1
        seconds.append(env.now - begun_s)

    def ask() -> Generator[simpy.Event, Any, None]:
        heard_s = 0.0
        for _ in range(num_boxes * num_answers):
            yield env.timeout(rng.exponential(1 / rate))
            if env.now >= heard_s + _STALE_S:
                before[:], heard_s = now, env.now
            env.process(answer(choose(now, before, rng), answers[int(rng.integers(len(answers)))]))

    env.process(ask())
    env.run()
    return seconds


def full_tokens_s(times: PassTimes, widths: TreeWidths, answers: Sequence[Answer]) -> float:
    """Tokens a second of a box whose passes take in so many answers that it is fully used."""
    width = widths.best(_FULL, is_device=False)
    return _FULL * emitted_table(answers)[False][width] / times.seconds(_FULL * width, _PAST)


if __name__ == "__main__":
    main()
