"""Images reach an engine in every form that callers know, and what cannot be seen is refused before a tower runs."""

import asyncio
import base64
import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reader_edge_runtime import AsyncEngine, Conversation, Engine, EngineConfig, GenerationConfig, GenerationResult
from reader_edge_runtime.arrays import UInt8Array
from reader_edge_runtime.assembly import prompt_reader
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.drafter import DraftRequest, RequestContext, RequestDrafter
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts
from reader_edge_runtime.drafting.sources.source import DraftSource
from reader_edge_runtime.drafting.sources.source_set import SourceSet
from reader_edge_runtime.errors import ImageError, PromptError, PromptTooLongError, ProviderError
from reader_edge_runtime.images.decode import GivenImage
from reader_edge_runtime.images.image_encoder import FeatureStore, SeenImage
from reader_edge_runtime.text.conversation import Encodable
from tests.fake_images import images_part
from tests.seeing_engine import MARK, CountedTower, picture, png, seeing_engine

GREEDY = GenerationConfig(max_tokens=8)
CAT, DOG = picture(1), picture(2, 8, 16)
WORDS = {"type": "text", "text": "What is it?"}
Seeing = tuple[Engine, CountedTower]


@pytest.fixture
def seeing(tmp_path: Path) -> Seeing:
    return seeing_engine(tmp_path)


def question(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [*parts, WORDS]}]


def shown(image: object) -> dict[str, Any]:
    return {"type": "image", "image": image}


def linked(url: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": url}


def test_every_form_of_an_image_is_the_same_prompt(seeing: Seeing, tmp_path: Path) -> None:
    engine, tower = seeing
    (path := tmp_path / "cat.png").write_bytes(png(CAT))
    wanted = engine.generate("What is it?", GREEDY, images=[CAT])
    url = "data:image/png;base64," + base64.b64encode(png(CAT)).decode()
    parts = [linked({"url": url, "detail": "auto"}), linked(url), *map(shown, (CAT, path, png(CAT)))]
    prompts: list[Encodable] = [
        *(question(part) for part in parts),
        Conversation(question({"type": "image"}), images=[CAT]),
        Conversation([{"role": "user", "content": "What is it?"}], images=[path]),
    ]
    for prompt in prompts:
        assert engine.generate(prompt, GREEDY).token_ids == wanted.token_ids
    for image in (str(path), path, png(CAT)):
        assert engine.generate("What is it?", GREEDY, images=[image]).token_ids == wanted.token_ids
    assert engine.generate("What is it?", GREEDY, images=[DOG]).token_ids != wanted.token_ids
    assert tower.num_passes == 3  # a file, and pixels, once each


def test_tokens_are_counted_by_the_headers_of_images(seeing: Seeing, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded, pixels = list[str](), GivenImage.pixels

    def noted(image: GivenImage) -> UInt8Array:
        decoded.append(image.name)
        return pixels(image)

    monkeypatch.setattr(GivenImage, "pixels", noted)
    engine, _ = seeing
    assert engine.encode_prompt(question(*[shown(png(picture(n, 56, 56))) for n in range(2)]))
    with pytest.raises(PromptTooLongError, match="first 3 of 5 images have 588 tokens, but"):
        engine.generate(question(*[shown(png(picture(n, 56, 56))) for n in range(5)]), GREEDY)
    assert not decoded
    broken = png(CAT)[:90]
    with pytest.raises(ImageError, match=r"^Image 2 cannot be decoded .*: give a whole image"):
        engine.generate(question(shown(png(CAT)), shown(broken)), GREEDY)
    assert decoded == ["Image 1", "Image 2"]


def test_tokens_of_images_count_as_the_prompts(seeing: Seeing) -> None:
    engine, _ = seeing
    without = engine.generate(Conversation([{"role": "user", "content": "What is it?"}]), GREEDY).usage.prompt_tokens
    usage = engine.generate("What is it?", GREEDY, images=[CAT, DOG]).usage
    assert usage.prompt_tokens == without + 2 * 2 + 6 + 8
    assert len(engine.encode_prompt(question(shown(CAT)))) == without + 2 + 6


@pytest.mark.parametrize(
    ("messages", "images"),
    [(None, []), (5, [CAT]), ([None], [CAT]), ([{"role": "user", "content": 5}], [CAT]), (question(), 5)],
)
def test_what_is_no_conversation_is_refused(seeing: Seeing, messages: Any, images: Any) -> None:
    with pytest.raises(PromptError, match=r"but must be|no message of the user"):
        seeing[0].generate(Conversation(messages, images=images))


def test_images_stand_where_messages_have_parts_for_them(seeing: Seeing) -> None:
    engine, _ = seeing
    messages = [*question({"type": "image"}), {"role": "assistant", "content": "A cat."}, *question({"type": "image"})]
    whole = engine.generate(messages, GREEDY, images=[CAT, DOG])
    mixed = [*question(shown(CAT)), *messages[1:]]
    assert engine.generate(mixed, GREEDY, images=[DOG]).token_ids == whole.token_ids
    other = engine.generate(messages, GREEDY, images=[DOG, CAT])
    assert other.token_ids != whole.token_ids
    assert other.usage.cached_tokens < 6


def test_progress_is_shown_while_an_image_is_seen(seeing: Seeing) -> None:
    engine, tower = seeing
    calls: list[tuple[int, int, int]] = []
    list(engine.stream(question(shown(CAT)), GREEDY, lambda *done: calls.append((*done, tower.num_passes))))
    total = calls[0][1]
    assert calls[0] == (0, total, 0)
    assert calls[-1] == (total, total, 1)


def test_a_second_question_about_an_image_needs_no_tower(seeing: Seeing) -> None:
    engine, tower = seeing
    first = engine.generate(question(shown(CAT)), GREEDY)
    later = [
        *question(shown(CAT)),
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "And its colour?"},
    ]
    assert engine.generate(later, GREEDY).usage.cached_tokens >= first.usage.prompt_tokens - 1
    assert tower.num_passes == 1


def test_drafted_answers_are_plain_ones_in_a_batch_with_images_and_without(seeing: Seeing) -> None:
    engine, _ = seeing
    prompts: list[Encodable] = [question(shown(CAT)), "What is it?", question(shown(DOG), shown(CAT))]
    alone = [engine.generate(prompt, GREEDY, is_drafted=False).token_ids for prompt in prompts]
    for _ in range(2):
        assert [each.token_ids for each in engine.generate_batch(prompts, GREEDY)] == alone


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        (question(linked({"url": "https://example.org/cat.png"})), "nothing is fetched"),
        (question(linked({"url": "file:///etc/passwd"})), "nothing is fetched"),
        (question(linked(5)), r"messages\[0\].content\[0\].image_url' is 5"),
        (question(linked({"url": "data:image/png;base64,%%"})), "no base64"),
        (question(linked({"url": "data:image/png;base64,AAAA"})), "image"),
        (question(shown("/etc/passwd")), "must be bytes, a Path or a PIL image"),
        (question({"type": "image"}), "is missing"),
        (question({**shown(CAT), "width": 5}), "no field"),
        (Conversation(question(shown(CAT)), images=[DOG]), "1 of the images have no part"),
        (Conversation([{"role": "system", "content": "Hi"}], images=[DOG]), "no message of the user"),
        (
            [{"role": "tool", "content": [shown(CAT)]}, *question()],
            "template shows 0 of the messages' 1 images: put",
        ),
        (Conversation([{"role": "user", "content": MARK}], images=[DOG]), "have 2 places for images .* and 1 came"),
        (f"Is {MARK} here?", "for which an image must come"),
        (question(*[shown(CAT)] * 257), "257 images, but may have 256"),
    ],
)
def test_what_is_no_image_is_refused_in_a_sentence(prompt: Encodable, fault: str, seeing: Seeing) -> None:
    engine, tower = seeing
    with pytest.raises(PromptError, match=fault):
        engine.generate(prompt, GREEDY)
    assert tower.num_passes == 0


def test_images_that_fill_the_context_are_refused_before_the_tower_runs(tmp_path: Path) -> None:
    engine, tower = seeing_engine(tmp_path, max_context=64)
    for images, having in (
        ([CAT, picture(3, 32, 32), CAT], "The first 2 of 3 images have 70"),
        ([DOG] * 8, "The first"),
    ):
        with pytest.raises(PromptTooLongError, match=having):
            engine.generate("What is it?", GREEDY, images=images)
    with pytest.raises(PromptTooLongError, match=r"has \d+ tokens, 49 of them of images, .* fewer or smaller images"):
        engine.generate("What is it? " * 5, GREEDY, images=[picture(3, 28, 28)])
    assert tower.num_passes == 0


def test_a_literal_text_may_spell_what_stands_for_an_image(tmp_path: Path) -> None:
    engine, _ = seeing_engine(tmp_path, is_text_literal=True)
    spelled = engine.generate(question(shown(CAT), {"type": "text", "text": f"{MARK}?"}), GREEDY).usage
    assert spelled.prompt_tokens > engine.generate(question(shown(CAT)), GREEDY).usage.prompt_tokens + 2


def test_an_engine_of_many_answers_runs_the_tower_beside_decoding(seeing: Seeing) -> None:
    engine, tower = seeing
    wanted = engine.generate(question(shown(CAT)), GREEDY).token_ids
    engine.forget()

    async def read() -> list[tuple[int, ...]]:
        async with AsyncEngine(engine) as served:
            made = served.stream(question(shown(DOG)), GREEDY)
            results = [await served.generate(question(shown(CAT)), GREEDY)]
            results += [GenerationResult.of_chunks([chunk async for chunk in made])]
        return [result.token_ids for result in results]

    cat, dog = asyncio.run(read())
    assert cat == wanted != dog
    assert tower.num_passes == 2


def test_a_refusal_holds_no_files(seeing: Seeing) -> None:
    """A server's requests wait with their errors until they are answered."""
    prompt = question(*[shown(picture(n, 56, 56)) for n in range(5)])
    with pytest.raises(PromptTooLongError) as refused:
        seeing[0].generate(prompt, GREEDY)
    frames = [frame for frame, _ in traceback.walk_tb(refused.value.__traceback__)]
    held = [value for frame in frames for value in frame.f_locals.values()]
    assert not any(isinstance(each, SeenImage) for value in held if isinstance(value, list) for each in value)


def test_a_salt_s_images_hasten_nobody_else_s(seeing: Seeing) -> None:
    engine, tower = seeing
    passes = []
    for salt in ("", "a", "b", "a"):
        engine.generate(question(shown(CAT)), replace(GREEDY, cache_salt=salt))
        passes.append(tower.num_passes)
    assert passes == [1, 2, 3, 3]


@pytest.mark.parametrize("shape", [(5, 2), (7, 2), (6, 3), (6,)])
def test_a_tower_that_gives_other_features_is_named(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    tower = CountedTower()
    monkeypatch.setattr(tower, "features", lambda inputs, may_run: np.zeros(shape, np.float32))
    with pytest.raises(ProviderError, match=r"gives features of shape .*, where its rules say \(6, 2\): export"):
        _ = SeenImage(GivenImage(CAT), images_part(), FeatureStore(lambda: tower)).features


def test_a_remote_client_drafts_for_texts_alone(seeing: Seeing) -> None:
    with pytest.raises(PromptError, match="drafts for texts alone"):
        seeing[0].answer(question(shown(CAT)), GREEDY, RemoteDrafts(is_lockstep=True))


def test_sources_that_read_states_are_silent_beside_images() -> None:
    class StateSource(DraftSource):
        name, wants_layer_states = "states", True

        def begin(self, context: RequestContext) -> RequestDrafter:
            return RequestDrafter(context)

        def propose(self, draft_requests: Sequence[DraftRequest]) -> Sequence[DraftTree | None]:
            return [None for _ in draft_requests]

    begun = [SourceSet([StateSource()]).begin(RequestContext([1, 2], has_images=each)) for each in (False, True)]
    assert [each.states[0] is None for each in begun] == [False, True]


def test_a_model_of_texts_says_that_it_sees_none(engine: Engine) -> None:
    with pytest.raises(PromptError, match="reads texts alone"):
        engine.generate("What is it?", images=[CAT])
    with pytest.raises(PromptError, match="list of paths"):
        engine.generate("What is it?", images="cat.png")
    with pytest.raises(PromptError, match="not with"):
        engine.generate([1, 2, 3], images=[CAT])


def test_larger_images_are_shrunk_to_the_tokens_that_a_config_allows(seeing: Seeing) -> None:
    engine, image = seeing[0], picture(1, 80, 80)
    parts = engine.package, engine.tokenizer, engine.decoder.target
    for most, expected in ((256, 256), (2048, 400)):
        (seen,) = prompt_reader(*parts, EngineConfig(max_image_tokens=most)).read(question(shown(image))).images
        assert seen.num_tokens == expected


def test_features_are_kept_up_to_a_number_of_bytes_and_the_last_used_stay() -> None:
    tower, part = CountedTower(), images_part()
    store = FeatureStore(lambda: tower, most_bytes=2 * 6 * 2 * 4)

    def see(seed: int) -> int:
        features = SeenImage(GivenImage(picture(seed)), part, store).features
        assert features.shape == (6, 2)
        return tower.num_passes

    assert [see(seed) for seed in (1, 2, 1, 3, 1, 2)] == [1, 2, 2, 3, 3, 4]
