"""Sessions on llama.cpp's server by the clock, with its own prefix cache and drafting.

A grammar of token ids makes it answer what was recorded. The check costs time at every token, which no user pays: so
the plain speed is that of answers of its own behind the same prompts, and what the grammar adds to a plain turn is
taken off its drafted ones. Sampling is called once for each token that an answer gets, drafted or not.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.agents.clock import TurnTime, median_turn, restarted_turns
from benchmarks.agents.sessions import Turn
from benchmarks.peers.llama_server import LlamaServer
from benchmarks.peers.runtimes import THREADS

ARMS = ("plain", "ngram-simple", "ngram-mod")
RESTORED = "with a slot's file"
_FREE = "free"
_FREE_TOKENS = 64


def sessions(binary: Path, model: str, context: int, turns: Sequence[Turn], rounds: int) -> Iterator[TurnTime]:
    """Whole sessions of each arm, interleaved, each with a server of its own; "free" answers what it likes."""
    arms = (_FREE, *ARMS)
    for turn in range(rounds):
        for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
            drafting = arm if arm in ARMS[1:] else ""
            with LlamaServer(binary, model, context, THREADS, drafting) as server:
                for number, each in enumerate(turns):
                    yield _answered(server, arm, number, each, len(each.answer))


def restarts(binary: Path, model: str, context: int, turns: Sequence[Turn], rounds: int) -> Iterator[TurnTime]:
    """First tokens behind a restart, with the slot that the server before has written and without."""
    with tempfile.TemporaryDirectory() as folder:
        files = {number: Path(folder, f"slot-{number}") for number in restarted_turns(turns)}
        with LlamaServer(binary, model, context, THREADS) as server:
            for number, each in enumerate(turns):
                if number in files:
                    server.save(files[number])
                _answered(server, "plain", number, each, len(each.answer))
        for _ in range(rounds):
            for number, file in files.items():
                for arm in ("restarted", RESTORED):
                    with LlamaServer(binary, model, context, THREADS) as server:
                        restore_s = 0.0 if arm == "restarted" else server.restore(file)
                        found = _answered(server, arm, number, turns[number], 1)
                        yield found._replace(first_s=restore_s + found.first_s)


def token_seconds(served: Sequence[TurnTime], num_turns: int) -> list[list[float]]:
    """Of each arm and turn, seconds a token without the grammar's."""

    def seconds(arm: str, number: int) -> float:
        free, plain, own = (median_turn(served, each, number).token_s for each in (_FREE, "plain", arm))
        return own - (plain - free)

    return [[seconds(arm, number) for number in range(num_turns)] for arm in ARMS]


def _answered(server: LlamaServer, arm: str, number: int, turn: Turn, num_tokens: int) -> TurnTime:
    """Answer a turn, or begin to. Raises RuntimeError where the answer is not what was recorded."""
    is_free = arm == _FREE
    num_tokens = _FREE_TOKENS if is_free else num_tokens
    found = server.complete(turn.prompt, num_tokens, False, () if is_free else turn.answer)
    if not is_free and found.token_ids != turn.answer[:num_tokens]:
        raise RuntimeError("llama.cpp's answer is not the recorded one.")
    return TurnTime(arm, number, found.first_s, found.rest_s / max(1, num_tokens - 1), found.num_read)
