"""The written graph of a speculator against its module, over a text and a small tree behind it, and its target."""

from pathlib import Path

import numpy as np

from reader_edge_export.sources.source_model import SourceModel
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.speculator_runners import (
    GraphRunner,
    Guesses,
    ModuleRunner,
    Nodes,
    SpeculatorRunner,
)
from reader_edge_export.speculators.target_states import TextStates
from reader_edge_runtime.arrays import Float32Array
from reader_edge_runtime.errors import ExportError, ParityError
from reader_edge_runtime.package.speculator_part import SPECULATOR_AGREEMENT, SpeculatorPart

NUM_TOKENS = 128  # of a held-out text
MAX_RELATIVE_ERROR = 1e-4  # of fp32: see `checks.parity`
_PARENTS = (-1, -1, 0, 0, 1, 2)  # of a tree behind the text's last node, which is -1
_DEPTHS = ((0, 2), (2, 5), (5, 6))  # its nodes from and to, each depth in a pass of its own


def check_speculator(
    folder: Path, part: SpeculatorPart, source: SourceModel, text: TextStates, is_exact: bool
) -> dict[str, float]:
    """Figures for the manifest: how far states and logits of the graph stray from those of the module, over the largest
    of them; the share of nodes with the same best token; how often the best token is the target's own choice.

    text: held out, of at least two tokens. Raises ParityError where `is_exact` and the graph is not the module, or it
    says what is no number; ExportError where the module does.
    """
    module = source.skeleton
    assert isinstance(module, SpeculatorModule)
    with source.filled([module]):
        expected = _run(ModuleRunner(module, part.top_k), text, part.hidden_size)
    if not all(np.isfinite(each).all() for guesses in expected for each in guesses):
        raise ExportError(
            "What the speculator computes is too large for 32-bit numbers: its weights are damaged; fetch it again."
        )
    num_rows = len(text.token_ids) + len(_PARENTS)
    found = _run(GraphRunner(folder, part, num_rows), text, part.hidden_size)
    error = float(np.max([_error(one, other) for one, other in zip(found, expected, strict=True)]))
    if not error <= (MAX_RELATIVE_ERROR if is_exact else np.finfo(np.float32).max):
        raise ParityError(f"The speculator's graph strays by {error:.2g} from its module: please report it.")
    best, wanted = (np.concatenate([each.top_ids[:, 0] for each in guesses]) for guesses in (found, expected))
    chosen = text.best[1:].numpy()
    return {
        "speculator_error": error,
        "speculator_agreement": float((best == wanted).mean()),
        SPECULATOR_AGREEMENT: float((best[: len(chosen)] == chosen).mean()),
    }


def _run(runner: SpeculatorRunner, text: TextStates, hidden_size: int) -> list[Guesses]:
    """The text in one pass, then a tree of its first tokens, a depth a pass."""
    ids, states = np.array(text.token_ids), text.states[0].numpy()
    num_heard = len(ids) - 1
    none = np.zeros((0, hidden_size), np.float32)
    heard = Nodes(ids[1:], np.arange(1, len(ids)), np.tri(num_heard, dtype=bool), states[:-1], none)
    guesses = [runner.run(heard)]
    own: list[Float32Array] = []  # next states of the tree's nodes
    seen = np.zeros((len(_PARENTS), num_heard + len(_PARENTS)), bool)
    seen[:, :num_heard] = True
    for depth, (start, stop) in enumerate(_DEPTHS):
        for node in range(start, stop):
            if _PARENTS[node] >= 0:
                seen[node] |= seen[_PARENTS[node]]
            seen[node, num_heard + node] = True
        parents = [
            guesses[0].next_states[-1] if _PARENTS[node] < 0 else own[_PARENTS[node]] for node in range(start, stop)
        ]
        positions = np.full(stop - start, len(ids) + depth)
        shown = seen[start:stop, : num_heard + stop]
        nodes = Nodes(np.resize(ids, stop)[start:], positions, shown, states[:0], np.stack(parents))
        guesses.append(runner.run(nodes))
        own.extend(guesses[-1].next_states)
    return guesses


def _error(found: Guesses, expected: Guesses) -> float:
    """The largest difference of what a pass says, over the largest number of its kind; equal logits may come in another
    order.
    """
    pairs = [(getattr(found, name), getattr(expected, name)) for name in ("next_states", "top_logits", "log_sum_exp")]
    return float(np.max([np.abs(one - other).max() / max(1.0, np.abs(other).max()) for one, other in pairs]))
