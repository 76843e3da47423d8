"""A lost server is looked for, and who waits for it is shown."""

import warnings

import pytest

from reader_edge.remote.connection import FrameConnection, LostError, Reconnect

LOST = LostError("The connection is lost.")


def test_a_search_is_shown_once_as_it_begins_and_none_that_is_over_at_once() -> None:
    link, looks = object.__new__(FrameConnection), list[int]()

    def at_the_third_look() -> FrameConnection:
        looks.append(len(looks))
        if len(looks) < 3:
            raise LOST
        return link

    with pytest.warns(RuntimeWarning, match=r"^The connection is lost\. It is looked for up to 30 s\.$") as shown:
        assert Reconnect(30).find(at_the_third_look, LOST, 0) is link
    assert len(shown) == 1
    with warnings.catch_warnings(action="error"):
        assert Reconnect(30).find(lambda: link, LOST, 0) is link
