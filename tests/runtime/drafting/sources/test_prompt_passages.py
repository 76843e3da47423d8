"""What a draft model reads of a long prompt: its end, and what bears on that, in order."""

import pytest

from reader_edge_runtime.drafting.sources.prompt_passages import read_passages


def test_a_prompt_that_fits_is_read_whole() -> None:
    assert read_passages(range(64), 64) == list(range(64))


def test_the_end_is_kept_and_the_passage_that_it_asks_of_comes_before_it() -> None:
    passages = [[1000 + 128 * number + each for each in range(128)] for number in range(20)]
    question = [*passages[13][40:80], *range(88)]
    prompt = [token_id for passage in passages for token_id in passage] + question
    read = read_passages(prompt, 256)
    assert read == passages[13] + question
    assert len(read_passages(prompt, 700)) <= 700
    assert read_passages(prompt, 700)[-350:] == prompt[-350:]


def test_passages_stay_in_their_order() -> None:
    about = [7] * 64
    prompt = [
        *range(100, 228),
        *about,
        *range(300, 364),
        *range(400, 528),
        *about,
        *range(600, 664),
        *range(700, 828),
        7,
    ]
    read = read_passages(prompt, 400)
    places = [prompt.index(each) for each in dict.fromkeys(read) if each != 7]
    assert places == sorted(places)
    assert 364 not in read
    assert {300, 600} <= set(read)


@pytest.mark.parametrize("num_tokens", [1, 2, 100])
def test_no_more_is_read_than_was_asked_for(num_tokens: int) -> None:
    assert 0 < len(read_passages([each % 50 for each in range(5000)], num_tokens)) <= num_tokens
