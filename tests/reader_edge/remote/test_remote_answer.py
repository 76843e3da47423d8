"""A server is believed as far as its frames make sense, and an answer ends in one sentence where they do not."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from reader_edge.remote import frames
from reader_edge.remote.frames import FrameError, Tokens, frame, packed_facts, packed_numbers
from reader_edge.remote.link import Link, LostError, RefusedError
from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge.remote.remote_model import tokenizer_hash
from reader_edge.remote.settings import stats_facts
from reader_edge_runtime import Conversation, Engine, GenerationConfig, GenerationStats
from reader_edge_runtime.errors import RemoteError
from tests.reader_edge.remote.test_remote_model import FACTS

CHAT = Conversation([{"role": "user", "content": "a"}])
STARTED = frame(frames.STARTED, packed_numbers([0]))
END = packed_facts(frames.END, {"finish_reason": "length", "stats": stats_facts(GenerationStats(num_tokens=3))})
DEVIATION = {
    **{"rule": "relaxed", "figures": {"gap": 1.0}, "num_tokens": 3, "num_changed": 1, "nats_per_token": 0.1},
    **{"repeated_4grams": 0.0, "usual_repeated_4grams": None},
}
GONE = packed_facts(frames.REFUSAL, {"status": 404, "message": "gone", "code": "answer_gone"})


def lossy_end(deviation: object) -> bytes:
    facts = {"finish_reason": "stop", "stats": stats_facts(GenerationStats()), "deviation": deviation}
    return packed_facts(frames.END, facts)


class Scripted:
    """A server that says this, one list a connection, and nothing at a None; then the connection is lost."""

    def __init__(self, engine: Engine, *scripts: Sequence[bytes | None], **facts: Any) -> None:
        tokenizer = engine.tokenizer
        self.facts = FACTS | {"tokenizer": tokenizer_hash(tokenizer).hex(), "vocab_size": tokenizer.vocab_size} | facts
        self.scripts = deque(scripts)
        self.sent: list[bytes] = []
        self.told: deque[bytes | None] = deque()

    def connect(self, url: str, key: str | None) -> Link:
        self.told = deque([packed_facts(frames.WELCOME, self.facts), *self.scripts.popleft()])
        return Link(self, url)

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def recv(self, timeout: float | None = None) -> bytes:
        if not self.told:
            raise EOFError
        told = self.told.popleft()
        if told is None:
            raise TimeoutError
        return told

    def close(self) -> None:
        self.told.clear()


def remote(engine: Engine, server: Scripted, drafts: str = "none") -> RemoteEngine:
    path = engine.package.path("tokenizer.json")
    return RemoteEngine("http://there", drafts=drafts, tokenizer=path, patience_s=0, connect=server.connect)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([frame(frames.WELCOME)], "kind 65 within an answer"),
        ([STARTED, Tokens(1, [5]).packed()], "another one than before"),
        ([STARTED, Tokens(0, [5, 6]).packed(), Tokens(1, [7]).packed()], "another one than before"),
        ([STARTED, Tokens(0, [9_999_999]).packed()], "token id 9999999"),
        ([STARTED, packed_facts(frames.END, {"finish_reason": "joy"})], "by 'joy'"),
        ([STARTED, packed_facts(frames.END, {"finish_reason": "stop"})], "no statistics"),
        ([STARTED, Tokens(0, [5]).packed() + b"\0"], "behind its end"),
        ([STARTED, STARTED], "kind 67 within an answer"),
        ([STARTED, Tokens(0, []).packed()], "brings no token"),
        ([STARTED, Tokens(0, [5, 6]).packed(), Tokens(0, [5, 6]).packed()], "brings no token"),
        ([packed_facts(frames.END, {"finish_reason": "stop"})], "no statistics"),
        ([STARTED, lossy_end([])], r"has \[\] as deviation"),
        ([STARTED, lossy_end({"rule": "relaxed"})], "as deviation"),
        ([STARTED, lossy_end(DEVIATION | {"num_tokens": "3"})], "as deviation"),
        ([STARTED, lossy_end(DEVIATION | {"usual_repeated_4grams": []})], "as deviation"),
    ],
)
def test_what_no_server_says_ends_an_answer(shared_engine: Engine, script: list[bytes], words: str) -> None:
    with pytest.raises(FrameError, match=words):
        remote(shared_engine, Scripted(shared_engine, script)).generate("# tar")


def test_tokens_before_a_prompt_is_known_make_no_sense(shared_engine: Engine) -> None:
    with pytest.raises(FrameError, match="within an answer"):
        remote(shared_engine, Scripted(shared_engine, [Tokens(0, [5]).packed()])).generate(CHAT)


def test_an_answer_comes_in_as_many_pieces_as_it_is_sent(shared_engine: Engine) -> None:
    script = [STARTED, None, Tokens(0, [5]).packed(), None, Tokens(1, [6, 7]).packed(), None, END]
    chunks = list(
        remote(shared_engine, Scripted(shared_engine, script)).stream("# tar", GenerationConfig(max_tokens=3))
    )
    assert [chunk.token_ids for chunk in chunks] == [(5,), (6, 7)]  # the last of them with how it ended
    assert [chunk.finish_reason for chunk in chunks] == [None, "length"]


def test_what_a_server_tells_of_a_lossy_answer_is_told(shared_engine: Engine) -> None:
    for deviation in ({}, DEVIATION, DEVIATION | {"usual_repeated_4grams": 0.5}):
        server = Scripted(shared_engine, [STARTED, Tokens(0, [5]).packed(), lossy_end(deviation)])
        assert remote(shared_engine, server).generate("# tar").deviation == deviation


def test_tokens_beyond_the_end_and_again_are_left_out(shared_engine: Engine) -> None:
    tokens = [Tokens(0, [5, 6]).packed(), Tokens(1, [6, 7, 8, 9]).packed()]
    server = Scripted(shared_engine, [STARTED, *tokens, END])
    result = remote(shared_engine, server).generate("# tar", GenerationConfig(max_tokens=3))
    assert result.token_ids == (5, 6, 7)
    assert (result.finish_reason, result.stats.num_tokens) == ("length", 3)
    server = Scripted(shared_engine, [STARTED, *tokens, Tokens(3, [8, 9, 10]).packed(), END])
    with pytest.raises(FrameError, match="brings no token"):
        remote(shared_engine, server).generate("# tar", GenerationConfig(max_tokens=3))


@pytest.mark.parametrize("is_started", [False, True])
@pytest.mark.parametrize("drafts", ["none", "verify"])
def test_a_connection_lost_before_anything_came_is_taken_up_and_asked_again(
    shared_engine: Engine, drafts: str, is_started: bool
) -> None:
    started = frame(frames.STARTED, packed_numbers([2, 5, 6]))
    server = Scripted(shared_engine, [started] * is_started, [GONE, started, Tokens(0, [5, 6, 7]).packed(), END])
    result = remote(shared_engine, server, drafts).generate(CHAT, GenerationConfig(max_tokens=3))
    assert result.token_ids == (5, 6, 7)
    kinds = [frames.opened(data)[0] for data in server.sent]
    assert [kind for kind in kinds if kind not in (frames.HINT, frames.TREE)] == [
        *(frames.HELLO, frames.ASK),
        *(frames.HELLO, frames.RESUME, frames.ASK),
    ]
    assert len({data for data in server.sent if frames.opened(data)[0] == frames.ASK}) == 1  # in the same way
    assert frames.HINT not in kinds


def test_a_server_that_forgets_what_it_was_just_asked_is_not_asked_again(shared_engine: Engine) -> None:
    server = Scripted(shared_engine, [GONE] * 3)
    with pytest.raises(RefusedError, match="gone"):
        remote(shared_engine, server).generate("# tar")
    assert [frames.opened(data)[0] for data in server.sent] == [frames.HELLO, frames.ASK]
    server = Scripted(shared_engine, [], [GONE, GONE])
    with pytest.raises(RefusedError, match="gone"):
        remote(shared_engine, server).generate("# tar")


def test_who_lost_an_answer_to_another_device_does_not_take_it_back(shared_engine: Engine) -> None:
    facts: dict[str, object] = {"status": 409, "message": "goes elsewhere", "code": frames.ANSWER_TAKEN}
    taken = packed_facts(frames.REFUSAL, facts)
    server = Scripted(shared_engine, [STARTED, Tokens(0, [5]).packed()], [STARTED, taken], [])
    with pytest.raises(RefusedError, match="goes elsewhere"):
        remote(shared_engine, server).generate("# tar")
    kinds = [frames.opened(data)[0] for data in server.sent]
    assert kinds == [frames.HELLO, frames.ASK, frames.HELLO, frames.RESUME]
    assert len(server.scripts) == 1


def test_a_server_that_only_hangs_up_is_left(shared_engine: Engine) -> None:
    server = Scripted(shared_engine, *[[STARTED]] * 9)
    with pytest.raises(LostError, match=r"is lost.*looked for 0 seconds"):
        remote(shared_engine, server).generate("# tar")
    assert len(server.scripts) == 7
    script: list[list[bytes]] = [[STARTED, Tokens(num, [5]).packed()] for num in range(8)]
    server = Scripted(shared_engine, *script, [STARTED, END])  # which tells a token each time
    assert remote(shared_engine, server).generate("# tar").token_ids == (5,) * 8


def test_another_model_behind_the_address_is_not_gone_on_with(shared_engine: Engine) -> None:
    server = Scripted(shared_engine, [STARTED, Tokens(0, [5]).packed()], [])
    engine = remote(shared_engine, server)
    server.facts = server.facts | {"max_context": 99}
    with pytest.raises(RemoteError, match="another model than before"):
        engine.generate("# tar")


def test_an_engine_that_cannot_be_made_closes_its_link(shared_engine: Engine) -> None:
    server = Scripted(shared_engine, [frame(frames.PART, b"x")], tokenizer_bytes=1)
    with pytest.raises(RemoteError):
        RemoteEngine("http://there", connect=server.connect)
    assert not server.told
