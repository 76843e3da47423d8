"""An answer's text never shows part of a stop string."""

from hypothesis import given
from hypothesis import strategies as st

from reader_edge_runtime.text.text_stream import TextStream
from tests.runtime.text.small_tokenizers import BYTE_LEVEL


@given(st.text("abc", max_size=40), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    stream = TextStream(BYTE_LEVEL, [], stop)
    taken, is_stopped = "", False
    for token_id in BYTE_LEVEL.encode(text):
        is_stopped = stream.push(token_id)
        taken += stream.take()
        if is_stopped:
            break
    stream.finish()
    taken += stream.take()
    # The first to be complete ends the answer; of those complete at once, the one that began first.
    ends = sorted((text.find(s) + len(s), text.find(s)) for s in stop if s in text)
    wanted = text[: min(at for end, at in ends if end == ends[0][0])] if ends else text
    assert is_stopped == bool(ends)
    assert taken == wanted


def test_text_that_begins_a_stop_string_is_held_back_until_it_is_certain() -> None:
    stream = TextStream(BYTE_LEVEL, [], ["END"])
    shown = []
    for token_id in BYTE_LEVEL.encode("xEENx"):
        stream.push(token_id)
        shown.append(stream.take())
    assert shown == ["x", "", "E", "", "ENx"]
