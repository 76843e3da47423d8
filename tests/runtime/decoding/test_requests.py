"""Requests to the decoder: prefixes reused, ends, cancelled and interrupted ones, what is refused."""

import pytest

from reader_edge_runtime.config import DraftConfig, GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import DraftError, PromptError
from tests.fake_target import make_manifest
from tests.random_drafter import RandomDrafter, RandomRequest, decode, make_decoder, reference


def test_shared_prefix_is_reused_and_the_answer_is_the_same() -> None:
    manifest = make_manifest(16)
    decoder = make_decoder(manifest, RetrievalDrafter(DraftConfig()).wait())
    config = GenerationConfig(max_tokens=10)
    first = list(range(16)) * 3
    decode(decoder, [first], [config])
    second = [*first[:40], 1, 1, 1]
    sequence = decoder.submit(second, config)
    while sequence.finish_reason is None:
        decoder.step()
    assert sequence.stats.num_reused_tokens == 40
    assert sequence.output_token_ids == reference(manifest, second, config)


def test_cancelled_sequence_leaves_the_others_and_its_prefix_right() -> None:
    manifest = make_manifest(6)
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    config = GenerationConfig(max_tokens=30)
    prompts = [[1, 2, 3], [4, 5], [3, 3, 3, 3]]
    sequences = [decoder.submit(prompt, config) for prompt in prompts]
    for _ in range(3):
        decoder.step()
    decoder.cancel(sequences[0])
    while any(sequence.finish_reason is None for sequence in sequences):
        decoder.step()
    assert sequences[0].finish_reason == "cancelled"
    for prompt, sequence in zip(prompts[1:], sequences[1:], strict=True):
        assert sequence.output_token_ids == reference(manifest, prompt, config)
    again = decoder.submit(sequences[0].token_ids, config)
    while again.finish_reason is None:
        decoder.step()
    assert again.stats.num_reused_tokens > 0
    assert again.output_token_ids == reference(manifest, sequences[0].token_ids, config)


def test_interrupted_step_cancels_and_later_requests_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = make_manifest(6)
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    config = GenerationConfig(max_tokens=30)
    sequence = decoder.submit([1, 2, 3], config)
    decoder.step()
    commit = decoder.cache.commit

    def interrupted(slot: int, path: list[int]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(decoder.cache, "commit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoder.step()
    monkeypatch.setattr(decoder.cache, "commit", commit)
    assert sequence.finish_reason is not None
    assert decoder.running == []
    prompt = sequence.token_ids
    assert decode(decoder, [prompt], [config]) == [reference(manifest, prompt, config)]


def test_answer_ends_at_max_tokens_stop_token_and_context() -> None:
    manifest = make_manifest(6, max_context=40)
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    answer = reference(manifest, [1, 2], GenerationConfig(max_tokens=100))
    sequence = decoder.submit([1, 2], GenerationConfig(max_tokens=100))
    while sequence.finish_reason is None:
        decoder.step()
    assert (sequence.finish_reason, len(sequence.token_ids)) == ("context", 40)
    stop = answer[5]
    sequence = decoder.submit([1, 2], GenerationConfig(max_tokens=100, stop_token_ids=(stop,)))
    while sequence.finish_reason is None:
        decoder.step()
    assert sequence.finish_reason == "stop"
    assert sequence.output_token_ids == answer[: answer.index(stop) + 1]
    assert decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=1)]) == [answer[:1]]


def test_end_token_of_the_model_ends_the_answer_unless_ignored() -> None:
    plain = make_manifest(6)
    answer = reference(plain, [1, 2], GenerationConfig(max_tokens=20))
    manifest = make_manifest(6, eos_token_ids=(answer[4],))
    decoder = make_decoder(manifest, RandomDrafter(6, 9, seed=1))
    end = answer.index(answer[4]) + 1
    assert decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=20)]) == [answer[:end]]
    assert decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=20, ignores_eos=True)]) == [answer]


def test_hostile_drafter_raises_and_later_requests_are_right() -> None:
    manifest = make_manifest(6)

    class Hostile(RandomDrafter):
        def _tree(self, request: RandomRequest, max_nodes: int, max_depth: int) -> DraftTree:
            return DraftTree([request.token_ids[-1], 6000], [-1, 0], ["", "hostile"], [1.0, 0.5])

    decoder = make_decoder(manifest, Hostile(6, 4, 0))
    with pytest.raises(DraftError, match="6000"):
        decode(decoder, [[1, 2]], [GenerationConfig(max_tokens=5)])
    config = GenerationConfig(max_tokens=5, is_drafted=False)
    assert decode(decoder, [[1, 2]], [config]) == [reference(manifest, [1, 2], config)]


@pytest.mark.parametrize("prompt", [[], [99], [-1], [2**70], [1.5], [1.0], ["1"], [None], list(range(6)) * 100])
def test_bad_prompt_is_refused_in_one_sentence(prompt: list[int]) -> None:
    decoder = make_decoder(make_manifest(6), RandomDrafter(6, 4, seed=0))
    with pytest.raises(PromptError, match=r"^[^\n]+\.$"):
        decoder.submit(prompt, GenerationConfig())
    assert not decoder.waiting


@pytest.mark.parametrize(
    "tree",
    [
        DraftTree([], [], [], []),
        DraftTree([0, 1], [-1], ["", ""], [1, 1]),
        DraftTree([0, 1], [-1, 0], ["", ""], [1]),
        DraftTree([0, 99], [-1, 0], ["", "x"], [1, 1]),
        DraftTree([0, 1], [-1, 1], ["", "x"], [1, 1]),
        DraftTree([0, 1, 1], [-1, 0, 0], ["", "x", "x"], [1, 1, 1]),
        DraftTree([0], [0], [""], [1]),
        DraftTree([3], [-1], [""], [1]),
        DraftTree.chain([0, 1, 2, 3, 4]),
    ],
)
def test_what_is_no_tree_of_known_tokens_is_refused(tree: DraftTree) -> None:
    with pytest.raises(DraftError):
        tree.check(root_token_id=0, vocab_size=6, max_nodes=4)
