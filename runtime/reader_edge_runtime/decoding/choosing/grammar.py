"""Constraints that hold an answer to a grammar: a JSON schema, a regular expression, one of several texts.

llguidance (https://github.com/guidance-ai/llguidance) says which tokens may come next, and which must. It does so in
processes that are bounded in time and memory (grammar_worker/), one for each answer: a grammar may be a stranger's.
"""

import importlib.util
import json
from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.config import Grammar
from reader_edge_runtime.decoding.choosing.grammar_process import GrammarProcess, GrammarProcesses, Vocabulary
from reader_edge_runtime.decoding.choosing.grammar_worker.channel import ADVANCE, CUT, MASK, OVER, READABLE
from reader_edge_runtime.decoding.choosing.grammar_worker.tree_cut import FORCED
from reader_edge_runtime.decoding.choosing.lenient_schema import key_patterns, lenient_patterns, without_patterns
from reader_edge_runtime.draft_tree import FORCED_SOURCE, DraftTree
from reader_edge_runtime.errors import ConfigError, InstallationError


class Grammars:
    """Makes constraints for one model. Thread-safe. Raises InstallationError where the library is missing."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if importlib.util.find_spec("llguidance") is None:
            raise InstallationError("Grammars need llguidance, which is missing: pip install 'reader-edge[grammar]'.")
        self._processes = GrammarProcesses(vocabulary)
        self._vocab_size = len(vocabulary.tokens)

    def constraint(self, grammar: Grammar) -> "GrammarConstraint":
        """A constraint at its beginning. Raises ConfigError for what is no grammar of its kind, or too complex.

        Of schemas that are lenient, patterns that the library cannot follow are left out.
        """
        try:
            return GrammarConstraint(self._start(), grammar, self._vocab_size)
        except ConfigError:
            patterns = lenient_patterns(grammar)
            if not patterns:
                raise
        left = without_patterns(grammar, self._unreadable(patterns, grammar.name))
        try:
            return GrammarConstraint(self._start(), left, self._vocab_size)
        except ConfigError as error:
            if "not disjoint" not in str(error):  # several patterns may name one key
                raise
        return GrammarConstraint(self._start(), without_patterns(left, key_patterns(left)), self._vocab_size)

    def _unreadable(self, patterns: Sequence[str], name: str) -> list[str]:
        readable = readable_patterns(self._start(), patterns, name)
        return [pattern for pattern, is_readable in zip(patterns, readable, strict=True) if not is_readable]

    def _start(self) -> GrammarProcess:
        try:
            return self._processes.start()
        except (OSError, EOFError) as error:  # no memory for a process, or no Python in a program that it is a part of
            reason = getattr(error, "strerror", None) or "it ends at once"
            raise ConfigError(
                f"The process that follows grammars cannot be started ({reason}): ask without a grammar."
            ) from None


class _Conversation:
    """What is said to the process of one grammar. Raises ConfigError where the process says what is wrong, or ends.

    name: of the grammar.
    """

    def __init__(self, process: GrammarProcess, name: str) -> None:
        self._process = process
        self._channel = process.channel
        self._name = name

    def tell(self, kind: str, text: str) -> list[int]:
        """The grammar, and what the process replies."""
        with self:
            self._channel.write_text(json.dumps({"kind": kind, "text": text}).encode())
            self._channel.flush()
            return self.read_numbers()

    def ask(self, *numbers: int) -> None:
        with self:
            self._channel.write_numbers(numbers)
            self._channel.flush()

    def read(self) -> bytes:
        """The reply to what was asked, in the order of asking."""
        with self:
            problem = self._channel.read_text().decode(errors="replace")
            if not problem:
                return self._channel.read_text()
        self.close()
        raise ConfigError(f"The {self._name} cannot be followed ({problem}): change or simplify it.")

    def read_numbers(self) -> list[int]:
        return array("i", self.read()).tolist()

    def close(self) -> None:
        self._process.close()

    def __enter__(self) -> None:
        """Something is said, and may be the last."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError | EOFError | ValueError):  # ValueError: closed
            reason = self._process.reason(error)
            self.close()
            raise ConfigError(f"The {self._name} {reason}.") from None


def readable_patterns(process: GrammarProcess, patterns: Sequence[str], name: str) -> list[int]:
    """Whether the library reads each pattern of a grammar's schemas. Raises ConfigError."""
    conversation = _Conversation(process, name)
    try:
        return conversation.tell(READABLE, json.dumps(patterns))
    finally:
        conversation.close()


class GrammarConstraint:
    """A `Constraint` of one request. Raises ConfigError where following the grammar takes more than it may.

    is_over: whether the grammar allows nothing more. forced: tokens that come next.
    """

    def __init__(self, process: GrammarProcess, grammar: Grammar, vocab_size: int) -> None:
        self._process = _Conversation(process, grammar.name)
        self._vocab_size = vocab_size
        self._mask: npt.NDArray[np.bool_] | None = None
        self._is_awaited = False  # whether the process was asked for it
        self.is_over = False
        self.forced = self._process.tell(grammar.kind, grammar.text)
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
        self._process.close()

    def _take_awaited(self) -> None:
        """Replies come in the order of what was asked."""
        if self._is_awaited:
            self.mask()
