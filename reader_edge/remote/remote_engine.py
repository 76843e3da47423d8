"""An engine whose model runs on a server, and which drafts from what lies on this device."""

import hashlib
import os
import tempfile
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Unpack, cast

from reader_edge.remote.client_text import ClientText, HintedText, VerifiedText
from reader_edge.remote.connection import FrameConnection, connected
from reader_edge.remote.frames import MODES, Welcome
from reader_edge.remote.remote_answer import RemoteAnswer
from reader_edge.remote.settings import Settings
from reader_edge_runtime.answer import GenerationChunk, GenerationResult
from reader_edge_runtime.call_options import GenerationOptions, given_config, with_options
from reader_edge_runtime.config import DraftConfig, GenerationConfig
from reader_edge_runtime.drafting.draft_sources import DraftSources
from reader_edge_runtime.drafting.drafter import Drafter, NoDrafter
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.drafting.sources.datastore.datastore import open_datastores
from reader_edge_runtime.drafting.sources.history_file import HistoryFile
from reader_edge_runtime.errors import BusyError, ClosedError, ConfigError, PromptError, RemoteError, TokenizerError
from reader_edge_runtime.generation_config import chosen_sampling
from reader_edge_runtime.package.manifest import TOKENIZER_NAME
from reader_edge_runtime.text.conversation import Conversation, Encodable
from reader_edge_runtime.text.image_parts import holds_images
from reader_edge_runtime.text.tokenizer import Tokenizer
from reader_edge_runtime.untrusted.config_checks import Range, number, require
from reader_edge_runtime.untrusted.user_input import given_path, short_repr

_DRAFT = DraftConfig(max_nodes=256, max_depth=255)
_AHEAD = Range(0, 4)
_RECONNECT_S = Range(0, 3600)

Connect = Callable[[str, str | None], FrameConnection]


class RemoteEngine:
    """Answers of a model behind `reader-edge serve`; the tokens are those that the server would give alone.

        with RemoteEngine("http://localhost:8000") as engine:
            print(engine.generate("# tar").text)

    url: the server's address. key: one of its API keys, where it asks for one.
    drafts: "hints" (the server decodes as usual, and takes what this device knows of the text if it comes in time),
        "verify" (the server verifies this device's trees and drafts nothing itself) or "none".
    sources: history, workspace and datastores on this device, to draft from besides the text.
    tokenizer: the model's tokenizer.json, or the folder that has it; fetched from the server where it is left out.
    num_ahead: with "verify", trees that are sent below guesses which have not come true yet, from 0 to 4.
    reconnect_s: how long a lost connection is looked for again within an answer. connect: makes links another way.
    model: what the server says of its model.

    One answer at a time. Raises RemoteError, ConfigError, TokenizerError, DatastoreError, HistoryError or
    InstallationError.
    """

    _is_closed = False

    def __init__(
        self,
        url: str,
        key: str | None = None,
        drafts: str = "hints",
        sources: DraftSources | None = None,
        tokenizer: str | os.PathLike[str] | None = None,
        num_ahead: int = 1,
        reconnect_s: float = 30.0,
        connect: Connect | None = None,
    ) -> None:
        require(isinstance(url, str), "url", url, "a text")
        require(isinstance(drafts, str) and drafts in MODES, "drafts", drafts, f"one of {', '.join(MODES)}")
        self._num_ahead = number("num_ahead", num_ahead, int, _AHEAD)
        self._reconnect_s = number("reconnect_s", reconnect_s, float, _RECONNECT_S)
        self._url, self._key, self._drafts = url, key, drafts
        self._connect = connect or connected
        drafted_from = given_config(sources, DraftSources, "sources")
        if drafted_from.draft_model or drafted_from.extra:
            raise ConfigError("A device drafts from its history, workspace and datastores: leave other sources out.")
        self._lock = threading.Lock()
        self._link: FrameConnection | None = None
        local = None if tokenizer is None else _local_tokenizer(given_path(tokenizer, "tokenizer"))
        self._hash = b"" if local is None else tokenizer_hash(local)
        link = self._connect(url, key)
        try:
            self.model = link.greet(self._hash)
            self.tokenizer = local or _fetched_tokenizer(self.model, link)
            self._hash = tokenizer_hash(self.tokenizer)
            self._drafter = self._made_drafter(drafted_from)
        except BaseException:
            link.close()
            raise
        self._link = link

    @property
    def context_length(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        return self.model.max_context

    def generate(
        self, prompt: Encodable, config: GenerationConfig | None = None, **options: Unpack[GenerationOptions]
    ) -> GenerationResult:
        """Answer one prompt. options: as of `Engine.generate`.

        Raises PromptError, ConfigError, BusyError, RemoteError, or ClosedError.
        """
        return GenerationResult.of_chunks(list(self.stream(prompt, config, **options)))

    def stream(
        self, prompt: Encodable, config: GenerationConfig | None = None, **options: Unpack[GenerationOptions]
    ) -> Generator[GenerationChunk, None, None]:
        """Answer one prompt piece by piece; closing the iterator early ends the request. Errors: see `generate`."""
        prompt, given = with_options(prompt, config, options, self.model.sampling, splits_thinking=False)
        if given.sampling is None:
            given = replace(given, sampling=chosen_sampling(self.model.sampling, {}))
        content, token_ids = _content(prompt), []
        settings = Settings.of(given, content if isinstance(content, Conversation) else None)
        if not isinstance(content, Conversation):
            token_ids = self.tokenizer.encode(content) if isinstance(content, str) else content
        mode = self._drafts if given.is_drafted and not holds_images(content) else "none"
        answer = RemoteAnswer(self.model, self.tokenizer, given, settings, MODES[mode], token_ids, self._text)
        return self._chunks(answer)

    def forget(self) -> None:
        """Drop the drafting history of past answers on this device."""
        self._drafter.forget()

    def close(self) -> None:
        """Say goodbye to the server."""
        self._is_closed = True
        if self._link is not None:
            self._link.close()
            self._link = None

    def __enter__(self) -> "RemoteEngine":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _chunks(self, answer: RemoteAnswer) -> Generator[GenerationChunk, None, None]:
        if self._is_closed:
            raise ClosedError("This engine is closed: connect another one.")
        if not self._lock.acquire(blocking=False):
            raise BusyError("This engine gives an answer already: wait for its end, or connect another one.")
        try:
            link = self._link or self._linked()
            self._link = None  # until it is known to be sound again
            self._link = yield from answer.chunks(link, self._linked, self._reconnect_s)
        finally:
            self._lock.release()

    def _linked(self) -> FrameConnection:
        """A new link to the same model. Raises RemoteError."""
        link = self._connect(self._url, self._key)
        try:
            model = link.greet(self._hash)
            if (model.vocab_size, model.max_context) != (self.model.vocab_size, self.model.max_context):
                raise RemoteError(f"{self._url} serves another model than before: connect a new engine.")
        except BaseException:
            link.close()
            raise
        return link

    def _text(self, token_ids: list[int], mode: int, round_trip_s: float) -> ClientText:
        """What is drafted for an answer."""
        if mode == MODES["hints"]:
            return HintedText(self._drafter, token_ids)
        return VerifiedText(self._drafter, token_ids, self.model.pass_s, round_trip_s, self._num_ahead)

    def _made_drafter(self, sources: DraftSources) -> Drafter:
        if self._drafts == "none":  # which loads nothing
            return NoDrafter()
        fingerprint, vocab_size = self.tokenizer.fingerprint(), self.model.vocab_size
        opened = open_datastores(sources.datastores, fingerprint, vocab_size) if sources.datastores else []
        file = None
        if sources.history is not None:
            file = HistoryFile(Path(sources.history), bytes.fromhex(fingerprint), _DRAFT.max_history_tokens, vocab_size)
        further = []
        if sources.workspace is not None:
            from reader_edge_runtime.drafting.sources.workspace.watcher import follow

            further.append(follow(sources.workspace, self.tokenizer))
        drafter = RetrievalDrafter(_DRAFT, further, opened, file)
        drafter.loaded_core()
        return drafter


def _fetched_tokenizer(model: Welcome, link: FrameConnection) -> Tokenizer:
    """Raises RemoteError where what comes is not what was announced, or broken."""
    data = link.fetch(model.tokenizer_bytes)
    with tempfile.TemporaryDirectory(prefix="reader-edge-") as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(data)
        try:
            tokenizer = Tokenizer.from_file(path)
        except TokenizerError:  # which names a file that is gone then
            sentence = f"The server sent a tokenizer of {short_repr(model.model)} that cannot be read."
            raise RemoteError(sentence) from None
    if tokenizer_hash(tokenizer) != model.tokenizer:
        raise RemoteError(f"The tokenizer of {short_repr(model.model)} came damaged: connect again.")
    return tokenizer


def tokenizer_hash(tokenizer: Tokenizer) -> bytes:
    """SHA-256 of a tokenizer in the library's form, by which both sides know that they mean the same tokens."""
    return hashlib.sha256(tokenizer.to_json().encode()).digest()


def _local_tokenizer(path: Path) -> Tokenizer:
    """Of a file, or of a package or another folder that has one. Raises TokenizerError."""
    file = path / TOKENIZER_NAME if path.is_dir() else path
    if not file.exists():
        raise TokenizerError(f"No tokenizer at '{file}': give a tokenizer.json, or a folder that has it.")
    return Tokenizer.from_file(file)


def _content(prompt: Encodable) -> str | list[int] | Conversation:
    """A prompt as it is sent: a text, token ids, or a conversation. Raises PromptError."""
    if isinstance(prompt, str | Conversation):
        return prompt
    if not isinstance(prompt, list | tuple) or not prompt:
        raise PromptError(f"A prompt is a text or a list of messages, got {short_repr(prompt)}.")
    if isinstance(prompt[0], Integral):
        return cast(list[int], list(prompt))
    return Conversation(prompt)
