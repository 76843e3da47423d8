"""Constraints that hold an answer to a grammar: a JSON schema, a regular expression, one of several texts.

llguidance (https://github.com/guidance-ai/llguidance) says which tokens may come next, and which must. It does so in
processes that are bounded in time and memory (grammar_worker.py), one for each answer: a grammar may be a stranger's.
"""

import importlib.util
import json
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from reader_edge_runtime.config import Grammar
from reader_edge_runtime.decoding.choosing.constraint import FORCED_SOURCE
from reader_edge_runtime.decoding.choosing.grammar_process import GrammarProcess, GrammarProcesses
from reader_edge_runtime.decoding.choosing.grammar_worker import ADVANCE, CUT, FORCED, MASK, OVER
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ConfigError, InstallationError


class Grammars:
    """Makes constraints for one model. Thread-safe. Raises InstallationError where the library is missing.

    tokenizer_json: its tokenizer in the form of tokenizer.json.
    """

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        if importlib.util.find_spec("llguidance") is None:
            raise InstallationError("Grammars need llguidance, which is missing: pip install 'reader-edge[grammar]'.")
        self._processes = GrammarProcesses(tokenizer_json, vocab_size, eos_token_ids)
        self._vocab_size = vocab_size

    def constraint(self, grammar: Grammar) -> "GrammarConstraint":
        """A constraint at its beginning. Raises ConfigError for what is no grammar of its kind, or too complex."""
        try:
            process = self._processes.start()
        except (OSError, EOFError) as error:  # no memory for a process, or no Python in a program that it is a part of
            reason = getattr(error, "strerror", None) or "it ends at once"
            raise ConfigError(
                f"The process that follows grammars cannot be started ({reason}): ask without a grammar."
            ) from None
        return GrammarConstraint(process, grammar, self._vocab_size)


class GrammarConstraint:
    """A `Constraint` of one request. Raises ConfigError where following the grammar takes more than it may.

    is_over: whether the grammar allows nothing more. forced: tokens that come next.
    """

    def __init__(self, process: GrammarProcess, grammar: Grammar, vocab_size: int) -> None:
        self._process = process
        self._channel = process.channel
        self._name = grammar.name
        self._vocab_size = vocab_size
        self._mask: npt.NDArray[np.bool_] | None = None
        self._is_awaited = False  # whether the process was asked for it
        self.is_over = False
        with self:
            self._channel.write_text(json.dumps({"kind": grammar.kind, "text": grammar.text}).encode())
            self._channel.flush()
            reason = self._channel.read_text().decode(errors="replace")
            if reason:
                self.close()
                raise ConfigError(f"The {self._name} cannot be followed ({reason}): change or simplify it.")
            self.forced = self._channel.read_numbers()
        self.mask()

    def prepare(self) -> None:
        if self._mask is None and not self._is_awaited:
            with self:
                self._ask(MASK)
            self._is_awaited = True

    def mask(self) -> npt.NDArray[np.bool_]:
        self.prepare()
        if self._mask is None:
            with self:
                bits = np.frombuffer(self._channel.read_text(), np.uint8)
            self._mask = np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)
            self._is_awaited = False
        return self._mask

    def advance(self, token_id: int) -> None:
        self._take_awaited()
        with self:
            self._ask(ADVANCE, token_id)
            state, *self.forced = self._channel.read_numbers()
        self.is_over = state == OVER
        self._mask = None

    def cut(self, tree: DraftTree, max_nodes: int) -> DraftTree:
        self._take_awaited()
        with self:
            self._ask(CUT, max_nodes - 1, *tree.token_ids, *tree.parents)
            numbers = self._channel.read_numbers()
        num_nodes = len(numbers) // 3
        token_ids, parents, origins = (numbers[i * num_nodes : (i + 1) * num_nodes] for i in range(3))
        sources = [FORCED_SOURCE if old == FORCED else tree.sources[old] for old in origins]
        values: list[float] = []
        for old, parent in zip(origins, parents, strict=True):
            values.append(tree.values[old] if old != FORCED else values[parent])
        return DraftTree(token_ids, parents, sources, values).best(max_nodes)

    def close(self) -> None:
        self._process.close()

    def _ask(self, *numbers: int) -> None:
        self._channel.write_numbers(numbers)
        self._channel.flush()

    def _take_awaited(self) -> None:
        """Replies come in the order of what was asked."""
        if self._is_awaited:
            self.mask()

    def __enter__(self) -> None:
        """A conversation with the process, whose end is the end of what may be said."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, OSError | EOFError | ValueError):  # ValueError: closed
            self.close()
            raise ConfigError(f"The {self._name} takes more time or memory than it may: simplify it.") from None
