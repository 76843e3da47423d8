"""Devices draft for a server, and no answer changes: in no mode, by no loss, beside no other request."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from reader_edge.remote.connection import FrameConnection, LostError
from reader_edge.remote.remote_engine import RemoteEngine
from reader_edge_runtime import Conversation, DraftSources, Engine, GenerationConfig, GenerationResult, SamplingConfig
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.errors import BusyError, ClosedError, ConfigError, PromptError, RemoteError, TokenizerError
from reader_edge_runtime.generation_config import Grammar
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.conftest import make_as_new
from tests.reader_edge.server.draft.conftest import Device, DraftServer

PROMPTS = ("# tar", "# git commit\n\n>", "The", "# ls\n\n> List")
SAMPLED = SamplingConfig(temperature=0.8, seed=11)
WAYS = [("none", 0), ("hints", 0), ("verify", 0), ("verify", 1), ("verify", 3)]


def config(max_tokens: int = 60, **fields: Any) -> GenerationConfig:
    return GenerationConfig(max_tokens=max_tokens, **fields)


def alone(engine: Engine, prompt: Any, sent: GenerationConfig) -> GenerationResult:
    """What the server answers without any device."""
    result = engine.generate(prompt, sent)
    make_as_new(engine)
    return result


def check_same(given: GenerationResult, wanted: GenerationResult) -> None:
    assert given.token_ids == wanted.token_ids
    assert (given.text, given.finish_reason) == (wanted.text, wanted.finish_reason)
    assert given.stats.num_prompt_tokens == wanted.stats.num_prompt_tokens
    assert given.stats.num_tokens == wanted.stats.num_tokens


@pytest.mark.parametrize("sampling", [SamplingConfig(), SAMPLED, SamplingConfig(temperature=1, frequency_penalty=0.5)])
@pytest.mark.parametrize(("drafts", "num_ahead"), WAYS)
def test_a_device_changes_no_token(
    device: Device, hinted_engine: Engine, drafts: str, num_ahead: int, sampling: SamplingConfig
) -> None:
    remote = device(drafts, num_ahead=num_ahead)
    for prompt in PROMPTS[:2]:
        sent = config(sampling=sampling)
        wanted = alone(hinted_engine, prompt, sent)
        for _ in range(2):  # the second time the device's history has the answer
            check_same(remote.generate(prompt, sent), wanted)


@pytest.mark.parametrize("drafts", ["hints", "verify"])
def test_what_the_device_alone_has_is_accepted(device: Device, hinted_engine: Engine, drafts: str) -> None:
    remote = device(drafts)
    first = remote.generate("# tar", config())
    make_as_new(hinted_engine)  # the server forgets, the device does not
    again = remote.generate("# tar", config())
    assert again.token_ids == first.token_ids
    assert again.stats.accepted_by_source["device"] > 20
    remote.forget()
    make_as_new(hinted_engine)
    num_accepted = again.stats.accepted_by_source["device"]
    assert remote.generate("# tar", config()).stats.accepted_by_source["device"] < num_accepted


def test_a_history_file_on_the_device_is_drafted_from(device: Device, hinted_engine: Engine, tmp_path: Path) -> None:
    sources = DraftSources(history=tmp_path / "history")
    wanted = device(sources=sources).generate("# tar", config())
    make_as_new(hinted_engine)
    again = device(sources=sources).generate("# tar", config())
    assert again.token_ids == wanted.token_ids
    assert again.stats.accepted_by_source["device"] > 20


def test_files_on_the_device_are_drafted_from(device: Device, hinted_engine: Engine, tmp_path: Path) -> None:
    wanted = alone(hinted_engine, "# tar", config())
    (tmp_path / "tar.md").write_text(f"# tar\n{wanted.text}", "utf-8")
    accepted = []
    for sources in (None, DraftSources(workspace=tmp_path)):
        remote = device("verify", num_ahead=0, sources=sources)
        assert isinstance(remote._drafter, RetrievalDrafter)
        remote._drafter.wait()
        answer = remote.generate("# tar", config())
        assert answer.token_ids == wanted.token_ids
        accepted.append(answer.stats.num_accepted_tokens)
    assert accepted[1] > accepted[0]


@pytest.mark.long
def test_many_devices_at_once_get_what_each_would_get_alone(device: Device, hinted_engine: Engine) -> None:
    sent = [config(40, sampling=SamplingConfig(temperature=t)) for t in (0, 0.9)]
    wanted = [(prompt, each, alone(hinted_engine, prompt, each)) for prompt in PROMPTS for each in sent]
    remotes = [device(*way) for way in ([drafts] for drafts, _ in WAYS)]

    def ask(remote: RemoteEngine) -> None:
        for prompt, each, result in wanted:
            check_same(remote.generate(prompt, each), result)

    with ThreadPoolExecutor(len(remotes)) as threads:
        list(threads.map(ask, remotes))


def test_conversations_stops_and_grammars_are_those_of_the_server(device: Device, hinted_engine: Engine) -> None:
    chat = Conversation([{"role": "user", "content": "tar"}])
    for prompt, sent in (
        (chat, config()),
        ([{"role": "user", "content": "ls"}], config(20)),
        (hinted_engine.encode_prompt("# tar"), config(30)),
        ("# tar", config(200, stop=("\n\n",))),
        ("# tar", config(20, grammar=Grammar("regex", "[ab]{12}"), sampling=SAMPLED)),
        ("# tar", config(20, prediction="# tar\n\n> An", is_scored=True)),
        ("# tar", config(20, is_drafted=False)),
    ):
        wanted = alone(hinted_engine, prompt, sent)
        for drafts in ("hints", "verify") if sent.is_drafted else ("hints",):
            check_same(device(drafts).generate(prompt, sent), wanted)


class Cut:
    """Makes links that are lost after some frames; is_silent: so that the server does not hear of it."""

    def __init__(self, server: DraftServer, seed: int, is_silent: bool = False) -> None:
        self.server = server
        self.chance = random.Random(seed)  # noqa: S311
        self.is_silent = is_silent
        self.num_cut = 0

    def connect(self, url: str, key: str | None) -> FrameConnection:
        connection = self.server.connection()
        left, received = self.chance.randint(2, 12), connection.recv

        def recv(timeout: float | None = None) -> str | bytes:
            nonlocal left
            left -= 1
            if left == 0:
                self.num_cut += 1
                connection.go_silent() if self.is_silent else connection.cut()
            return received(timeout)

        connection.recv = recv  # type: ignore[method-assign]
        return FrameConnection(connection, url)


@pytest.mark.filterwarnings("ignore:The connection to .* is lost")
@pytest.mark.parametrize("is_silent", [False, True])
@pytest.mark.parametrize("drafts", ["none", "hints", "verify"])
def test_lost_connections_lose_and_repeat_nothing(
    device: Device, draft_server: DraftServer, hinted_engine: Engine, drafts: str, is_silent: bool
) -> None:
    sent = config(80, sampling=SAMPLED)
    wanted = alone(hinted_engine, "# tar", sent)
    server_tokenizer = hinted_engine.package.path("tokenizer.json")
    for seed in range(2):
        cut = Cut(draft_server, seed, is_silent)
        remote = device(drafts, connect=cut.connect, tokenizer=server_tokenizer)
        pieces = list(remote.stream("# tar", sent))
        assert [i for piece in pieces for i in piece.token_ids] == list(wanted.token_ids)
        assert "".join(piece.text for piece in pieces) == wanted.text
    assert cut.num_cut


@pytest.mark.long
def test_a_taken_slot_is_prefilled_again(device: Device, draft_server: DraftServer, hinted_engine: Engine) -> None:
    sent = config(60)
    wanted = [alone(hinted_engine, prompt, sent) for prompt in PROMPTS]
    for drafts in ("hints", "verify"):
        remote = device(drafts, reconnect_s=60)
        pieces = remote.stream("# tar", sent)
        came = [next(pieces)]
        draft_server.connections[-1].cut()
        draft_server.is_down = True  # for the device that comes back
        others = [
            RemoteEngine("http://x", connect=lambda url, key: FrameConnection(draft_server.connection(), url))
            for _ in range(3)
        ]
        with ThreadPoolExecutor(3) as threads:
            results = list(
                threads.map(lambda each: each[0].generate(each[1], sent), zip(others, PROMPTS[1:], strict=True))
            )
        for result, other in zip(results, wanted[1:], strict=True):
            check_same(result, other)
        draft_server.is_down = False
        came += pieces
        assert tuple(i for piece in came for i in piece.token_ids) == wanted[0].token_ids
        for each in others:
            each.close()


def test_a_forgotten_answer_is_requested_again(
    device: Device, draft_server: DraftServer, hinted_engine: Engine
) -> None:
    sent = config(60, sampling=SAMPLED)
    wanted = alone(hinted_engine, "# tar", sent)
    pieces = device("verify").stream("# tar", sent)
    came = [next(pieces)]
    draft_server.connections[-1].cut()
    draft_server.loop.call_soon_threadsafe(draft_server.answers.close)
    came += pieces
    assert tuple(i for piece in came for i in piece.token_ids) == wanted.token_ids


def test_a_server_that_stays_away_is_shown_in_one_sentence(device: Device, draft_server: DraftServer) -> None:
    remote = device(reconnect_s=0.2)
    pieces = remote.stream("# tar", config())
    next(pieces)
    draft_server.connections[-1].cut()
    draft_server.is_down = True
    with (
        pytest.raises(LostError, match=r"It was looked for 0\.2 seconds"),
        pytest.warns(RuntimeWarning, match=r"is lost.* It is looked for up to 0\.2 s\."),
    ):
        list(pieces)
    draft_server.is_down = False
    assert remote.generate("# tar", config(5)).finish_reason == "length"


def test_leaving_ends_it_on_the_server(device: Device, draft_server: DraftServer, hinted_engine: Engine) -> None:
    remote = device()
    pieces = remote.stream("# tar", config(300))
    next(pieces)
    pieces.close()
    for _ in range(600):
        if not len(draft_server.answers) and not hinted_engine.decoder.running:
            break
        threading.Event().wait(0.05)
    assert not len(draft_server.answers)
    assert remote.generate("# tar", config(5)).finish_reason == "length"  # over a new connection


def test_one_engine_gives_one_answer_at_a_time(device: Device) -> None:
    remote = device()
    pieces = remote.stream("# tar", config())
    next(pieces)
    with pytest.raises(BusyError, match="an answer already"):
        remote.generate("# tar")
    list(pieces)


def test_a_wrong_option_is_refused_in_one_sentence(device: Device, tmp_path: Path) -> None:
    remote = device()
    for prompt, sent, error, words in (
        ("", None, PromptError, "prompt is empty"),
        ([], None, PromptError, "list of messages"),
        (7, None, PromptError, "list of messages"),
        ([{"role": 3}], None, PromptError, "role' is 3, but must be one of"),
        ([{"role": "user", "content": [{"type": "image"}]}], None, PromptError, "image' is missing"),
        (Conversation([{"role": "user", "content": "a"}], [{"type": "function"}]), None, PromptError, "Tools"),
        ("# tar " * 9999, None, RemoteError, "frame may have|shorten|context"),
        ("# tar", GenerationConfig(wants_logprobs=True), ConfigError, "wants_logprobs"),
        ("# tar", GenerationConfig(grammar=Grammar("regex", "[")), RemoteError, "grammar"),
    ):
        with pytest.raises((error, PromptError), match=words):
            remote.generate(prompt, sent)  # type: ignore[arg-type]
    assert remote.generate("# tar", config(5)).finish_reason == "length"


def list_files(folder: str) -> list[str]:
    """The files of a folder."""
    return [folder]


def test_options_are_given_from_afar_too(device: Device, chat_engine: Engine) -> None:
    remote = device()
    assert remote.context_length == chat_engine.context_length
    answer = remote.generate("# tar", schema={"const": {"a": 7}}, max_tokens=40)
    assert answer.parsed == {"a": 7}
    assert answer.usage.completion_tokens == len(answer.token_ids)
    *_, last = remote.stream("# tar", max_tokens=4, temperature=0)
    assert last.result is not None
    assert last.result.text == chat_engine.generate("# tar", max_tokens=4, temperature=0).text
    with pytest.raises(PromptError, match="Tools cannot be declared over a link"):
        remote.generate("Hi", tools=[list_files])
    with pytest.raises(ConfigError, match="do you mean 'max_tokens'"):
        remote.generate("Hi", max_token=5)  # type: ignore[call-arg]
    remote.close()
    with pytest.raises(ClosedError, match="closed: connect another one"):
        remote.generate("# tar")


def test_what_is_no_engine_is_shown_in_one_sentence(device: Device, tmp_path: Path) -> None:
    other = tmp_path / "tokenizer.json"
    other.write_text("{}")
    for options, error, words in (
        ({"drafts": "all"}, ConfigError, "one of none, hints, verify"),
        ({"num_ahead": 9}, ConfigError, "num_ahead"),
        ({"reconnect_s": -1}, ConfigError, "reconnect_s"),
        ({"sources": DraftSources(draft_model="x")}, ConfigError, "history, workspace and datastores"),
        ({"tokenizer": other}, TokenizerError, "tokenizer"),
    ):
        with pytest.raises(error, match=words):
            device(**options)


def test_another_tokenizer_is_refused(device: Device, hinted_engine: Engine, tmp_path: Path) -> None:
    text = hinted_engine.tokenizer.to_json().replace('"add_prefix_space":false', '"add_prefix_space":true')
    assert text != hinted_engine.tokenizer.to_json()
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    assert Tokenizer.from_file(path).vocab_size == hinted_engine.tokenizer.vocab_size
    with pytest.raises(RemoteError, match="another one than that of 'demo'"):
        device(tokenizer=path)


@pytest.mark.long
def test_more_than_may_wait_is_refused(device: Device, draft_server: DraftServer, hinted_engine: Engine) -> None:
    running = [device().stream("# tar", config(300)) for _ in range(8)]
    with hinted_engine.working():  # nothing is decoded meanwhile
        threads = [threading.Thread(target=next, args=(pieces, None)) for pieces in running]
        for thread in threads:
            thread.start()
        answers = draft_server.answers
        for _ in range(600):
            if len(answers) == 8 and hinted_engine.decoder is not None:
                break
            threading.Event().wait(0.02)
        threading.Event().wait(0.3)
        with pytest.raises(BusyError, match="try again later"):
            device().generate("# tar")
    for thread in threads:
        thread.join()
    for pieces in running:
        pieces.close()
