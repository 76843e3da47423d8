"""Answers of a server, as they come to a device, and the settings that it sends."""

import json
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from reader_edge.remote.connection import FrameConnection, LostError, RefusedError
from reader_edge.remote.frames import (
    ANSWER_TAKEN,
    CLIENT_FRAMES,
    SERVER_FRAMES,
    Ask,
    Deviation,
    Drafted,
    End,
    FromServer,
    Hello,
    Refusal,
    Resume,
    Started,
    TokenizerPart,
    Tokens,
    Welcome,
)
from reader_edge.remote.remote_engine import RemoteEngine, tokenizer_hash
from reader_edge.remote.settings import Settings
from reader_edge_runtime import Conversation, Engine, GenerationConfig, GenerationStats, Grammar, SamplingConfig
from reader_edge_runtime.errors import ConfigError, FrameError, RemoteError
from tests.random_drafter import SecondBest
from tests.wrong_fields import assert_each_is_named

CHAT = Conversation([{"role": "user", "content": "a"}])
WELCOME = Welcome("demo", bytes(32), 10, 300, 512, (0,), False, "all", (0.1, 0.2), {})
STARTED = Started([])
END = End("length", GenerationStats(num_tokens=3), None)
DEVIATION = Deviation("relaxed", {"gap": 1.0}, 3, 1, 0.1, 0.0, None)
GONE = Refusal("gone", 404, "answer_gone")


class Scripted:
    """A server that says this, one list a connection, and nothing at a None; then the connection is lost."""

    def __init__(self, engine: Engine, *scripts: Sequence[FromServer | None], **facts: Any) -> None:
        tokenizer = engine.tokenizer
        facts = {"tokenizer": tokenizer_hash(tokenizer), "vocab_size": tokenizer.vocab_size} | facts
        self.welcome = structs.replace(WELCOME, **facts)
        self.scripts = deque(scripts)
        self.sent: list[bytes] = []
        self.shown: deque[FromServer | None] = deque()

    def connect(self, url: str, key: str | None) -> FrameConnection:
        self.shown = deque([self.welcome, *self.scripts.popleft()])
        return FrameConnection(self, url)

    def send(self, message: bytes) -> None:
        self.sent.append(message)

    def recv(self, timeout: float | None = None) -> bytes:
        if not self.shown:
            raise EOFError
        shown = self.shown.popleft()
        if shown is None:
            raise TimeoutError
        return SERVER_FRAMES.pack(shown)

    def close(self) -> None:
        self.shown.clear()


def remote(engine: Engine, server: Scripted, drafts: str = "none") -> RemoteEngine:
    path = engine.package.path("tokenizer.json")
    return RemoteEngine("http://there", drafts=drafts, tokenizer=path, reconnect_s=0, connect=server.connect)


def kinds_of(server: Scripted) -> list[type]:
    """Of the frames that came."""
    return [type(CLIENT_FRAMES.unpack(data)) for data in server.sent]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ([WELCOME], "Welcome within an answer"),
        ([STARTED, Tokens(1, [5])], "another one than before"),
        ([STARTED, Tokens(0, [5, 6]), Tokens(1, [7])], "another one than before"),
        ([STARTED, Tokens(0, [9_999_999])], "token id 9999999"),
        ([STARTED, End("joy", GenerationStats(), None)], "Invalid enum value 'joy'"),  # type: ignore[arg-type]
        ([STARTED, STARTED], "Started within an answer"),
        ([STARTED, Tokens(0, [])], "brings no token"),
        ([STARTED, Tokens(0, [5, 6]), Tokens(0, [5, 6])], "brings no token"),
        ([STARTED, End("stop", GenerationStats(), structs.replace(DEVIATION, rule=3))], "Expected str, got int"),
    ],
)
def test_what_no_server_says_ends_an_answer(shared_engine: Engine, script: list[FromServer], words: str) -> None:
    with pytest.raises(FrameError, match=words):
        remote(shared_engine, Scripted(shared_engine, script)).generate("# tar")


def test_tokens_before_a_prompt_is_known_make_no_sense(shared_engine: Engine) -> None:
    with pytest.raises(FrameError, match="within an answer"):
        remote(shared_engine, Scripted(shared_engine, [Tokens(0, [5])])).generate(CHAT)


def test_an_answer_comes_in_as_many_pieces_as_it_is_sent(shared_engine: Engine) -> None:
    script = [STARTED, None, Tokens(0, [5]), None, Tokens(1, [6, 7]), None, END]
    chunks = list(
        remote(shared_engine, Scripted(shared_engine, script)).stream("# tar", GenerationConfig(max_tokens=3))
    )
    assert [chunk.token_ids for chunk in chunks] == [(5,), (6, 7)]  # the last of them with how it ended
    assert [chunk.finish_reason for chunk in chunks] == [None, "length"]


def test_what_a_server_tells_of_a_lossy_answer_is_shown(shared_engine: Engine) -> None:
    for deviation in (None, DEVIATION, structs.replace(DEVIATION, usual_repeated_4grams=0.5)):
        server = Scripted(shared_engine, [STARTED, Tokens(0, [5]), End("stop", GenerationStats(), deviation)])
        wanted = {} if deviation is None else structs.asdict(deviation)
        assert remote(shared_engine, server).generate("# tar").deviation == wanted


def test_tokens_beyond_the_end_and_again_are_left_out(shared_engine: Engine) -> None:
    tokens = [Tokens(0, [5, 6]), Tokens(1, [6, 7, 8, 9])]
    server = Scripted(shared_engine, [STARTED, *tokens, END])
    result = remote(shared_engine, server).generate("# tar", GenerationConfig(max_tokens=3))
    assert result.token_ids == (5, 6, 7)
    assert (result.finish_reason, result.stats.num_tokens) == ("length", 3)
    server = Scripted(shared_engine, [STARTED, *tokens, Tokens(3, [8, 9, 10]), END])
    with pytest.raises(FrameError, match="brings no token"):
        remote(shared_engine, server).generate("# tar", GenerationConfig(max_tokens=3))


@pytest.mark.parametrize("is_started", [False, True])
@pytest.mark.parametrize("drafts", ["none", "verify"])
def test_an_answer_lost_before_it_began_is_repeated(shared_engine: Engine, drafts: str, is_started: bool) -> None:
    started = Started([5, 6])
    server = Scripted(shared_engine, [started] * is_started, [GONE, started, Tokens(0, [5, 6, 7]), END])
    result = remote(shared_engine, server, drafts).generate(CHAT, GenerationConfig(max_tokens=3))
    assert result.token_ids == (5, 6, 7)
    sent = [CLIENT_FRAMES.unpack(data) for data in server.sent]
    assert [type(frame) for frame in sent if not isinstance(frame, Drafted)] == [Hello, Ask, Hello, Resume, Ask]
    first, again = (frame for frame in sent if isinstance(frame, Ask))
    assert first == again  # in the same way
    assert not any(isinstance(frame, Drafted) and frame.is_hint for frame in sent)


def test_a_server_that_forgets_a_fresh_request_gets_no_second_one(shared_engine: Engine) -> None:
    server = Scripted(shared_engine, [GONE] * 3)
    with pytest.raises(RefusedError, match="gone"):
        remote(shared_engine, server).generate("# tar")
    assert kinds_of(server) == [Hello, Ask]
    server = Scripted(shared_engine, [], [GONE, GONE])
    with pytest.raises(RefusedError, match="gone"):
        remote(shared_engine, server).generate("# tar")


def test_who_lost_an_answer_to_another_device_does_not_take_it_back(shared_engine: Engine) -> None:
    taken = Refusal("goes elsewhere", 409, ANSWER_TAKEN)
    server = Scripted(shared_engine, [STARTED, Tokens(0, [5])], [STARTED, taken], [])
    with pytest.raises(RefusedError, match="goes elsewhere"):
        remote(shared_engine, server).generate("# tar")
    assert kinds_of(server) == [Hello, Ask, Hello, Resume]
    assert len(server.scripts) == 1


def test_a_server_that_only_hangs_up_is_left(shared_engine: Engine) -> None:
    server = Scripted(shared_engine, *[[STARTED]] * 9)
    with pytest.raises(LostError, match=r"is lost.*looked for 0 seconds"):
        remote(shared_engine, server).generate("# tar")
    assert len(server.scripts) == 7
    script: list[list[FromServer]] = [[STARTED, Tokens(num, [5])] for num in range(8)]
    server = Scripted(shared_engine, *script, [STARTED, END])  # which tells a token each time
    assert remote(shared_engine, server).generate("# tar").token_ids == (5,) * 8


def test_another_model_behind_the_address_is_not_gone_on_with(shared_engine: Engine) -> None:
    server = Scripted(shared_engine, [STARTED, Tokens(0, [5])], [])
    engine = remote(shared_engine, server)
    server.welcome = structs.replace(server.welcome, max_context=99)
    with pytest.raises(RemoteError, match="another model than before"):
        engine.generate("# tar")


def test_an_engine_that_cannot_be_made_closes_its_link(shared_engine: Engine) -> None:
    server = Scripted(shared_engine, [TokenizerPart(b"x")], tokenizer_bytes=1)
    with pytest.raises(RemoteError):
        RemoteEngine("http://there", connect=server.connect)
    assert not server.shown


def test_a_tokenizer_is_taken_by_its_hash_alone(shared_engine: Engine) -> None:
    data = shared_engine.tokenizer.to_json().encode()
    server = Scripted(shared_engine, [TokenizerPart(data)], tokenizer_bytes=len(data))
    fetched = RemoteEngine("http://there", drafts="none", connect=server.connect).tokenizer
    assert fetched.fingerprint() == shared_engine.tokenizer.fingerprint()
    server = Scripted(shared_engine, [TokenizerPart(data)], tokenizer_bytes=len(data), tokenizer=bytes(32))
    with pytest.raises(RemoteError, match="came damaged"):
        RemoteEngine("http://there", connect=server.connect)
    server = Scripted(shared_engine, [TokenizerPart(b"{}")], tokenizer_bytes=2)
    with pytest.raises(RemoteError, match="cannot be read"):
        RemoteEngine("http://there", connect=server.connect)


def test_a_sampling_that_no_model_can_recommend_is_refused(shared_engine: Engine) -> None:
    server = Scripted(shared_engine, [])
    server.welcome.sampling["seed"] = 1
    with pytest.raises(FrameError, match="sampling is none"):
        remote(shared_engine, server)


CONFIG = GenerationConfig(
    max_tokens=7,
    sampling=SamplingConfig(
        temperature=0.5, top_k=3, top_p=0.5, min_p=0.1, seed=2**64 - 1, logit_bias={5: 1.5}, frequency_penalty=1
    ),
    stop=("a", "ä"),
    stop_token_ids=(4, 5),
    grammar=Grammar("regex", "a*", "mine"),
    prediction="b",
    ignores_eos=True,
    is_drafted=False,
    is_scored=True,
    max_reasoning_tokens=3,
    cache_salt="mine",
)


def test_configs_come_out_as_they_went_in() -> None:
    for config in (CONFIG, GenerationConfig(sampling=SamplingConfig())):
        assert Settings.decoded(Settings.of(config).encoded()).config() == config


def test_options_for_more_than_tokens_are_refused() -> None:
    for config in (
        GenerationConfig(wants_logprobs=True),
        GenerationConfig(wants_prompt_logprobs=True),
        GenerationConfig(splits_thinking=True),
        GenerationConfig(acceptance=SecondBest()),
    ):
        with pytest.raises(ConfigError, match="leave it out"):
            Settings.of(config)


def test_conversations_come_out_as_they_went_in() -> None:
    chat = Conversation([{"role": "user", "content": "a"}], template_args={"b": 1}, continues_final_message=True)
    found = Settings.decoded(Settings.of(CONFIG, chat).encoded()).chat()
    assert found is not None
    assert (found.messages, found.template_args, found.continues_final_message) == ([*chat.messages], {"b": 1}, True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"stop": ["a"] * 17}, "stop .*; expected array of length <= 16"),
        ({"stop": ["a" * 1001]}, r"stop\[0\] .*; expected str of length <= 1000"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids .*length <= 1024"),
        ({"sampling": {"logit_bias": [[1, 1]] * 1025}}, "sampling.logit_bias .*length <= 1024"),
        ({"stop": 5}, "stop "),
        ({"conversation": 5}, "conversation "),
    ],
)
def test_settings_have_the_bounds_of_the_servers_other_paths(settings: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=f"The request has an unusable {words}"):
        Settings.decoded(json.dumps(settings).encode())


@pytest.mark.parametrize("data", [b"", b"[]", b"[" * 100_000, b'{"max_tokens": NaN}'])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="The request is"):
        Settings.decoded(data)


def test_half_a_character_is_not_sent() -> None:
    with pytest.raises(ConfigError, match="The request cannot be sent"):
        Settings.of(GenerationConfig(prediction="\ud800")).encoded()


def test_every_setting_is_named_where_it_is_wrong() -> None:
    fields = json.loads(Settings.of(CONFIG, Conversation([{"role": "user", "content": "a"}])).encoded())
    assert_each_is_named(Settings, fields | {"conversation": {"continues_final_message": True}})
