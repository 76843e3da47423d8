"""Replays recorded sessions of agents on a real model and times them: real passes, but the recorded tokens."""

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.agents.session_script import make_project
from benchmarks.agents.sessions import Turn
from reader_edge_runtime import Engine
from reader_edge_runtime.cache import Cache
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.stats import GenerationStats
from reader_edge_runtime.target import Pass, Target

ARMS = ("plain", "drafted", "with workspace")


class Recorded:
    """Lets a target choose the tokens of a text, wherever a node is on it. One request at a time."""

    def __init__(self, target: Target) -> None:
        self.text: list[int] = []
        self._forward = target.forward
        target.forward = self.forward  # type: ignore[method-assign]

    def forward(self, cache: Cache, wanted: Pass) -> ForwardResult:
        """See Target."""
        result = self._forward(cache, wanted)
        for b, (tree, rows) in enumerate(zip(wanted.trees, wanted.rows, strict=True)):
            places = self._places(tree, cache.lengths[wanted.first_slot + b])
            for row, node in enumerate(rows):
                if 0 <= places[node] < len(self.text) - 1:
                    top_ids, following = result.top_ids[b, row], self.text[places[node] + 1]
                    top_ids[top_ids == following] = top_ids[0]
                    top_ids[0] = following
        return result

    def _places(self, tree: DraftTree, length: int) -> list[int]:
        """Of each node, its place in the text; -1 off it."""
        places: list[int] = []
        for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
            place = length if parent < 0 else places[parent] + 1
            is_on_it = (parent < 0 or place > 0) and place < len(self.text) and self.text[place] == token_id
            places.append(place if is_on_it else -1)
        return places


class TurnTime(NamedTuple):
    """A turn of an arm. first_s: until its first token. token_s: of each behind it. num_read: tokens not cached."""

    arm: str
    turn: int
    first_s: float
    token_s: float
    num_read: int

    @classmethod
    def of(cls, arm: str, turn: int, stats: GenerationStats) -> "TurnTime":
        """From what an engine counted."""
        num_read = stats.num_prompt_tokens - stats.num_reused_tokens
        return cls(arm, turn, stats.prefill_s, 1 / stats.tokens_per_s if stats.num_tokens > 1 else 0.0, num_read)


def median_turn(timed: Iterable[TurnTime], arm: str, turn: int) -> TurnTime:
    """Medians of the rounds."""
    found = [each for each in timed if (each.arm, each.turn) == (arm, turn)]
    first_s, token_s = (median(values) for values in list(zip(*found, strict=True))[2:4])
    return TurnTime(arm, turn, first_s, token_s, found[0].num_read)


@contextmanager
def loaded(package: Path, **options: Any) -> Iterator[tuple[Engine, Recorded]]:
    """An engine that is ready to draft."""
    with Engine.load(package, **options) as engine:
        if isinstance(engine.decoder.drafter, RetrievalDrafter):
            engine.decoder.drafter.wait()
        yield engine, Recorded(engine.decoder.target)


def run_turn(engine: Engine, recorded: Recorded, turn: Turn, num_tokens: int, is_drafted: bool) -> GenerationStats:
    """Answer a turn, or begin to. Raises RuntimeError where the answer is not what was recorded."""
    recorded.text = [*turn.prompt, *turn.answer]
    sent: dict[str, Any] = {"max_tokens": num_tokens, "temperature": 0, "ignores_eos": True, "is_drafted": is_drafted}
    result = engine.generate(turn.prompt, **sent)
    if list(result.token_ids) != turn.answer[:num_tokens]:
        raise RuntimeError("The answer is not the recorded one.")
    return result.stats


def sessions(package: Path, turns: Sequence[Turn], rounds: int, arms: Sequence[str] = ARMS) -> Iterator[TurnTime]:
    """Whole sessions of each arm, interleaved; each session begins with nothing kept."""
    with tempfile.TemporaryDirectory() as folder:
        make_project(Path(folder))
        workspace = DraftSources(workspace=folder)
        with loaded(package) as without, loaded(package, sources=workspace) as beside:
            engines = dict(zip(ARMS, (without, without, beside), strict=True))
            for turn in range(rounds):
                for arm in (*arms[turn % len(arms) :], *arms[: turn % len(arms)]):
                    engine, recorded = engines[arm]
                    engine.forget()
                    for number, each in enumerate(turns):
                        stats = run_turn(engine, recorded, each, len(each.answer), arm != "plain")
                        yield TurnTime.of(arm, number, stats)


def restarted_turns(turns: Sequence[Turn]) -> list[int]:
    """Those before which a process is started again."""
    return sorted({1, len(turns) // 2, len(turns) - 1})


def restarts(package: Path, turns: Sequence[Turn], rounds: int) -> Iterator[TurnTime]:
    """First tokens behind a restart, with a prefix cache of the turns before and without."""
    with tempfile.TemporaryDirectory() as folder:
        filled, begin, caches = Path(folder, "filled"), 0, dict[int, Path]()
        for number in restarted_turns(turns):
            with loaded(package, prefix_cache=filled) as (engine, recorded):
                for each in turns[begin:number]:
                    run_turn(engine, recorded, each, len(each.answer), True)
                engine.flush_prefixes()
            begin = number
            caches[number] = Path(shutil.copytree(filled, Path(folder, str(number))))
        for turn in range(rounds):
            for number, cache in caches.items():
                used = Path(shutil.copytree(cache, Path(folder, f"{number}-{turn}")))  # it is written to
                for arm, options in (("restarted", {}), ("with prefix cache", {"prefix_cache": used})):
                    with loaded(package, **options) as (engine, recorded):
                        stats = run_turn(engine, recorded, turns[number], 1, False)
                    yield TurnTime.of(arm, number, stats)
