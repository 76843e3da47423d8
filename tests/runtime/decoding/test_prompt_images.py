"""Prompts with images: drafting changes no token, no text takes another image's rows, and drafters see none of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reader_edge_runtime.config import DraftConfig, GenerationConfig, SamplingConfig
from reader_edge_runtime.decoding.prefix_cache import CHUNK, PrefixCache
from reader_edge_runtime.decoding.prefix_files import PrefixFiles
from reader_edge_runtime.decoding.prompt_images import PromptImages, image_token, image_token_id
from reader_edge_runtime.decoding.request import Request
from reader_edge_runtime.decoding.session import load_session, save_session
from reader_edge_runtime.drafting.draft_hints import DraftHints
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import PromptError, SessionError
from tests.fake_images import (
    IMAGE,
    VOCAB_SIZE,
    EncodedImage,
    Prompt,
    decode,
    image,
    images_part,
    prompt,
    reference,
    seeing_decoder,
    seeing_manifest,
    submit,
)
from tests.random_drafter import RandomDrafter, make_decoder

GREEDY = GenerationConfig(max_tokens=24)
CAT, DOG, TREE = image(1, 2, 4), image(2, 2, 4), image(3, 3, 2)
PROMPTS = [
    prompt([1, 2, 3], CAT, [0, 1], TREE, [4, 4, 2, 1]),
    prompt([3, 1, 2]),
    prompt(DOG, [2]),
    prompt([1] * 9, TREE, TREE, [0]),
    prompt([1, 2, 3], DOG, [0, 1], TREE, [4, 4, 2, 1]),
]


def configs_of(temperature: float, penalty: float = 1.0) -> list[GenerationConfig]:
    sampling = SamplingConfig(temperature=temperature, seed=3, repetition_penalty=penalty)
    return [GenerationConfig(max_tokens=16 + 4 * i, sampling=sampling) for i in range(len(PROMPTS))]


def test_text_goes_on_behind_an_image_where_its_longer_side_ends() -> None:
    (given, images), about = PROMPTS[0], images_part()
    seen = PromptImages(given, images, about)
    time, row, column = seen.rows(0, len(given) + 2).positions.tolist()
    assert time == [0, 1, 2, *[3] * 8, 7, 8, *[9] * 6, 12, 13, 14, 15, 16, 17]
    assert row == [0, 1, 2, *[3] * 4, *[4] * 4, 7, 8, 9, 9, 10, 10, 11, 11, 12, 13, 14, 15, 16, 17]
    assert column == [0, 1, 2, *[3, 4, 5, 6] * 2, 7, 8, *[9, 10] * 3, 12, 13, 14, 15, 16, 17]
    assert seen.shift == -7
    assert PromptImages(given, images, images_part(axes=1)).shift == 0


def test_a_pass_gets_the_features_that_its_own_tokens_have() -> None:
    given, images = PROMPTS[0]
    seen = PromptImages(given, images, images_part())
    rows = seen.rows(5, 15)
    assert rows.indices.tolist() == [0, 1, 2, 3, 4, 5, -1, -1, 6, 7]
    np.testing.assert_array_equal(rows.features, np.concatenate([CAT.features[2:], TREE.features[:2]]))
    assert seen.rows(0, 3).indices.tolist() == [-1] * 3
    assert len(seen.rows(0, 3).features) == 1


def test_the_id_of_an_images_token_tells_image_and_number() -> None:
    token_id = image_token_id(CAT.digest, 7)
    assert image_token(token_id) == (CAT.digest, 7)
    assert image_token_id(DOG.digest, 7) != token_id


@pytest.mark.parametrize(("axes", "seen_whole"), [(1, "none"), (3, "none"), (1, "all")])
@pytest.mark.parametrize("chunk", [3, 7, 64])
@pytest.mark.parametrize(("temperature", "penalty"), [(0.0, 1.0), (0.9, 1.3)])
def test_random_trees_change_no_token_beside_images_and_without(
    axes: int, seen_whole: str, chunk: int, temperature: float, penalty: float
) -> None:
    configs = configs_of(temperature, penalty)
    expected = [reference(*each, axes, seen_whole) for each in zip(PROMPTS, configs, strict=True)]
    decoder = seeing_decoder(RandomDrafter(VOCAB_SIZE, 12, 5), chunk=chunk, axes=axes, seen_whole=seen_whole)
    requests = [submit(decoder, *each) for each in zip(PROMPTS, configs, strict=True)]
    decoder.finish(*requests)
    assert [request.output_token_ids for request in requests] == expected
    assert sum(request.stats.num_accepted_tokens for request in requests) > 0
    again = decode(decoder, PROMPTS[::-1], configs[::-1])
    assert [tokens for tokens, _ in again] == expected[::-1]
    assert any(num_reused > len(PROMPTS[0][0]) - 2 for _, num_reused in again)


def test_another_image_under_the_same_text_takes_nothing_of_the_first() -> None:
    decoder = seeing_decoder(RandomDrafter(VOCAB_SIZE, 8, 1), max_batch=1)
    for place in (0, 4, 4, 0):
        ((tokens, num_reused),) = decode(decoder, [PROMPTS[place]], [GREEDY])
        assert tokens == reference(PROMPTS[place], GREEDY)
        assert num_reused in (0, 3, len(PROMPTS[place][0]) - 1)


def test_an_image_that_is_seen_whole_is_never_cut(tmp_path: Path) -> None:
    start = [2, 3] * (CHUNK // 2 - 2)
    for number, text in enumerate(([4, 1, 2] * 30, [1], [4, 1, 0])):
        decoder = seeing_decoder(RandomDrafter(VOCAB_SIZE, 8, number), chunk=3, axes=1, seen_whole="all")
        decoder.slots.prefixes = PrefixCache(PrefixFiles(tmp_path, 1 << 24), bytes(32), decoder.cache)
        given = prompt(start, CAT, text)  # the files' first chunk ends within the image
        ((tokens, num_reused),) = decode(decoder, [given], [GREEDY])
        decoder.flush_prefixes()
        assert tokens == reference(given, GREEDY, 1, "all")
        assert num_reused == (0, len(start), len(start))[number]


def test_what_retrieval_drafts_behind_images_changes_no_token_and_names_no_image() -> None:
    drafter = RetrievalDrafter(DraftConfig()).wait()
    decoder, configs = seeing_decoder(drafter), configs_of(0.0)
    for _ in range(3):
        requests = [submit(decoder, *each) for each in zip(PROMPTS, configs, strict=True)]
        decoder.finish(*requests)
        for request, given, config in zip(requests, PROMPTS, configs, strict=True):
            assert request.output_token_ids == reference(given, config)
    assert sum(request.stats.num_accepted_tokens for request in requests) > 0
    assert max(decoder.drafter.state()["history"]) < VOCAB_SIZE


def test_a_prefix_cache_on_disk_tells_images_apart(tmp_path: Path) -> None:
    texts, start = [4, 1, 2] * 30, [2, 3] * (CHUNK // 2)
    for number, shown in enumerate((CAT, DOG, CAT)):
        decoder = seeing_decoder(RandomDrafter(VOCAB_SIZE, 8, number))
        decoder.slots.prefixes = PrefixCache(PrefixFiles(tmp_path, 1 << 24), bytes(32), decoder.cache)
        given = prompt(start, shown, texts)
        ((tokens, num_reused),) = decode(decoder, [given], [GREEDY])
        decoder.flush_prefixes()
        assert tokens == reference(given, GREEDY)
        assert num_reused == (0, CHUNK, 2 * CHUNK)[number]


def test_a_session_keeps_which_images_it_has_seen(tmp_path: Path) -> None:
    first = seeing_decoder(RandomDrafter(VOCAB_SIZE, 8, 1))
    decode(first, PROMPTS[:3], [GREEDY] * 3)
    save_session(first, tmp_path / "kept", bytes(32), [])
    later = seeing_decoder(RandomDrafter(VOCAB_SIZE, 8, 2))
    load_session(later, tmp_path / "kept", bytes(32))
    assert later.scheduler.texts()[:3] == first.scheduler.texts()[:3]
    for place, least in ((0, len(PROMPTS[0][0]) - 1), (4, 3)):  # the same images, then another
        ((tokens, num_reused),) = decode(later, [PROMPTS[place]], [GREEDY])
        assert tokens == reference(PROMPTS[place], GREEDY)
        assert num_reused == least


def test_a_session_with_images_is_none_of_a_model_without(tmp_path: Path) -> None:
    first = seeing_decoder(RandomDrafter(VOCAB_SIZE, 8, 1))
    decode(first, PROMPTS[:1], [GREEDY])
    save_session(first, tmp_path / "kept", bytes(32), [])
    blind = make_decoder(replace(seeing_manifest(), images=None), first.drafter)
    with pytest.raises(SessionError, match="its images are none"):
        load_session(blind, tmp_path / "kept", bytes(32))


def test_log_probabilities_of_a_prompt_are_those_of_its_text() -> None:
    config = GenerationConfig(max_tokens=2, wants_prompt_logprobs=True, wants_logprobs=True)
    decoder = seeing_decoder(RandomDrafter(VOCAB_SIZE, 8, 1))
    request = submit(decoder, PROMPTS[0], config)
    decoder.finish(request)
    is_text = [token_id != IMAGE for token_id in PROMPTS[0][0]]
    assert [logprob is not None for logprob in request.prompt_logprobs] == [False, *is_text[1:]]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (([1, *[IMAGE] * 9, 2], [CAT]), "9 tokens of images, but its images have 8"),
        (([1, *[IMAGE] * 8, 2, IMAGE], [CAT]), "9 tokens of images"),
        (([1, *[IMAGE] * 8], [CAT]), "ends with an image"),
    ],
)
def test_images_that_do_not_fit_the_prompt_are_refused(given: Prompt, fault: str) -> None:
    with pytest.raises(PromptError, match=fault):
        Request(given[0], GREEDY, seeing_manifest(), images=given[1])


def test_features_are_held_no_longer_than_their_prompt_is_read() -> None:
    dropped = list[int]()

    class Counted(EncodedImage):
        def drop(self) -> None:
            dropped.append(len(request.output_token_ids))

    cat = Counted(CAT.digest, CAT.rows, CAT.columns, CAT.features)
    decoder = seeing_decoder(RandomDrafter(VOCAB_SIZE, 4, 1))
    request = submit(decoder, prompt([1] * 9, cat, [2, 3]), GenerationConfig(max_tokens=5))
    decoder.finish(request)
    assert dropped == [0]


def test_an_answer_that_lost_its_slot_goes_on_behind_its_images() -> None:
    """As that of a device whose connection was lost."""
    decoder, config = seeing_decoder(RandomDrafter(VOCAB_SIZE, 4, 1), max_batch=1), GenerationConfig(max_tokens=12)
    (given, images), hints = PROMPTS[0], DraftHints(remote=RemoteDrafts())
    request = Request(given, config, decoder.target.manifest, hints=hints, images=images)
    decoder.enqueue(request)
    while request.num_output_tokens < 4:
        decoder.step()
    assert hints.remote is not None
    hints.remote.hold()
    decoder.finish(submit(decoder, PROMPTS[1], config))
    hints.remote.go_on()
    decoder.finish(request)
    assert request.output_token_ids == reference(PROMPTS[0], config)


def test_drafters_get_the_text_alone() -> None:
    request = Request(PROMPTS[0][0], GREEDY, seeing_manifest(), images=PROMPTS[0][1])
    request.emit(3)
    assert request.drafted_ids == [1, 2, 3, 0, 1, 4, 4, 2, 1, 3]
    assert request.prompt_token_ids == PROMPTS[0][0]
    assert request.output_token_ids == [3]
    assert request.stats.num_prompt_tokens == len(PROMPTS[0][0])
    assert request.token_ids[3] == image_token_id(CAT.digest, 0)
