"""Many clients of two models through all interfaces, and a server that is killed in their midst.

    python -m tests.durability.client_soak [PACKAGE] [--clients 64] [--minutes 10] [--tokens 50000] [--seed 0]

Each client has conversations that carry a secret of its own, at OpenAI's chat completions and responses, Anthropic's
messages and Ollama's chats, streamed and whole, of one of two models (PACKAGE with two chat templates). A server that
decodes plainly, one answer at a time, answers them first. Then a drafting one, with a workspace and a prefix cache on
disk, answers all clients at once, until the time is over and so many tokens were compared; halfway it is killed (-9)
and started again. Exit code 1 where an answer is not the plain one or has another's secret, where a request that was
cut gets no answer after the restart, where no prompt came from disk then, or where memory or descriptors grow. Needs
/proc.
"""

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from reader_edge.models.model_source import find_package
from tests.durability.server_process import ServerProcess
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy

TEXTS = Path(__file__).parents[1] / "data" / "held_out.jsonl"
MODELS = {"one": CHAT_TEMPLATE, "two": "Notes. " + CHAT_TEMPLATE.replace("assistant:", "The answer is:")}
PATHS = ("/v1/chat/completions", "/v1/messages", "/api/chat", "/v1/responses")
NUM_TURNS, MAX_TOKENS = 3, 48
_TIMEOUT_S, _SETTLED_S = 300.0, 2.0
_MAX_GROWTH = 0.10
_MORE_DESCRIPTORS = 16

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client reads. num_cached: tokens of its prompt that were not computed, where that is in the answer."""

    text: str
    num_tokens: int
    num_cached: int = 0


@dataclass(slots=True)
class Talk:
    """A client's conversation, with the answers of plain decoding."""

    secret: str
    model: str
    messages: list[Json] = field(default_factory=list)
    expected: list[Reply] = field(default_factory=list)


def request(path: str, talk: Talk, turn: int, is_streamed: bool) -> Json:
    """The body that asks for a turn's answer."""
    body: Json = {"model": talk.model, "stream": is_streamed}
    messages = talk.messages[: 2 * turn + 1]
    if path == "/api/chat":
        return body | {"messages": messages, "options": {"temperature": 0, "num_predict": MAX_TOKENS}}
    if path == "/v1/responses":
        return body | {"input": messages, "temperature": 0, "max_output_tokens": MAX_TOKENS}
    usage = {"stream_options": {"include_usage": True}} if is_streamed and path == PATHS[0] else {}
    return body | {"messages": messages, "temperature": 0, "max_tokens": MAX_TOKENS} | usage


def read(path: str, text: str, is_streamed: bool) -> Reply:
    """An answer, whole or in events. Raises ValueError for one that broke off."""
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    events = [json.loads(line) for line in lines if line.startswith("{")] if is_streamed else [json.loads(text)]
    if any("error" in each and each["error"] for each in events):
        raise ValueError(text[-500:])
    last = events[-1]
    if path == "/api/chat":
        return Reply("".join(each["message"]["content"] for each in events), last["eval_count"])
    if path == "/v1/responses":
        response = last["response"] if is_streamed else last
        pieces = [part["text"] for item in response["output"] for part in item["content"]]
        usage = response["usage"]
        return Reply("".join(pieces), usage["output_tokens"], usage["input_tokens_details"]["cached_tokens"])
    if path == "/v1/messages" and is_streamed:
        pieces = [each["delta"]["text"] for each in events if each["type"] == "content_block_delta"]
        [usage] = [each["usage"] for each in events if each["type"] == "message_delta"]
        return Reply("".join(pieces), usage["output_tokens"])
    if path == "/v1/messages":
        usage = last["usage"]
        pieces = [part["text"] for part in last["content"]]
        return Reply("".join(pieces), usage["output_tokens"], usage["cache_read_input_tokens"])
    choices = [choice for each in events for choice in each["choices"]]
    pieces = [(choice.get("delta") or choice.get("message") or {}).get("content") or "" for choice in choices]
    usage = last["usage"]
    return Reply("".join(pieces), usage["completion_tokens"], usage["prompt_tokens_details"]["cached_tokens"])


class ClientSoak:
    """faults: sentences, each a failure. counts: what was done."""

    def __init__(self, package: Path, folder: Path, num_clients: int, seed: int) -> None:
        self._folder = folder
        self._chance = random.Random(seed)
        self._texts = [json.loads(line)["text"] for line in TEXTS.read_text("utf-8").splitlines()]
        for name, template in MODELS.items():
            PackageCopy(package, folder / "models" / name).write_file("chat_template.jinja", template.encode())
        (folder / "work").mkdir()
        for number, text in enumerate(self._texts[:40]):
            (folder / "work" / f"{number}.txt").write_text(text, "utf-8")
        names = [*MODELS]
        self._talks = [Talk(f"K{secrets.token_hex(6)}", names[i % 2]) for i in range(num_clients)]
        self._server: ServerProcess | None = None
        self._is_killed = False
        self._restarted = asyncio.Event()
        self._seen: set[str] = set()  # secrets that the second server has answered
        self._num_first = 0  # descriptors of the second server before its first request
        self._figures: list[tuple[int, int]] = []  # bytes and descriptors of the second server
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()

    async def run(self, seconds: float, min_tokens: int) -> None:
        with ServerProcess(self._command("--max-batch", "1", "--no-draft"), self._folder / "log") as plain:
            await self._converse(plain.url)
        self._server = ServerProcess(self._drafting(), self._folder / "log1").__enter__()
        try:
            end = time.monotonic() + seconds
            clients = [asyncio.create_task(self._client(talk, end, min_tokens)) for talk in self._talks]
            await asyncio.sleep(seconds / 2)
            await self._restart()
            watching = asyncio.create_task(self._watch())
            await asyncio.gather(*clients)
            watching.cancel()
            await asyncio.sleep(_SETTLED_S)
            self._check_growth(_figures_of(self._server.process.pid)[1])
        finally:
            self._server.close()
        if not self.counts["tokens of prompts from disk"]:
            self.faults.append("No prompt came from disk after the restart.")

    def _command(self, *how: str) -> list[str]:
        command = [sys.executable, "-m", "reader_edge", "serve", "--models", str(self._folder / "models")]
        options = ["--port", "{port}", "--no-calibrate", "--max-waiting", "1000", "--log-level", "warning"]
        return [*command, *options, "--threads", "1", "--max-seconds", str(_TIMEOUT_S), *how]

    def _drafting(self) -> list[str]:
        places = ("--prefix-cache", str(self._folder / "prefixes"), "--workspace", str(self._folder / "work"))
        return self._command("--max-batch", "8", *places)

    async def _converse(self, url: str) -> None:
        """Make all conversations, with what plain decoding answers."""
        async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_S) as client:
            for talk in self._talks:
                for turn in range(NUM_TURNS):
                    text = self._chance.choice(self._texts)[:600]
                    talk.messages.append({"role": "user", "content": f"My key is {talk.secret}. {text}"})
                    response = await client.post(PATHS[0], json=request(PATHS[0], talk, turn, False))
                    reply = read(PATHS[0], response.text, False)
                    talk.expected.append(reply)
                    talk.messages.append({"role": "assistant", "content": reply.text})

    async def _client(self, talk: Talk, end: float, min_tokens: int) -> None:
        """Send turn after turn without an end; what is cut is sent again."""
        while time.monotonic() < end or self.counts["tokens compared"] < min_tokens:
            for turn in range(NUM_TURNS):
                while not await self._ask(talk, turn):
                    await self._restarted.wait()

    async def _ask(self, talk: Talk, turn: int) -> bool:
        """Whether there was an answer; there is none only of a server that was killed."""
        server, path, is_streamed = self._server, self._chance.choice(PATHS), self._chance.random() < 0.5
        assert server is not None
        body = request(path, talk, turn, is_streamed)
        try:
            async with httpx.AsyncClient(base_url=server.url, timeout=_TIMEOUT_S) as client:
                response = await client.post(path, json=body)
        except httpx.TransportError as error:
            self.counts["requests cut"] += 1
            if not self._is_killed:
                self.faults.append(f"{path}: {type(error).__name__} though nothing was killed.")
            return False
        self._compare(path, talk, turn, is_streamed, response)
        return True

    def _compare(self, path: str, talk: Talk, turn: int, is_streamed: bool, response: httpx.Response) -> None:
        if response.status_code != 200:
            self.faults.append(f"{path}: {response.status_code} {response.text[:300]}")
            return
        reply, expected = read(path, response.text, is_streamed), talk.expected[turn]
        if (reply.text, reply.num_tokens) != (expected.text, expected.num_tokens):
            self.faults.append(f"{path}, {talk.model}: {reply.text!r:.300} in place of {expected.text!r:.300}")
        strangers = [each.secret for each in self._talks if each is not talk and each.secret in response.text]
        self.faults += [f"{path}: an answer has another client's secret."] * bool(strangers)
        self.counts["tokens compared"] += reply.num_tokens
        self.counts[f"answers of {path}"] += 1
        if self._restarted.is_set():
            # Of a secret that the second server has not seen, it can only have rows from disk.
            self.counts["tokens of prompts from disk"] += 0 if talk.secret in self._seen else reply.num_cached
            self.counts["answers after the restart"] += 1
            self._seen.add(talk.secret)

    async def _restart(self) -> None:
        assert self._server is not None
        self._is_killed = True
        os.killpg(self._server.process.pid, signal.SIGKILL)
        await asyncio.to_thread(self._server.process.wait)
        self._server = await asyncio.to_thread(ServerProcess(self._drafting(), self._folder / "log2").__enter__)
        self._num_first = _figures_of(self._server.process.pid)[1]
        self._restarted.set()
        await asyncio.sleep(1.0)
        self._is_killed = False

    async def _watch(self) -> None:
        assert self._server is not None
        while True:
            self._figures.append(_figures_of(self._server.process.pid))
            await asyncio.sleep(0.5)

    def _check_growth(self, num_idle: int) -> None:
        """Memory at the end against halfway, descriptors of the idle server against those before its first request."""
        tenth = max(1, len(self._figures) // 10)
        middle, last = self._figures[5 * tenth : 6 * tenth] or self._figures, self._figures[-tenth:]
        early, late = (median(figures[0] for figures in part) for part in (middle, last))
        self.counts["MB halfway"], self.counts["MB at the end"] = round(early / 1e6), round(late / 1e6)
        self.counts["descriptors at most"] = max(figures[1] for figures in self._figures)
        self.counts["descriptors when idle"] = num_idle
        if late > (1 + _MAX_GROWTH) * early:
            self.faults.append(f"Memory grew from {early / 1e6:.0f} to {late / 1e6:.0f} MB.")
        if num_idle > self._num_first + _MORE_DESCRIPTORS:
            self.faults.append(f"{num_idle} descriptors are open though nobody asks; at first {self._num_first} were.")


def _figures_of(pid: int) -> tuple[int, int]:
    """Resident bytes of a process, and its open descriptors."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir(f"/proc/{pid}/fd"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--tokens", type=int, default=50_000, help="that are compared at least")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        soak = ClientSoak(find_package(given.package), Path(folder), given.clients, given.seed)
        asyncio.run(soak.run(60 * given.minutes, given.tokens))
    print("\n".join(f"{count:8} {what}" for what, count in sorted(soak.counts.items())))
    print("\n".join([*soak.faults[:20], f"{len(soak.faults)} faults"]))
    return 1 if soak.faults else 0


if __name__ == "__main__":
    sys.exit(main())
