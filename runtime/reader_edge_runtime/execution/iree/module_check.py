"""Compares a compiled module with ONNX Runtime on the machine that is to run it, before it serves.

A compiler may give wrong logits without a word. Verdicts are kept in the user's cache directory.
"""

import hashlib
import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.cache import SlotContents
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.execution.onnxruntime.host.host_rows_runner import HostRowsRunner
from reader_edge_runtime.execution.rows.rows_target import RowsRunner, RowsTarget
from reader_edge_runtime.machine.cache_folder import cache_folder, write_private
from reader_edge_runtime.machine.processor import processor_name
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Pass

_LIMIT = 5e-5  # of differences, as a share of the largest logit: fp32 in another order
_ROWS_LIMIT = 1e-3  # the same of rows of the KV cache, whose differences grow with the layers
_PREFIX_LEN = 24
_CHUNK = 64
_SEED = 40


class ModuleCheck:
    """Compares modules of a package; ONNX Runtime loads it once, and only if there is anything to compare."""

    def __init__(self, package: ModelPackage, prefix_len: int = _PREFIX_LEN) -> None:
        """prefix_len: tokens before the tree, fewer where the context is short."""
        self._package = package
        self._prefix_len = prefix_len

    def fault(self, module: Path, runner: RowsRunner, width: int) -> str | None:
        """What is wrong with the module that a runner has, and no other; None where nothing is.

        module: its file, by whose contents a good verdict is kept.
        """
        kept = self._verdict_path(module, runner)
        if os.access(kept, os.F_OK):
            return None
        tree = self.tree(width)
        (found, rows), (expected, expected_rows) = self._results(runner, tree), self._results(self._reference, tree)
        scale, difference = np.abs(expected).max(), np.abs(found - expected).max(axis=1)
        limit = _LIMIT * scale
        best = np.partition(expected, -2, axis=1)[:, -2:]
        is_tied = best[:, 1] - best[:, 0] <= 2 * limit
        is_same = (found.argmax(axis=1) == expected.argmax(axis=1)) | is_tied
        if not (difference <= limit).all() or not is_same.all():  # no numbers are not within it either
            return f"its logits are {difference.max():.1e} from ONNX Runtime's, whose largest is {scale:.1f}"
        for name, wanted in expected_rows.items():
            if not (np.abs(rows[name] - wanted) <= _ROWS_LIMIT * np.abs(wanted).max()).all():
                return f"its rows of {name} are not ONNX Runtime's"
        with suppress(OSError):
            write_private(kept, b"")
        return None

    def has_equal_bits(self, runner: RowsRunner, other: RowsRunner, width: int) -> bool:
        """Whether a tree has the same bits in passes of two runners."""
        tree = self.tree(width)
        (found, rows), (expected, expected_rows) = self._results(runner, tree), self._results(other, tree)
        return np.array_equal(found, expected) and all(np.array_equal(rows[name], expected_rows[name]) for name in rows)

    def logits(self, runner: RowsRunner, tree: DraftTree) -> Float32Array:
        """Of all nodes of a tree behind the text, float32 (N, V)."""
        return self._results(runner, tree)[0]

    def _results(self, runner: RowsRunner, tree: DraftTree) -> tuple[Float32Array, dict[str, Float32Array]]:
        """Logits, and by name the rows that the cache has of the nodes, float32 (H, N, D)."""
        target = RowsTarget(runner)
        cache = target.new_cache(1, self._prefix.length + len(tree))
        cache.write_slot(0, self._prefix)
        wanted = Pass(0, [tree], [list(range(len(tree)))], wants_logits=True)
        logits: Float32Array = target.forward(cache, wanted).wanted_logits[0]
        written = slice(self._prefix.length, self._prefix.length + len(tree))
        return logits, {name: np.array(rows[0, :, written], np.float32) for name, rows in cache.tensors(0, 1).items()}

    def tree(self, width: int) -> DraftTree:
        """Random nodes behind random parents."""
        width = min(width, self._package.manifest.max_context - self._prefix.length)
        parents = np.random.Generator(np.random.Philox(width))
        root, *others = self._token_ids(width)
        tree = DraftTree.root(root)
        for number, token_id in enumerate(others, 1):
            tree.add(token_id, int(parents.integers(number)), "")
        return tree

    @cached_property
    def _reference(self) -> HostRowsRunner:
        return HostRowsRunner(self._package, threads=1)

    @cached_property
    def _prefix(self) -> SlotContents:
        """A text's rows as ONNX Runtime computes them, so that all differences come of one pass."""
        target = RowsTarget(self._reference)
        cache = target.new_cache(1, self._prefix_len)
        max_context = self._package.manifest.max_context
        least = max(1, min(_PREFIX_LEN, max_context // 2))
        token_ids = self._token_ids(max(least, min(self._prefix_len, max_context - _CHUNK)))
        for start in range(0, len(token_ids), _CHUNK):
            part = token_ids[start : start + _CHUNK]
            target.forward(cache, Pass(0, [DraftTree.chain(part)], [[0]]))
            cache.commit(0, list(range(len(part))))
        return cache.read_slot(0, len(token_ids))

    def _token_ids(self, number: int) -> list[int]:
        drawn = np.random.Generator(np.random.Philox(_SEED))
        return [int(each) for each in drawn.integers(self._package.manifest.vocab_size, size=number)]

    def _verdict_path(self, module: Path, runner: RowsRunner) -> Path:
        weights = sorted(entry.sha256 for entry in self._package.manifest.model_files.values())
        facts = [
            hashlib.sha256(module.read_bytes()).hexdigest(),
            processor_name(),
            *runner.pass_facts,
            runner.provider,
            weights,
        ]
        return cache_folder() / "iree" / f"{hashlib.sha256(repr(facts).encode()).hexdigest()[:24]}.good"
