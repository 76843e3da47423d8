"""Kill -9 a server at random moments: does it start again, answer rightly, and leave nothing?

    python -m tests.durability.kill_servers

`reader-edge serve` with a history, sent by many at once: chats, completions, streams, grammars, tools, clients that
leave. Some are killed as they start, the others once they have answered, and each is started again over what the one
before left. Exit code 1 where a server does not start or says anything but where it serves, where an answer is not the
one that an undisturbed server gave which decodes plainly, where the history holds what is no answer's beginning or is
damaged, or where a process or a file stays behind. Needs /proc.
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx

from reader_edge.models.model_source import find_package
from reader_edge_runtime.drafting.sources.history_records import read_records
from reader_edge_runtime.package.manifest import MANIFEST_NAME
from tests.durability.server_questions import Answer, Question, questions, read_stream, read_whole

ROOT = Path(__file__).resolve().parents[2]
TEXTS = ROOT / "tests" / "data" / "held_out.jsonl"
TEMPLATE = b"{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
MAX_TOKENS, NUM_CLIENTS = 32, 6
KILLED_AT_START = 0.2  # share
START_S, ORPHAN_S, TIMEOUT_S = 180.0, 30.0, 120.0
FILES = {"history", "history.lock"}  # all that a server may leave


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--questions", type=int, default=60, help="different ones")
    parser.add_argument("--seconds", type=float, default=4.0, help="of load before a kill, at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        package = chat_package(find_package(options.model), Path(folder) / "package")
        proof = KillProof(package, Path(folder), options.questions, options.seed)
        asyncio.run(proof.run(options.kills, options.seconds))
    counts = ", ".join(f"{count} {what}" for what, count in sorted(proof.counts.items()))
    print(f"{options.kills} kills: {counts}; the last process was gone after {proof.longest_s:.1f} s at most.")


def chat_package(package: Path, folder: Path) -> Path:
    """The package, or a copy that has a chat template."""
    manifest = json.loads((package / MANIFEST_NAME).read_text(encoding="utf-8"))
    if "chat_template.jinja" in manifest["files"]:
        return package
    shutil.copytree(package, folder)
    (folder / "chat_template.jinja").write_bytes(TEMPLATE)
    entry = {"num_bytes": len(TEMPLATE), "sha256": hashlib.sha256(TEMPLATE).hexdigest()}
    manifest["files"]["chat_template.jinja"] = entry
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest), encoding="utf-8")
    return folder


class Life:
    """A server from its start to its end, with all processes that it starts."""

    def __init__(self, package: Path, folder: Path, *how: str) -> None:
        """folder: of its history and its temporary files."""
        self.mark = secrets.token_hex(16)
        self.log = folder / "log"
        (folder / "kept").mkdir(parents=True, exist_ok=True)
        (folder / "temporary").mkdir(exist_ok=True)
        options = ["--port", "0", "--name", "model", "--no-calibrate", "--threads", "1", *how]
        environment = {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder / "temporary")}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "reader_edge", "serve", str(package), *options],
                env=os.environ | environment | {"READER_EDGE_LIFE": self.mark, "OMP_NUM_THREADS": "1"},
                cwd=folder / "kept",
                stderr=log,
                start_new_session=True,
            )

    async def url(self) -> str:
        """Where it serves, once it does."""
        end = time.monotonic() + START_S
        while self.process.poll() is None and time.monotonic() < end:
            output = self.log.read_text()
            _, is_serving, words = output.rpartition("Serving ")
            if is_serving and words.endswith("\n"):
                return words.split()[2].removesuffix(":")
            await asyncio.sleep(0.02)
        sys.exit(f"A server did not start, but wrote: {self.log.read_text()!r}")

    def processes(self) -> list[str]:
        """What runs of it."""
        mark, names = f"READER_EDGE_LIFE={self.mark}".encode(), []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    command = (entry / "cmdline").read_bytes()
                    names += [Path(part.decode()).stem for part in command.split(b"\0") if part.endswith(b".py")]
                    names += [] if b".py\0" in command else ["server"]
            except OSError:  # it has ended
                continue
        return names

    async def end(self, kind: signal.Signals) -> float:
        """Seconds until all of it is gone."""
        start = time.monotonic()
        self.process.send_signal(kind)
        await asyncio.to_thread(self.process.wait, TIMEOUT_S)
        while left := self.processes():
            if time.monotonic() - start > ORPHAN_S:
                sys.exit(f"Processes of a server that has ended run on: {left}")
            await asyncio.sleep(0.05)
        return time.monotonic() - start


class KillProof:
    """longest_s: between a kill and the end of the last process."""

    def __init__(self, package: Path, folder: Path, num_questions: int, seed: int) -> None:
        texts = [json.loads(line)["text"][:300] for line in TEXTS.read_text().splitlines()]
        self._requested = questions(texts, num_questions, MAX_TOKENS, seed)
        self._package, self._folder = package, folder
        self._chance = random.Random(seed)
        self._expected: list[Answer] = []
        self._texts: list[bytes] = []  # of an undisturbed history
        self.counts: Counter[str] = Counter()
        self.longest_s = 0.0

    async def run(self, num_kills: int, longest_load_s: float) -> None:
        await self._answer_undisturbed()
        for _ in range(num_kills):
            await self._kill_one(longest_load_s)
            self._check_files()
        last = self._start("killed")
        for index, answer in enumerate(await self._answer_all(await last.url())):
            self._compare(index, answer)
        await last.end(signal.SIGTERM)
        self._check_files()

    async def _answer_undisturbed(self) -> None:
        plain = Life(self._package, self._folder / "plain", "--max-batch", "1", "--no-draft")
        self._expected = await self._answer_all(await plain.url())
        await plain.end(signal.SIGTERM)
        drafting = self._start("drafting")
        await self._answer_all(await drafting.url())
        await drafting.end(signal.SIGTERM)
        self._texts = self._history("drafting")

    def _start(self, name: str) -> Life:
        return Life(self._package, self._folder / name, "--max-batch", "4", "--history", "history")

    async def _answer_all(self, url: str) -> list[Answer]:
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
            return [read_whole(await client.post(each.path, json=each.body)) for each in self._requested]

    async def _kill_one(self, longest_load_s: float) -> None:
        life = self._start("killed")
        clients: Sequence[asyncio.Task[None]] = ()
        if self._chance.random() < KILLED_AT_START:
            await asyncio.sleep(self._chance.uniform(0, 1.0))
            self.counts["during the start"] += 1
        else:
            url = await life.url()
            clients = [asyncio.create_task(self._ask_on(url)) for _ in range(NUM_CLIENTS)]
            await asyncio.sleep(self._chance.uniform(0, longest_load_s))
        self.counts.update(f"times a {name} ran" for name in set(life.processes()) - {"server"})
        self.longest_s = max(self.longest_s, await life.end(signal.SIGKILL))
        await asyncio.gather(*clients)
        output = life.log.read_text()
        if not all(line.split(" ")[1:2] in (["INFO"], ["WARNING"]) for line in output.splitlines()):
            sys.exit(f"A server wrote: {output}")

    async def _ask_on(self, url: str) -> None:
        """Ask until nobody answers any more."""
        async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S) as client:
            try:
                while True:
                    index = self._chance.randrange(len(self._requested))
                    answer = await self._ask(client, self._requested[index])
                    if answer is not None and answer.status != 429:
                        self._compare(index, answer)
            except httpx.TransportError:
                self.counts["requests cut"] += 1

    async def _ask(self, client: httpx.AsyncClient, question: Question) -> Answer | None:
        """None where the client left."""
        manner = self._chance.random()
        if manner < 0.4:
            return read_whole(await client.post(question.path, json=question.body))
        async with client.stream("POST", question.path, json=question.streamed) as response:
            if manner < 0.9:
                return await read_stream(response)
            await anext(response.aiter_bytes(), b"")
        return None

    def _compare(self, index: int, answer: Answer) -> None:
        body, expected = self._requested[index].body, self._expected[index]
        if answer != expected:
            sys.exit(f"Another answer to {body!r:.300}: {answer!r:.500} in place of {expected!r:.500}")
        self.counts["answers compared"] += 1

    def _history(self, name: str) -> list[bytes]:
        path = self._folder / name / "kept" / "history"
        found = read_records(memoryview(path.read_bytes() if path.exists() else b""), 1 << 31)
        if found.num_damaged:
            sys.exit(f"The history is damaged in {found.num_damaged} places.")
        return [text.tobytes() for text in found.texts]

    def _check_files(self) -> None:
        kept, temporary = (set(os.listdir(self._folder / "killed" / name)) for name in ("kept", "temporary"))
        if kept - FILES or temporary:
            sys.exit(f"Files were left: {kept | temporary}")
        for text in self._history("killed"):
            if not any(whole.startswith(text) for whole in self._texts):
                sys.exit("The history holds what is no answer's beginning.")


if __name__ == "__main__":
    main()
