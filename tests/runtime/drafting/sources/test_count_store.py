"""Counts equal a brute-force reference, whatever is learned and forgotten in whatever pieces."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reader_edge_runtime.drafting.kernels.counts import ORDER
from reader_edge_runtime.drafting.sources.count_store import CountStore, History
from tests.runtime.drafting.integrity import check_integrity, count_plainly, successors_of, text_ends

# Few tokens make long matches and many rows; many tokens make rows longer than a row may be.
streams = st.one_of(
    st.lists(st.integers(0, 1), max_size=120),
    st.lists(st.integers(0, 3), max_size=120),
    st.lists(st.integers(0, 40), max_size=300),
    st.lists(st.sampled_from([5, 31999, 2**31 - 2]), max_size=60),
)


def tokens(token_ids: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(token_ids, np.int32)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(streams, max_size=4), num_tokens=st.sampled_from([0, 7, 500]))
def test_context_counts_what_a_plain_table_counts(pieces: list[list[int]], num_tokens: int) -> None:
    store = CountStore(num_tokens)
    text: list[int] = []
    for piece in pieces:
        store.extend(tokens(piece))
        text += piece
    check_integrity(store, [text], [store.end])
    expected = count_plainly([text], [store.end])
    if len(set(text)) <= 24:
        for suffix, successors in expected.items():
            assert successors_of(store, suffix) == successors
    assert successors_of(store, (9,) * ORDER) == expected.get((9,) * ORDER, {})


@settings(max_examples=150, deadline=None)
@example(  # a row that is cut before the text that filled it is forgotten
    texts=[[5] * 4 + [31999] * 2 + [2**31 - 2] * 2, [0] * 22 + [*range(1, 5), *range(6, 23)], [0] * 8], max_tokens=60
)
@given(texts=st.lists(streams, max_size=14), max_tokens=st.sampled_from([0, 1, 13, 60, 200, 5000]))
def test_history_knows_the_last_texts_and_no_forgotten_ones(texts: list[list[int]], max_tokens: int) -> None:
    history = History(max_tokens)
    for text in texts:
        history.add(tokens(text))
        assert history.num_tokens <= max_tokens
    kept = [text.tolist() for text in history.texts()]
    given_texts = [text[max(0, len(text) - max_tokens) :] for text in texts if text and max_tokens]
    assert kept == given_texts[len(given_texts) - len(kept) :]
    if given_texts:
        assert kept, "The newest text is always kept."
    check_integrity(history, kept, text_ends(history), given_texts[: len(given_texts) - len(kept)])


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(data=st.data(), max_tokens=st.sampled_from([13, 40, 120]))
def test_the_least_recently_used_text_goes_first(data: st.DataObject, max_tokens: int) -> None:
    history = History(max_tokens)
    expected: list[list[int]] = []
    for _ in range(data.draw(st.integers(1, 25))):
        used = []
        if expected:
            for i in data.draw(st.lists(st.integers(0, len(expected) - 1), max_size=3)):
                end, length = text_ends(history)[i], len(expected[i])
                history.note_use((end - data.draw(st.integers(0, length - 1))) & (len(history.text) - 1))
                used.append(i)
        last_use = {i: when for when, i in enumerate(used)}
        order = sorted(range(len(expected)), key=lambda i: last_use.get(i, -1))
        expected = [expected[i] for i in order]
        assert [text.tolist() for text in history.renew_used()] == expected[len(expected) - len(last_use) :]
        check_integrity(history, expected, text_ends(history))
        text = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=30))[-max_tokens:]
        history.add(tokens(text))
        expected.append(text)
        while sum(map(len, expected)) + len(expected) - 1 > max_tokens:
            expected.pop(0)
        assert [text.tolist() for text in history.texts()] == expected
        check_integrity(history, expected, text_ends(history))


def test_a_text_in_use_outlives_all_others_however_often_it_moves() -> None:
    history = History(200)
    history.add(tokens([7] * 20))
    random = np.random.default_rng(0)
    for _ in range(200):
        history.note_use((text_ends(history)[0] if history.num_tokens == 20 else _end_of(history, 7)) - 3)
        history.renew_used()
        history.add(tokens(random.integers(0, 6, size=15).tolist()))
    assert [7] * 20 in [text.tolist() for text in history.texts()]
    check_integrity(history, [text.tolist() for text in history.texts()], text_ends(history))


def _end_of(history: History, token: int) -> int:
    """Where the text of one token alone ends."""
    pairs = zip(history.texts(), text_ends(history), strict=True)
    return next(end for text, end in pairs if set(text.tolist()) == {token})


def test_history_stays_within_its_memory_when_texts_come_and_go() -> None:
    history = History(2000)
    random = np.random.default_rng(0)
    sizes = []
    for _ in range(60):
        history.add(tokens(random.integers(0, 12, size=int(random.integers(1, 400))).tolist()))
        sizes.append(history.num_bytes)
    assert sizes[-1] == sizes[20]
    check_integrity(history, [text.tolist() for text in history.texts()], text_ends(history))
