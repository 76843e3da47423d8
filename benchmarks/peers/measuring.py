"""Runs several runtimes' workers in turn: every contender answers the same question, then the next round begins."""

import random
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from benchmarks.peers.prepare import read_failures
from benchmarks.peers.runtimes import THREADS, Contender
from benchmarks.peers.worker_process import WorkerError, WorkerProcess

PAST = 512
LONG_PROMPT = 4096
WIDTHS = (1, 2, 4, 8, 16, 32)
DEMO_VOCAB_SIZE = 6144
VOCAB_SIZE = 49152  # of the smaller one of both shapes

Record = dict[str, Any]


class Round:
    """Live workers of some contenders, and what they measured. A contender that fails once is out, with its reason."""

    def __init__(self, contenders: Iterable[Contender], shape: str, is_drafted: bool = False) -> None:
        self.shape = shape
        self.is_drafted = is_drafted
        self.records: dict[str, Record] = {}
        self._contenders = list(contenders)
        self._workers: dict[str, WorkerProcess] = {}

    def __enter__(self) -> "Round":
        try:
            self._start_all()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all workers: a stopped process would not notice that its runner is gone."""
        for worker in self._workers.values():
            worker.close()

    def _start_all(self) -> None:
        for contender in self._contenders:
            record = self.records[contender.name] = _nothing_measured()
            reason = read_failures(contender.cache).get(f"{contender.name} {self.shape}")
            if reason is not None:
                record["error"] = f"not prepared: {reason}"
            else:
                self._start(contender, record)

    def _start(self, contender: Contender, record: Record) -> None:
        logs = contender.cache / "logs"
        logs.mkdir(exist_ok=True)
        log = logs / f"{contender.name} {self.shape}{' drafted' * self.is_drafted}.log"
        worker = WorkerProcess(contender.python, contender.runtime.worker, log, contender.environment)
        self._workers[contender.name] = worker
        with self._noting(contender.name):
            model = contender.model(self.shape)
            record["versions"] = worker.ask("load", model=model, threads=THREADS, is_drafted=self.is_drafted)[
                "versions"
            ]
            worker.ask("generate", prompt=random_prompt(32, -1, "demo"), num_tokens=4, end_token_ids=[])

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """Note a worker's failure and its memory, and say how long it took."""
        worker, record = self._workers[name], self.records[name]
        start = time.perf_counter()
        try:
            yield
        except WorkerError as error:
            record["error"] = str(error)
            self._workers.pop(name).close()
        record["peak_bytes"] = worker.peak_bytes
        say(f"  {name}: {time.perf_counter() - start:.1f} s")

    def generate(self, prompt: Sequence[int], num_tokens: int, turn: int, end_token_ids: Sequence[int] = ()) -> None:
        """Every worker answers a prompt, in an order that `turn` rotates. end_token_ids: none are left out."""
        for name in self._in_turn(turn):
            with self._noting(name):
                answer = self._workers[name].ask(
                    "generate", prompt=list(prompt), num_tokens=num_tokens, end_token_ids=list(end_token_ids)
                )
                record = self.records[name]
                record["first_s"].append(answer["first_s"])
                record["rest_s"].append(answer["rest_s"])
                record["token_ids"].append(answer["token_ids"])
                if len(answer["token_ids"]) > 1:
                    record["token_s"].append(answer["rest_s"] / (len(answer["token_ids"]) - 1))

    def passes(self, prompt: Sequence[int], rounds: int, turn: int, widths: Sequence[int] = WIDTHS) -> None:
        """Every worker times passes of all widths behind a prompt."""
        for name in self._in_turn(turn):
            with self._noting(name):
                answer = self._workers[name].ask("passes", prompt=list(prompt), widths=list(widths), rounds=rounds)
                for width, seconds in answer["seconds"].items():
                    self.records[name]["pass_s"].setdefault(width, []).extend(seconds)

    def take(self) -> dict[str, Record]:
        """What was measured since the last call, by contender; `records` begin again."""
        taken = {name: {key: record[key] for key in _nothing_measured()} for name, record in self.records.items()}
        for record in self.records.values():
            record |= _nothing_measured()
        return taken

    def _in_turn(self, turn: int) -> list[str]:
        names = list(self._workers)
        first = turn % len(names) if names else 0
        return names[first:] + names[:first]


def _nothing_measured() -> Record:
    return {"first_s": [], "rest_s": [], "token_s": [], "pass_s": {}, "token_ids": []}


def random_prompt(length: int, number: int, shape: str) -> list[int]:
    """Token ids that no other number gives: a prefix cache must not find them."""
    vocab_size = DEMO_VOCAB_SIZE if shape == "demo" else VOCAB_SIZE
    return random.Random(number).choices(range(10, vocab_size), k=length)  # noqa: S311  (no secret)


def measure_decoding(contenders: Sequence[Contender], shape: str, rounds: int, num_tokens: int) -> dict[str, Record]:
    """Time to the first token at 512, plain decoding behind it, and pass times, all workers alive at once."""
    with Round(contenders, shape) as workers:
        for turn in range(rounds):
            start = time.perf_counter()
            workers.generate(random_prompt(PAST, turn, shape), num_tokens, turn)
            workers.passes(random_prompt(PAST, 100, shape), 3, turn)
            say(f"  round {turn + 1} of {rounds}: {time.perf_counter() - start:.0f} s")
        return _without_tokens(workers.records)


def measure_long_prompt(contenders: Sequence[Contender], shape: str, rounds: int) -> dict[str, Record]:
    """Time to the first token at 4096. One worker at a time: some runtimes hold gigabytes of logits."""
    records: dict[str, Record] = {}
    for turn in range(rounds):
        start = time.perf_counter()
        for contender in contenders:
            with Round([contender], shape) as workers:
                workers.generate(random_prompt(LONG_PROMPT, 200 + turn, shape), 1, 0)
            record = workers.records[contender.name]
            merged = records.setdefault(contender.name, record)
            if turn > 0:
                merged["first_s"] += record["first_s"]
        say(f"  round {turn + 1} of {rounds}: {time.perf_counter() - start:.0f} s")
    return _without_tokens(records)


def measure_answers(
    contenders: Sequence[Contender],
    shape: str,
    prompts: Sequence[Sequence[int]],
    num_tokens: int,
    end_token_ids: Sequence[int] = (),
) -> dict[str, Record]:
    """Whole answers, plain and drafted in alternating order; a plain record holds the drafted one, and who was equal.

    end_token_ids: those that end an answer; without any, every answer has num_tokens.
    """
    with Round(contenders, shape) as plain, Round(contenders, shape, is_drafted=True) as drafted:
        for turn, prompt in enumerate(prompts):
            for workers in (plain, drafted) if turn % 2 == 0 else (drafted, plain):
                workers.generate(prompt, num_tokens, turn, end_token_ids)
    for name, record in plain.records.items():
        pairs = zip(record["token_ids"], drafted.records[name]["token_ids"], strict=False)
        record["is_equal"] = [a == b for a, b in pairs]
        record["num_equal"] = sum(record["is_equal"])
        record["drafted"] = drafted.records[name]
    return _without_tokens(plain.records)


def _without_tokens(records: dict[str, Record]) -> dict[str, Record]:
    for record in records.values():
        record["num_tokens"] = list(map(len, record.pop("token_ids")))
        if "drafted" in record:
            _without_tokens({"drafted": record["drafted"]})
    return records


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
