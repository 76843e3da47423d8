"""Recorded answers, replayed with and without a form's guesses, each drafted afresh."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.head_forms.form import Form
from benchmarks.head_forms.guess_trees import guesses_of, up_to
from benchmarks.head_forms.recorded_guesses import RecordedGuesses, recorded_answer
from benchmarks.recorded_package import RecordedPackage
from benchmarks.replayed_states import hidden_states, replayed
from reader_edge.bench.fixed_budget import budget_config
from reader_edge.bench.source_sets import SourceStock
from reader_edge_export.heads.examples import Int32Array
from reader_edge_runtime import GenerationStats
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target

BUDGETS = (4, 8)  # nodes
TASKS = ("", "chat", "questions")  # "" for all

Replayed = dict[int, list[GenerationStats]]  # by number of nodes, answer by answer


class Replays:
    """Recorded answers of a package, of one turn each, drafted from context, logits and table, and a form's guesses."""

    def __init__(self, recording: Path, package: ModelPackage, target: Target) -> None:
        recorded = RecordedPackage(recording, package)
        self._requests, self._table = recorded.requests, recorded.table
        self._vocab_size = package.manifest.vocab_size
        states = [hidden_states(target, request.turns[0]) for request in self._requests]
        self._pairs = list(zip(self._requests, states, strict=True))

    @property
    def num_tokens(self) -> int:
        return sum(len(request.turns[0].output) for request in self._requests)

    @property
    def num_answers(self) -> int:
        return len(self._requests)

    def without(self) -> Replayed:
        return self._replayed(None)

    def guesses(self, form: Form, ids: Int32Array) -> list[list[DraftTree]]:
        """At each place of each answer."""
        answers = (recorded_answer(each.turns[0], states) for each, states in self._pairs)
        return [guesses_of(form, ids, answer, self._vocab_size) for answer in answers]

    def with_guesses(self, guesses: Sequence[Sequence[DraftTree]], depth: int) -> Replayed:
        """guesses: of `guesses`, no further ahead than depth."""
        return self._replayed([[up_to(tree, depth) for tree in each] for each in guesses])

    def tokens_a_pass(self, found: Replayed, num_nodes: int, task: str) -> float:
        pairs = zip(self._requests, found[num_nodes], strict=True)
        return GenerationStats.total(stats for request, stats in pairs if task in ("", request.task)).acceptance_length

    def _replayed(self, guesses: Sequence[Sequence[DraftTree]] | None) -> Replayed:
        source = RecordedGuesses()
        names = ("context", "logits", "table", *([] if guesses is None else [source.name]))
        stock = SourceStock((), self._table, None, [source])
        found: Replayed = {}
        for num_nodes in BUDGETS:
            drafter = stock.drafter(names, budget_config(num_nodes))
            found[num_nodes] = []
            for number, (request, states) in enumerate(self._pairs):
                first = len(request.turns[0].prompt) - 1
                source.at = {} if guesses is None else dict(enumerate(guesses[number], first))
                found[num_nodes].append(replayed(drafter, request, states, num_nodes))
        return found
