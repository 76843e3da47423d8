"""Constraints of an answer by a grammar: a JSON schema, a regular expression, one of several texts.

llguidance (https://github.com/guidance-ai/llguidance) says which tokens may come next, and which must. It does so in
processes that are bounded in time and memory (grammar_worker/), one for each answer: a grammar may be a stranger's.
"""

import importlib.util
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.config import Grammar
from reader_edge_runtime.decoding.sampling.constraint import AfterThinking, Constraint
from reader_edge_runtime.decoding.sampling.grammar_process import GrammarProcess, Vocabulary
from reader_edge_runtime.decoding.sampling.grammar_worker import ADVANCE, CHECK, CUT, MASK, OVER, UNCHECKED
from reader_edge_runtime.decoding.sampling.grammar_worker.tree_cut import FORCED
from reader_edge_runtime.draft_tree import FORCED_SOURCE, DraftTree
from reader_edge_runtime.errors import ConfigError, InstallationError
from reader_edge_runtime.machine.bounded_process import BoundedProgram

_MAX_PENDING = 16  # answers that wait to be compared with their schemas, each with a process
_WORKER = "reader_edge_runtime.decoding.sampling.grammar_worker.matcher"

_LOG = logging.getLogger(__name__)


class Grammars:
    """Makes constraints for one model. Thread-safe. Raises InstallationError where the library is missing."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if importlib.util.find_spec("llguidance") is None:
            raise InstallationError("Grammars need llguidance, which is missing: pip install 'reader-edge[grammar]'.")
        self._program = BoundedProgram(_WORKER, vocabulary.messages())
        self._vocab_size, self._eos_ids = len(vocabulary.tokens), vocabulary.eos_token_ids
        self._checks = Checks()

    def constraint(self, grammar: Grammar) -> "GrammarConstraint":
        """A constraint at its beginning. Raises ConfigError for what is no grammar of its kind, or too complex.

        Of schemas that are lenient, what the library cannot follow is left out. A whole answer is compared with its
        schema behind its end, in a thread of its own, and the log has an error where it does not satisfy it.
        """
        return GrammarConstraint(self._start(grammar), grammar, self._vocab_size, self._checks)

    def constrain(
        self, grammar: Grammar, is_thinking_end: Callable[[int], bool] | None
    ) -> tuple[Constraint, tuple[str, ...]]:
        """The constraint of an answer, and the parts of the grammar that it does not enforce.

        is_thinking_end: gets each token of a thinking part before it, whether it is the last; None where there is none.
        """
        constraint = self.constraint(grammar)
        if is_thinking_end is None:
            return constraint, constraint.left_out
        return AfterThinking(constraint, is_thinking_end, self._vocab_size, self._eos_ids), constraint.left_out

    def compare(self, grammar: Grammar, answer: str) -> None:
        """Compare a text with a grammar of kind "json_schema", as whole answers are compared with theirs."""
        self._checks.submit(grammar.name, lambda: self._problem(grammar, answer))

    def _problem(self, grammar: Grammar, answer: str) -> str:
        constraint = GrammarConstraint(self._start(grammar), grammar, self._vocab_size)
        try:
            return constraint.problem(answer)
        finally:
            constraint.close()

    def _start(self, grammar: Grammar) -> GrammarProcess:
        try:
            return GrammarProcess(self._program.start(), grammar.name)
        except (OSError, EOFError) as error:  # no memory for a process, or no Python in a program that it is a part of
            reason = getattr(error, "strerror", None) or "it ends at once"
            raise ConfigError(
                f"The process that follows grammars cannot be started ({reason}): ask without a grammar."
            ) from None


class Checks:
    """Has whole answers compared with their schemas, one after the other in a thread; the log has what is wrong."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "reader-edge-checks")
        self._places = threading.Semaphore(_MAX_PENDING)

    def submit(self, name: str, find: Callable[[], str]) -> bool:
        """Compare one; whether there is room for it. name: of its grammar. find: what is wrong, "" for nothing."""
        if not self._places.acquire(blocking=False):
            _LOG.warning("An answer was not compared with its schema (%s): too many wait for that.", name)
            return False
        try:
            self._thread.submit(self._compare, name, find)
        except RuntimeError:  # the program ends
            return False
        return True

    def wait(self) -> None:
        """Until all are compared that were submitted before."""
        self._thread.submit(int).result()

    def _compare(self, name: str, find: Callable[[], str]) -> None:
        try:
            problem = find()
            if problem.startswith(UNCHECKED):
                _LOG.warning("An answer was not compared with its schema (%s): %s.", name, problem)
            elif problem:
                _LOG.error("An answer does not satisfy its schema (%s): %s.", name, problem)
        except ConfigError as error:
            _LOG.warning("An answer was not compared with its schema: %s", error)
        finally:
            self._places.release()


class GrammarConstraint:
    """A `Constraint` of one request. Raises ConfigError where following the grammar takes more than it may.

    is_over: whether the grammar allows nothing more. forced: tokens that come next. left_out: what the answer is not
    held to, as parts of a schema that is lenient.
    """

    def __init__(
        self, process: GrammarProcess, grammar: Grammar, vocab_size: int, checks: Checks | None = None
    ) -> None:
        """checks: has the thread that compares whole answers with their schemas; None compares none."""
        self._process = process
        self._vocab_size = vocab_size
        self._checks = checks
        self._name = grammar.name
        self._has_schema = grammar.kind == "json_schema"
        self._has_begun = self._is_closed = False
        self._mask: npt.NDArray[np.bool_] | None = None
        self._is_awaited = False  # whether the process has the request for it
        self.is_over = False
        self.forced, left_out = self._process.begin(grammar.kind, grammar.text)
        self.left_out = (*grammar.left_out, *left_out)
        self.mask()

    def prepare(self) -> None:
        if self._mask is None and not self._is_awaited:
            self._process.ask(MASK)
            self._is_awaited = True

    def mask(self) -> npt.NDArray[np.bool_]:
        self.prepare()
        if self._mask is None:
            bits = np.frombuffer(self._process.read(), np.uint8)
            self._mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
            self._is_awaited = False
        return self._mask

    def advance(self, token_id: int) -> None:
        self._take_awaited()
        self._process.ask(ADVANCE, token_id)
        state, *self.forced = self._process.read_numbers()
        self.is_over = state == OVER
        self._has_begun = True
        self._mask = None

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        self._take_awaited()
        self._process.ask(CUT, max_nodes - 1, *tree.token_ids, *tree.parents)
        numbers = self._process.read_numbers()
        num_nodes = len(numbers) // 3
        token_ids, parents, origins = (numbers[i * num_nodes : (i + 1) * num_nodes] for i in range(3))
        sources = [FORCED_SOURCE if old == FORCED else tree.sources[old] for old in origins]
        values: list[float] = []
        for old, parent in zip(origins, parents, strict=True):
            values.append(tree.values[old] if old != FORCED else values[parent])
        return DraftTree(token_ids, parents, sources, values).pruned(max_nodes)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        checks = self._checks if self._has_schema and self._has_begun else None
        if checks is None or not checks.submit(self._name, self._last_problem):
            self._process.close()

    def problem(self, text: str = "") -> str:
        """What a text has that the schema does not allow, "" for nothing. By default the answer, where it is whole."""
        self._take_awaited()
        self._process.ask(CHECK, *text.encode(errors="replace"))
        return self._process.read().decode(errors="replace")

    def _last_problem(self) -> str:
        try:
            return self.problem()
        finally:
            self._process.close()

    def _take_awaited(self) -> None:
        """Replies come in the order of requests."""
        if self._is_awaited:
            self.mask()
