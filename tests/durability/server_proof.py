"""A server under load: does everybody get the answer that they would get alone, does nothing stick, does memory stay?

    python -m tests.durability.server_proof PACKAGE [--requests 300] [--minutes 0] [--clients 24] [--tokens 64]
        [--seed 0]

Each question is answered alone first, by a server that decodes plainly, one answer at a time. Then a drafting server is
sent more at once than it lets run and wait, streamed and whole, at random moments, while others leave during their
answers, hang up before the first piece, and send nonsense: until every question was answered and the minutes are over.
Exit code 1 where an answer is another one (its text, its log-probabilities to the last digit, its counts of tokens) or
breaks off, where a refusal has the wrong status, where nobody was refused for want of a place, where a request still
runs at the end, where the server does not end in order, or where, after twenty minutes or more, memory of the last
tenth is over 5 % above that of the sixth: before that the history fills. What of the memory is the KV cache the server
says itself.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx

from tests.durability.server_process import ServerProcess, reader_edge
from tests.durability.server_questions import Answer, Question, nonsense, questions, read_stream, read_whole

_MAX_BODY_BYTES = 4 << 20
_TIMEOUT_S, _IDLE_S, _MEMORY_EVERY_S = 600.0, 60.0, 0.5
_MAX_GROWTH, _GROWTH_AFTER_S = 0.05, 1200.0
_FULL = 429  # counted, and sent again
_CLIENTS_A_SLOT = 4  # as many may wait as run, so half of the clients find no place
_TEXTS = Path(__file__).resolve().parents[1] / "data" / "held_out.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path)
    parser.add_argument("--requests", type=int, default=300, help="different questions")
    parser.add_argument("--minutes", type=float, default=0.0, help="of load, at least; each question at least once")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = [json.loads(line)["text"] for line in _TEXTS.read_text().splitlines()]
    sent = questions(texts, options.requests, options.tokens, options.seed)
    with tempfile.TemporaryDirectory() as folder:
        alone = reader_edge(options.package, "--max-batch", "1", "--no-draft")
        with ServerProcess(alone, Path(folder) / "alone.log") as server:
            expected = asyncio.run(_answer_alone(server.url, sent))
        slots = str(max(1, options.clients // _CLIENTS_A_SLOT))
        many = reader_edge(options.package, "--max-batch", slots, "--max-waiting", slots)
        with ServerProcess(many, Path(folder) / "many.log") as server:
            load = Load(server, sent, expected, options.seed)
            asyncio.run(load.run(options.clients, options.minutes * 60))
        if server.process.returncode != -signal.SIGTERM:
            load.faults.append(f"The server was shown to end, and ended with {server.process.returncode}.")
    if not load.counts["instructed to wait"]:
        load.faults.append("The queue was never full: more --clients or --requests.")
    print("\n".join([*load.summary(), *load.faults[:20]]))
    sys.exit(1 if load.faults else 0)


async def _answer_alone(url: str, sent: Sequence[Question]) -> list[Answer]:
    async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S) as client:
        return [read_whole(await client.post(question.path, json=question.body)) for question in sent]


class Load:
    """Clients of one server, and what they saw. faults: sentences about what should not be."""

    def __init__(self, server: ServerProcess, sent: Sequence[Question], expected: Sequence[Answer], seed: int) -> None:
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self._server = server
        self._requested = sent
        self._expected = expected
        self._chance = random.Random(seed + 1)
        self._left = list(range(len(sent)))
        self._end = 0.0
        self._memory: list[Memory] = []

    async def run(self, num_clients: int, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=self._server.url, timeout=_TIMEOUT_S, limits=httpx.Limits()) as client:
            watching = asyncio.create_task(self._watch_memory(client))
            async with asyncio.TaskGroup() as tasks:
                for _ in range(num_clients):
                    tasks.create_task(self._behave(client))
            watching.cancel()
            await self._wait_until_idle(client)
        if seconds >= _GROWTH_AFTER_S:
            self._compare_memory()

    def summary(self) -> list[str]:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))
        early, late = self._halfway_and_end()
        return [f"{counts}; memory {early} halfway, {late} at the end; {len(self.faults)} faults"]

    async def _behave(self, client: httpx.AsyncClient) -> None:
        """One client: mostly it asks, sometimes it is rude."""
        while self._left or time.monotonic() < self._end:
            index = self._left.pop() if self._left else self._chance.randrange(len(self._requested))
            await self._ask(client, index)
            manner = self._chance.random()
            if manner < 0.25:
                await self._leave(client, self._chance.choice(self._requested))
            elif manner < 0.4:
                await self._talk_nonsense(client)
            await asyncio.sleep(self._chance.expovariate(20))

    async def _ask(self, client: httpx.AsyncClient, index: int) -> None:
        is_streamed = self._chance.random() < 0.5
        while (answer := await self._answer(client, self._requested[index], is_streamed)).status == _FULL:
            self.counts["instructed to wait"] += 1
            await asyncio.sleep(self._chance.expovariate(4))
        self.counts["answers streamed" if is_streamed else "answers whole"] += 1
        if answer != self._expected[index]:
            shown = json.dumps(self._requested[index].body)[:300]
            self.faults.append(f"another answer to {shown}: {answer!r:.600} in place of {self._expected[index]!r:.600}")

    async def _answer(self, client: httpx.AsyncClient, question: Question, is_streamed: bool) -> Answer:
        if not is_streamed:
            return read_whole(await client.post(question.path, json=question.body))
        async with client.stream("POST", question.path, json=question.streamed) as response:
            return await read_stream(response)

    async def _leave(self, client: httpx.AsyncClient, question: Question) -> None:
        """Hang up after some pieces, or before the first."""
        pieces_left = self._chance.choice((1, 3, 10))
        timeout_s = self._chance.choice((None, self._chance.expovariate(20)))
        sent = client.stream("POST", question.path, json=question.streamed)
        try:
            async with asyncio.timeout(timeout_s), sent as response:
                async for _ in response.aiter_bytes():
                    pieces_left -= 1
                    if pieces_left <= 0:
                        break
        except TimeoutError:
            self.counts["hung up"] += 1
            return
        self.counts["left"] += 1

    async def _talk_nonsense(self, client: httpx.AsyncClient) -> None:
        output = nonsense(self._chance, _MAX_BODY_BYTES)
        headers = {"Content-Type": "application/json"}
        try:
            response = await client.post(output.path, content=output.content, headers=headers)
        except (httpx.WriteError, httpx.ReadError):  # hung up on while it still spoke
            self.counts["cut short"] += 1
            return
        self.counts["refusals"] += 1
        if response.status_code not in output.statuses:
            self.faults.append(f"{response.status_code} for {output.content[:80]!r}: {response.text[:200]}")

    async def _watch_memory(self, client: httpx.AsyncClient) -> None:
        status = Path(f"/proc/{self._server.process.pid}/status")
        while True:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
            kv_bytes = (await self._metrics(client))["reader_edge_kv_cache_bytes"]
            self._memory.append(Memory(int(fields["VmRSS"].split()[0]) * 1024, kv_bytes))
            await asyncio.sleep(_MEMORY_EVERY_S)

    async def _wait_until_idle(self, client: httpx.AsyncClient) -> None:
        end = time.monotonic() + _IDLE_S
        while time.monotonic() < end:
            figures = await self._metrics(client)
            if not any(figures[f"reader_edge_requests_{state}"] for state in ("running", "waiting")):
                return
            await asyncio.sleep(0.1)
        self.faults.append("Requests still run or wait though nobody asks any more.")

    async def _metrics(self, client: httpx.AsyncClient) -> dict[str, float]:
        lines = (await client.get("/metrics")).text.splitlines()
        figures = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name: float(figure) for name, figure in figures}

    def _halfway_and_end(self) -> tuple["Memory", "Memory"]:
        tenth = max(1, len(self._memory) // 10)
        parts = self._memory[5 * tenth : 6 * tenth], self._memory[-tenth:]
        early, late = (Memory(*map(median, zip(*part, strict=True))) if part else Memory(0, 0) for part in parts)
        return early, late

    def _compare_memory(self) -> None:
        early, late = self._halfway_and_end()
        if late.resident > early.resident * (1 + _MAX_GROWTH):
            self.faults.append(f"Memory grew from {early} to {late}.")


class Memory(NamedTuple):
    """Bytes of a server's process, and what of them is its KV cache by its own count."""

    resident: float
    kv_cache: float

    def __str__(self) -> str:
        rest = self.resident - self.kv_cache
        return f"{self.resident / 1e6:.1f} MB (KV cache {self.kv_cache / 1e6:.1f}, all else {rest / 1e6:.1f})"


if __name__ == "__main__":
    main()
