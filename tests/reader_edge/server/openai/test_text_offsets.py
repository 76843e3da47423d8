"""Offsets of tokens in a completion's text: what stands there is what the token spells, whatever else was tokens."""

from random import Random
from typing import Any

import pytest
from tokenizers import processors

from reader_edge.server.openai.text_offsets import TextOffsets, prompt_offsets
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine, Engine
from reader_edge_runtime.text.text_stream import StreamDecoder
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.family_tokenizers import FAMILIES, family_engine, family_tokenizer
from tests.reader_edge.server.conftest import Served
from tests.reader_edge.server.openai.test_answers import events
from tests.runtime.text.text_cases import BYTE_FALLBACK, BYTE_LEVEL, byte_fallback_tokenizer, byte_level_tokenizer

CHATTY = "{begin}user\nHi  there, größer \N{SNOWMAN}!{end}\n\n tar{end}"


@pytest.fixture(params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return family_tokenizer(request.param)


def is_spelled(token: str, text: str) -> bool:
    """Whether a text begins so. Some tokenizers put a space before a text, which is not in what was given."""
    return text.startswith(token) or (token[:1] == " " and text.startswith(token[1:]))


def chatty(tokenizer: Tokenizer) -> str:
    """A prompt that spells special tokens."""
    special = list(tokenizer.special_tokens.values())
    return CHATTY.format(begin=special[-1], end=special[0])


def test_a_prompts_special_tokens_stand_where_it_spells_them(tokenizer: Tokenizer) -> None:
    prompt = chatty(tokenizer)
    token_ids = tokenizer.encode(prompt)
    offsets = prompt_offsets(prompt, token_ids, tokenizer)
    assert offsets == sorted(offsets)
    for number, (token_id, offset) in enumerate(zip(token_ids, offsets, strict=True)):
        spelled = tokenizer.token_bytes(token_id, is_first=number == 0).decode(errors="ignore")
        assert is_spelled(spelled, prompt[offset:])
    special = [token_id in tokenizer.special_tokens for token_id in token_ids]
    assert sum(special) == 3
    assert prompt[offsets[special.index(True) + 1] :].startswith(("user", "u"))


def test_token_ids_stand_in_the_text_that_leaves_special_tokens_out(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode(chatty(tokenizer))
    text = tokenizer.decode(token_ids)
    offsets = prompt_offsets(None, token_ids, tokenizer)
    for number, offset in enumerate(offsets):
        before = tokenizer.decode(token_ids[:number])
        assert offset == len(before) or before.endswith("\N{REPLACEMENT CHARACTER}")
    assert text[offsets[-1] :] == ""


def test_a_token_that_is_added_to_a_text_has_no_characters_in_it() -> None:
    fast = byte_fallback_tokenizer()
    end = fast.token_to_id("<end>")
    fast.post_processor = processors.TemplateProcessing(single="<end> $A <end>", special_tokens=[("<end>", end)])
    tokenizer = Tokenizer(fast)
    token_ids = tokenizer.encode("abc")
    assert (token_ids[0], token_ids[-1], len(token_ids)) == (end, end, 4)
    assert prompt_offsets("abc", token_ids, tokenizer) == [0, 0, 2, 3]


def test_spaces_count_also_where_a_tokenizer_trims_its_spans() -> None:
    fast = byte_level_tokenizer()
    fast.post_processor = processors.ByteLevel(trim_offsets=True)
    prompt = "a \n\n b"
    token_ids = Tokenizer(fast).encode(prompt)
    assert prompt_offsets(prompt, token_ids, Tokenizer(fast)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, BYTE_FALLBACK])
def test_offsets_are_those_of_the_streamed_text_whatever_tokens_come(tokenizer: Tokenizer) -> None:
    random = Random(4)  # noqa: S311 (a test's)
    characters = "a bc\N{SNOWMAN}é\N{GRINNING FACE}"
    for _ in range(200):
        text = "a" + "".join(random.choices(characters, k=12))
        token_ids = tokenizer.encode(text, adds_special_tokens=False)
        for place in random.sample(range(1, len(token_ids)), 2):  # broken characters, special tokens
            token_ids[place] = random.randrange(tokenizer.vocab_size)
        split = random.choice([0, 0, len(tokenizer.encode(text[:4], adds_special_tokens=False))])
        prompt, answer = token_ids[:split], token_ids[split:]
        if tokenizer.decode(prompt).endswith("\N{REPLACEMENT CHARACTER}"):
            continue
        decoder, offsets, output = StreamDecoder(tokenizer, prompt), TextOffsets.behind(prompt, 7, tokenizer), ""
        for token_id in answer:
            is_certain = not decoder.is_holding
            offset = offsets.push(token_id)
            assert offset == 7 + len(output) or not is_certain
            output += decoder.push(token_id)


def test_a_character_that_the_prompt_began_is_counted_once() -> None:
    token_ids = BYTE_LEVEL.encode("x\N{SNOWMAN}y")
    for num_given in (2, 3):
        text = BYTE_LEVEL.decode(token_ids[:num_given])
        assert text == "x\N{REPLACEMENT CHARACTER}"
        offsets = TextOffsets.behind(token_ids[:num_given], len(text), BYTE_LEVEL)
        assert [offsets.push(token_id) for token_id in token_ids[num_given:]] == [1] * (4 - num_given) + [2]
    offsets = TextOffsets.behind(token_ids[:2], 0, BYTE_LEVEL)  # which is not returned
    assert [offsets.push(token_id) for token_id in token_ids[2:]] == [0, 0, 0]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("name", ["qwen", "gemma"])
def test_a_served_prompt_with_special_tokens_has_right_offsets(engine: Engine, name: str, is_streamed: bool) -> None:
    model = family_engine(engine, name)
    served = Served(AsyncEngine(model), ServerSettings("demo", max_tokens=500))
    prompts = [chatty(model.tokenizer), "# tar", chatty(model.tokenizer) + "is"]
    body = {"model": "demo", "prompt": prompts, "n": 2, "max_tokens": 6, "echo": True, "logprobs": 1, "seed": 1}
    choices = _choices(served, body | {"stream": is_streamed})
    assert len(choices) == 6
    for number, (text, logprobs) in enumerate(choices):
        prompt = prompts[number // 2]
        num_given = len(model.encode_prompt(prompt))
        assert text.startswith(prompt)
        assert logprobs["text_offset"][num_given] == len(prompt)
        assert len(set(map(len, logprobs.values()))) == 1
        for offset, token in zip(logprobs["text_offset"][1:], logprobs["tokens"][1:], strict=True):
            if not token.startswith("bytes:") and text[offset : offset + 1] != "\N{REPLACEMENT CHARACTER}":
                assert is_spelled(token, text[offset:])


@pytest.mark.parametrize("is_streamed", [False, True])
def test_tokens_of_a_stop_text_are_shown_from_the_end_of_the_text_on(served: Served, is_streamed: bool) -> None:
    whole = served.complete(max_tokens=30)["choices"][0]["text"]
    stop = whole[20:26]
    body = {"model": "demo", "prompt": "# tar", "temperature": 0, "max_tokens": 30, "logprobs": 0, "stop": stop}
    ((text, logprobs),) = _choices(served, body | {"stream": is_streamed})
    assert text == whole[: whole.index(stop)]
    spelled = "".join(logprobs["tokens"])
    assert spelled.startswith(text + stop)
    ends = [offset + len(token) for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)]
    assert logprobs["text_offset"] == [0, *ends[:-1]]
    assert ends[-1] == len(spelled) >= len(text) + len(stop)


def _choices(served: Served, body: dict[str, Any]) -> list[tuple[str, dict[str, list[Any]]]]:
    """Texts and log-probabilities of a completion's choices, which come in one piece or in many."""
    response = served.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    pieces = [event["choices"][0] for event in events(response)] if body["stream"] else response.json()["choices"]
    shown: dict[int, tuple[str, dict[str, list[Any]]]] = {}
    for piece in sorted(pieces, key=lambda each: int(each["index"])):
        text, logprobs = shown.get(piece["index"], ("", {}))
        more = piece["logprobs"] or {}
        shown[piece["index"]] = (
            text + piece["text"],
            {name: [*logprobs.get(name, []), *more[name]] for name in more} or logprobs,
        )
    return [shown[number] for number in sorted(shown)]
