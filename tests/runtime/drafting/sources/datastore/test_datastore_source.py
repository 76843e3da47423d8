"""Drafts from datastores: matches move along, answers stay the target's own."""

from pathlib import Path

import numpy as np

from reader_edge_runtime.config import DraftConfig, GenerationConfig
from reader_edge_runtime.drafting.core import DraftingCore
from reader_edge_runtime.drafting.kernels import datastore as kernels
from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.kernels.layout import DATASTORE_STATE
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from tests.runtime.drafting.sources.datastore.datastore_reference import build, longest_end, occurrences
from tests.runtime.drafting.test_drafter import VOCAB_SIZE, decode, plain

QUIET = DraftConfig(max_nodes=16, is_history_used=False, is_logits_used=False)


def test_a_text_of_the_corpus_is_drafted_from_where_the_prompt_ends(tmp_path: Path) -> None:
    document = list(range(100, 120))
    core = DraftingCore(QUIET, datastores=[build(tmp_path / "a.ds", [document, [7, 8, 9]])])
    request = core.begin([1, 2, 100, 101, 102])
    tree = request.draft(40, 8)
    node, num_followed = 0, 0
    for token_id in document[3:]:
        node = tree.child(node, token_id)
        if node < 0:
            break
        assert tree.sources[node] == "datastore"
        num_followed += 1
    assert num_followed >= 1
    request.observe([103, 104, 7, 8])
    tree = request.draft(40, 3)
    assert tree.child(0, 9) > 0
    assert tree.sources[tree.child(0, 9)] == "datastore"


def test_the_match_is_the_longest_wherever_the_text_goes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    documents = [random.integers(4, size=60).tolist() for _ in range(6)]
    stores = [build(tmp_path / "a.ds", documents[:3]), build(tmp_path / "b.ds", documents[3:])]
    core = DraftingCore(QUIET, datastores=stores)
    text = random.integers(4, size=10).tolist()
    request = core.begin(text)
    for _ in range(80):
        token_ids = random.integers(4, size=int(random.integers(1, 4))).tolist()
        request.observe(token_ids)
        text += token_ids
        match = request._state[DATASTORE_STATE : DATASTORE_STATE + kernels.STATE]
        # After a mismatch a match is looked for among the last ORDER tokens; all longer ones grew from such.
        assert match[0] >= len(longest_end(documents, text, ORDER))
        assert sum(match[2::2] - match[1::2]) == occurrences(documents, text[len(text) - match[0] :])


def test_drafts_from_a_datastore_change_no_token(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    prompts = [random.integers(VOCAB_SIZE, size=n).tolist() for n in (3, 9, 20)]
    config = GenerationConfig(max_tokens=60)
    wanted = plain(prompts, config)
    documents = [prompt + answer[:40] for prompt, answer in zip(prompts, wanted, strict=True)]
    nonsense = [random.integers(VOCAB_SIZE, size=200).tolist()]
    datastores = [
        build(tmp_path / f"{number}.ds", each, VOCAB_SIZE) for number, each in enumerate((documents, nonsense))
    ]
    for max_nodes in (4, 24):
        drafter = RetrievalDrafter(DraftConfig(max_nodes=max_nodes), datastores=datastores).wait()
        assert decode(drafter, prompts, config) == wanted
