"""Compares an exported package with the source module: logits under tree masks, and greedy choices.

Every check returns figures for the manifest and raises ParityError where the package is not the model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from reader_edge_export.package.pass_chain import PassChain
from reader_edge_export.sources.layered_model import LayeredModel
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.errors import ParityError
from reader_edge_runtime.forward_result import ForwardResult
from reader_edge_runtime.package.manifest import HALF_PRECISIONS, Manifest
from reader_edge_runtime.target import Pass

# fp32 noise stays near 1e-6 of the logits' scale on small models and grows with depth; a wrong mask gives 0.1 and more.
MAX_RELATIVE_ERROR = 1e-4
MAX_RELATIVE_ERROR_HALF_CACHE = 0.01  # keys and values alone in fp16
MAX_RELATIVE_ERROR_HALF = 0.06  # fp16 and bf16: rounding of weights and between operators
MAX_QUANTIZED_DIFFERENCE = 0.1
NEAR_TIE = 1e-4
NUM_GREEDY_TOKENS = 64

_PARENTS = [-1, 0, 0, 1, 1, 2, 4]
_PATHS = [[0, 1, 3], [0, 2, 5], [0, 1, 4, 6]]  # from the root to each leaf
_LONGEST_WINDOW_TESTED = 1024

Figures = dict[str, float]
Results = Iterator[ForwardResult]


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

    def chain(self, has_garbage: bool = True) -> PassChain:
        """The prompts one by one, then all nodes of both trees in one pass, for their logits (B, N, V)."""
        rows = [range(len(_PARENTS))] * len(self.trees)
        return PassChain(self.prompts, [Pass(0, self.trees, rows, wants_logits=True)], has_garbage=has_garbage)

    def branches(self) -> Iterator[tuple[int, list[int], list[int], list[int]]]:
        """(b, prompt, path, token_ids) of every path from a root to a leaf."""
        for b, (prompt, tree) in enumerate(zip(self.prompts, self.trees, strict=True)):
            for path in _PATHS:
                yield b, prompt, path, [tree.token_ids[node] for node in path]


@dataclass(frozen=True, slots=True)
class TreeAgainstSource:
    """Logits of the trees' nodes against the source's logits of each path as a plain text."""

    manifest: Manifest
    model: LayeredModel
    case: TreeCase

    @property
    def chains(self) -> Sequence[PassChain]:
        return [self.case.chain()]

    def figures(self, results: Results) -> Figures:
        logits = next(results).wanted_logits
        expected = np.zeros_like(logits)
        branches = list(self.case.branches())
        chains = self.model.logits([prompt + token_ids for _, prompt, _, token_ids in branches])
        for (b, prompt, path, _), chain in zip(branches, chains, strict=True):
            expected[b, path] = chain[len(prompt) :].numpy()
        error = float(np.abs(logits - expected).max())
        scale = float(np.abs(expected).max())
        if not error <= _max_relative_error(self.manifest) * max(1.0, scale):
            raise ParityError(
                f"Tree logits differ by {error:.2g} from the source's (scale {scale:.2g}): please report it."
            )
        return {"tree_logit_error": error, "logit_scale": scale}


@dataclass(frozen=True, slots=True)
class TreeAgainstDecoding:
    """The trees' nodes against the same package decoding each path token by token."""

    case: TreeCase

    @property
    def chains(self) -> Sequence[PassChain]:
        paths = [PassChain.of_text(prompt, token_ids, 1) for _, prompt, _, token_ids in self.case.branches()]
        return [self.case.chain(), *paths]

    def figures(self, results: Results) -> Figures:
        logits = next(results).wanted_logits.copy()
        num_equal = num_rows = 0
        largest = 0.0
        for b, _, path, _ in self.case.branches():
            for node in path:
                decoded = next(results).wanted_logits[0, 0]
                num_equal += bool((decoded == logits[b, node]).all())
                num_rows += 1
                largest = max(largest, float(np.abs(decoded - logits[b, node]).max()))
        scale = float(np.abs(logits).max())
        if not largest <= MAX_QUANTIZED_DIFFERENCE * max(1.0, scale):
            raise ParityError(
                f"Tree nodes differ by {largest:.2g} from plain decoding (scale {scale:.2g}): please report it."
            )
        return {"tree_rows_equal": num_equal / num_rows, "tree_decoding_spread": largest}


@dataclass(frozen=True, slots=True)
class GreedyAgainstSource:
    """The package's greedy choice after each token of a text, decoded one by one, against the source's.

    Near ties are counted, not refused.
    """

    model: LayeredModel
    prompt: list[int]
    token_ids: list[int]

    @classmethod
    def draw(cls, manifest: Manifest, model: LayeredModel, text_ids: list[int]) -> "GreedyAgainstSource":
        """Of the first tokens of a text, which comes again and again where it is short."""
        num_prompt = min(20, manifest.max_context - 1)
        num_tokens = min(NUM_GREEDY_TOKENS, manifest.max_context - num_prompt)
        ids = np.resize(np.array(text_ids), num_prompt + num_tokens).tolist()
        return cls(model, ids[:num_prompt], ids[num_prompt:])

    @property
    def chains(self) -> Sequence[PassChain]:
        return [PassChain.of_text(self.prompt, self.token_ids, 1)]

    def figures(self, results: Results) -> Figures:
        (logits,) = self.model.logits([[*self.prompt, *self.token_ids]])
        near_ties = 0
        for position, row in enumerate(logits[len(self.prompt) :], start=1):
            token, best = int(next(results).wanted_logits[0, 0].argmax()), int(row.argmax())
            margin = float(row[best] - row[token])
            if best != token and margin >= NEAR_TIE:
                raise ParityError(
                    f"Greedy token {position} is {token} instead of the source's {best} (margin {margin:.2g}): "
                    "please report it."
                )
            near_ties += best != token
        return {"greedy_tokens": float(len(self.token_ids)), "greedy_near_ties": float(near_ties)}


def _max_relative_error(manifest: Manifest) -> float:
    if manifest.precision in HALF_PRECISIONS:
        return MAX_RELATIVE_ERROR_HALF
    return MAX_RELATIVE_ERROR if manifest.kv_dtype == "float32" else MAX_RELATIVE_ERROR_HALF_CACHE
