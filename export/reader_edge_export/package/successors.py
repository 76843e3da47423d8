"""A package's successor table: the likeliest tokens after each token of the vocabulary, computed in wide passes."""

from collections.abc import Iterable

import numpy as np

from reader_edge_export.package.pass_chain import PackageRunner, PassChain
from reader_edge_export.progress import Progress
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.sources.successor_store import SuccessorTable
from reader_edge_runtime.errors import PromptError
from reader_edge_runtime.package.manifest import GRAPH_NAME, PRECISIONS, WEIGHTS_NAME, Manifest
from reader_edge_runtime.target import Pass
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.tokenizer import Tokenizer

_QUESTION = "Tell me something."  # any token may begin an answer to it
_TOKENS_A_PASS = 128

# 20 to 60 s on two cores. Token ids are in order of frequency where merges made the vocabulary, as nearly everywhere
# today, so rare tokens are left out: a third of SmolLM2's vocabulary brings nine tenths of what all of it does.
_MAX_TOKEN_PARAMETERS = 2_200_000_000_000
_ENOUGH = 16_384


def num_table_tokens(vocab_size: int, num_parameters: int, slowdown: int = 1) -> int:
    """How many tokens a model of this size gets successors for.

    slowdown: how many times as long as in an export this may take, where the tokens are fewer than enough.
    """
    num_quick = _MAX_TOKEN_PARAMETERS // num_parameters
    return min(vocab_size, max(num_quick, min(slowdown * num_quick, _ENOUGH)))


def about_num_parameters(manifest: Manifest) -> int:
    """About the number of parameters, from the size of a package's weights alone."""
    num_bytes = sum(manifest.files[name].num_bytes for name in (GRAPH_NAME, WEIGHTS_NAME) if name in manifest.files)
    return round(num_bytes / PRECISIONS[manifest.precision].weight_bytes)


def measure_successors(
    package: PackageRunner, tokenizer: Tokenizer, num_tokens: int, progress: Progress | None = None
) -> SuccessorTable:
    """The package's best successors of tokens 0..num_tokens - 1, each as the first token of an answer.

    progress: gets the tokens.
    """
    room = package.manifest.max_context
    *beginning, last = _beginning(tokenizer)[-room // 2 :]
    num_a_pass = min(_TOKENS_A_PASS, room - len(beginning) - 1)
    starts = range(0, num_tokens, num_a_pass)
    passes = [_questions(last, range(start, min(start + num_a_pass, num_tokens))) for start in starts]
    chain = PassChain([beginning], passes)
    results = package.results([chain], (progress or Progress()).share(chain.num_tokens))
    best = [(result.top_ids[0].astype(np.int32), result.top_logits[0]) for result in results]
    token_ids, logits = (np.concatenate(arrays) for arrays in zip(*best, strict=True))
    return SuccessorTable(token_ids, logits)


def _questions(last: int, token_ids: Iterable[int]) -> Pass:
    """What comes after each of these tokens, behind the last one of a beginning."""
    tree = DraftTree.root(last)
    for token_id in token_ids:
        tree.add(token_id, 0, "")
    return Pass(0, [tree], [range(1, len(tree))])


def _beginning(tokenizer: Tokenizer) -> list[int]:
    """Token ids of a question, as the model meets it."""
    try:
        token_ids = tokenizer.encode_chat(Conversation([{"role": "user", "content": _QUESTION}]))
    except PromptError:  # no template, or one that takes no such message
        token_ids = []
    return token_ids or tokenizer.encode(_QUESTION) or [0]  # a vocabulary may lack all of its letters
