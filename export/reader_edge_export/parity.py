"""An exported package against the source module: logits under tree masks, and greedy tokens.

Every check returns figures for the manifest and raises ParityError where the package is not the model.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reader_edge_export.layered_model import LayeredModel
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ParityError
from reader_edge_runtime.execution.onnxruntime.host.host_cache import HostCache
from reader_edge_runtime.package.manifest import HALF_PRECISIONS, Manifest
from reader_edge_runtime.target import Cache, ForwardResult, Pass, Target

# fp32 noise stays near 1e-6 of the logits' scale on small models and grows with depth; a wrong mask gives 0.1 and more.
MAX_RELATIVE_ERROR = 1e-4
MAX_RELATIVE_ERROR_HALF_CACHE = 0.01  # keys and values alone in fp16
MAX_RELATIVE_ERROR_HALF = 0.06  # fp16 and bf16: rounding of weights and between operators
MAX_QUANTIZED_SPREAD = 0.1
NEAR_TIE = 1e-4
NUM_GREEDY_TOKENS = 64

_PARENTS = [-1, 0, 0, 1, 1, 2, 4]
_PATHS = [[0, 1, 3], [0, 2, 5], [0, 1, 4, 6]]  # from the root to each leaf
_GARBAGE = 3.3
_LONGEST_WINDOW_TESTED = 1024

Float32Array = npt.NDArray[np.float32]
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class TreeCase:
    """A ragged batch of two prompts, each followed by a tree of the same shape over other tokens."""

    prompts: list[list[int]]
    trees: list[DraftTree]

    @classmethod
    def draw(cls, manifest: Manifest, text_ids: list[int]) -> "TreeCase":
        """Prompts from a text; where windows are short, the first prompt is longer than one."""
        window = manifest.sliding_window or 0
        longest = manifest.max_context - len(_PARENTS)
        lengths = [20 if window > _LONGEST_WINDOW_TESTED else max(20, window + 8), 9]
        ids = np.resize(np.array(text_ids), sum(lengths) + 2)
        prompts = [ids[: lengths[0]].tolist()[:longest], ids[lengths[0] : -2].tolist()[:longest]]
        rng = np.random.default_rng(0)
        drawn = [rng.choice(manifest.vocab_size, len(_PARENTS), replace=False).tolist() for _ in prompts]
        return cls(prompts, [DraftTree(token_ids, _PARENTS, [""] * len(_PARENTS)) for token_ids in drawn])

    @property
    def num_rows(self) -> int:
        """KV rows that a slot needs."""
        return max(map(len, self.prompts)) + len(_PARENTS)

    def branches(self) -> Iterator[tuple[int, list[int], list[int], list[int]]]:
        """(b, prompt, path, token_ids) of every path from a root to a leaf."""
        for b, (prompt, tree) in enumerate(zip(self.prompts, self.trees, strict=True)):
            for path in _PATHS:
                yield b, prompt, path, [tree.token_ids[node] for node in path]


def check_tree_logits(target: Target, model: LayeredModel, case: TreeCase) -> Figures:
    """Logits of the trees' nodes against the source's logits of each path as a plain text."""
    logits = tree_logits(target, case)
    expected = np.zeros_like(logits)
    branches = list(case.branches())
    chains = model.logits([prompt + token_ids for _, prompt, _, token_ids in branches])
    for (b, prompt, path, _), chain in zip(branches, chains, strict=True):
        expected[b, path] = chain[len(prompt) :].numpy()
    error = float(np.abs(logits - expected).max())
    scale = float(np.abs(expected).max())
    if not error <= _max_relative_error(target.manifest) * max(1.0, scale):
        raise ParityError(f"Tree logits differ by {error:.2g} from the source's (scale {scale:.2g}): please report it.")
    return {"tree_logit_error": error, "logit_scale": scale}


def _max_relative_error(manifest: Manifest) -> float:
    if manifest.precision in HALF_PRECISIONS:
        return MAX_RELATIVE_ERROR_HALF
    return MAX_RELATIVE_ERROR if manifest.kv_dtype == "float32" else MAX_RELATIVE_ERROR_HALF_CACHE


def check_tree_against_decoding(target: Target, case: TreeCase) -> Figures:
    """The trees' nodes against the same package decoding each path token by token."""
    logits = tree_logits(target, case)
    num_equal = num_rows = 0
    spread = 0.0
    for b, prompt, path, token_ids in case.branches():
        decoded = logits_after(target, prompt, token_ids, 1)
        num_equal += int((decoded == logits[b, path]).all(axis=1).sum())
        num_rows += len(path)
        spread = max(spread, float(np.abs(decoded - logits[b, path]).max()))
    scale = float(np.abs(logits).max())
    if not spread <= MAX_QUANTIZED_SPREAD * max(1.0, scale):
        raise ParityError(
            f"Tree nodes differ by {spread:.2g} from plain decoding (scale {scale:.2g}): please report it."
        )
    return {"tree_rows_equal": num_equal / num_rows, "tree_decoding_spread": spread}


def check_greedy(target: Target, model: LayeredModel, prompt: list[int]) -> Figures:
    """The package's greedy tokens against the source's choices in front of them, all in one pass of the source.

    Near ties are counted, not refused.
    """
    num_tokens = min(NUM_GREEDY_TOKENS, target.manifest.max_context - len(prompt))
    tokens = _greedy(target, prompt, num_tokens)
    (logits,) = model.logits([[*prompt, *tokens[:-1]]])
    near_ties = 0
    for position, (token, row) in enumerate(zip(tokens, logits[len(prompt) - 1 :], strict=True)):
        best = int(row.argmax())
        margin = float(row[best] - row[token])
        if best != token and margin >= NEAR_TIE:
            raise ParityError(
                f"Greedy token {position + 1} is {token} instead of the source's {best} (margin {margin:.2g}): "
                "please report it."
            )
        near_ties += best != token
    return {"greedy_tokens": float(num_tokens), "greedy_near_ties": float(near_ties)}


def tree_logits(target: Target, case: TreeCase) -> Float32Array:
    """Logits (B, N, V) of all nodes, from a cache whose unused rows hold garbage."""
    cache = HostCache(target.manifest, len(case.prompts), case.num_rows)
    cache.slab[...] = _GARBAGE
    return tree_pass(target, case, cache).wanted_logits.copy()


def tree_pass(target: Target, case: TreeCase, cache: Cache) -> ForwardResult:
    """The prompts one by one, then all nodes of both trees in one pass."""
    for slot, prompt in enumerate(case.prompts):
        _prefill(target, cache, slot, prompt)
    rows = list(range(len(_PARENTS)))
    return target.forward(cache, Pass(0, case.trees, [rows] * len(case.trees), wants_logits=True))


def logits_after(target: Target, prompt: list[int], token_ids: list[int], num_a_pass: int) -> Float32Array:
    """Logits (N, V) after each of N tokens that follow a prompt, so many tokens a pass."""
    return np.concatenate([logits.copy() for _, logits in passes_after(target, prompt, token_ids, num_a_pass)])


def passes_after(
    target: Target, prompt: list[int], token_ids: list[int], num_a_pass: int
) -> Iterator[tuple[int, Float32Array]]:
    """(first token's index, logits (n, V) after each of n tokens) of each pass; the logits are valid until the next."""
    cache = target.new_cache(1, len(prompt) + len(token_ids))
    if prompt:
        _prefill(target, cache, 0, prompt)
    for start in range(0, len(token_ids), num_a_pass):
        chunk = token_ids[start : start + num_a_pass]
        rows = list(range(len(chunk)))
        wanted = Pass(0, [DraftTree.chain(chunk)], [rows], wants_logits=True)
        yield start, target.forward(cache, wanted).wanted_logits[0]
        cache.commit(0, rows)


def _prefill(target: Target, cache: Cache, slot: int, prompt: list[int]) -> None:
    target.forward(cache, Pass(slot, [DraftTree.chain(prompt)], [[len(prompt) - 1]]))
    cache.commit(slot, list(range(len(prompt))))


def _greedy(target: Target, prompt: list[int], num_tokens: int) -> list[int]:
    """The package's own greedy tokens."""
    cache = target.new_cache(1, len(prompt) + num_tokens)
    if prompt[:-1]:
        _prefill(target, cache, 0, prompt[:-1])
    tokens = [prompt[-1]]
    for _ in range(num_tokens):
        wanted = Pass(0, [DraftTree.root(tokens[-1])], [[0]], wants_logits=True)
        tokens.append(int(target.forward(cache, wanted).wanted_logits[0, 0].argmax()))
        cache.commit(0, [0])
    return tokens[1:]
