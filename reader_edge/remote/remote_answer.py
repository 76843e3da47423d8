"""One answer of `run --server` at the client: receives tokens, sends drafts, and resumes after a lost connection."""

import secrets
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from msgspec import structs

from reader_edge.remote import frames
from reader_edge.remote.client_text import ClientText
from reader_edge.remote.connection import FrameConnection, LostError, Reconnect, RefusedError
from reader_edge.remote.frames import (
    Ask,
    Cancel,
    Drafted,
    End,
    FromClient,
    FromServer,
    Resume,
    Started,
    Tokens,
    Welcome,
)
from reader_edge.remote.settings import Settings, hash_of
from reader_edge_runtime.answer import Answer, GenerationChunk
from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.remote_drafts import MOST_NODES, RemoteTree
from reader_edge_runtime.errors import FrameError
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.text.tokenizer import Tokenizer

MakeText = Callable[[list[int], int, float], ClientText]


class RemoteAnswer:
    """token_ids: the prompt's; empty where the server is to tell them. make_text: gives what drafts for a text.

    Raises PromptError for token ids that can be no prompt.
    """

    def __init__(
        self,
        model: Welcome,
        tokenizer: Tokenizer,
        config: GenerationConfig,
        settings: Settings,
        mode: int,
        token_ids: list[int],
        make_text: MakeText,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._config = config
        self._make_text = make_text
        self._answer = None if settings.conversation else self._made(token_ids)
        ids = self._answer.request.token_ids if self._answer else []
        self._ask = Ask(secrets.token_bytes(frames.ANSWER_ID_BYTES), mode, settings.encoded(), list(ids))
        self._text: ClientText | None = None
        self._is_started = False  # over this link
        self._num_reported = 0  # tokens, over this link or known before it
        self._deviation: dict[str, Any] = {}

    def chunks(
        self, link: FrameConnection, linked: Callable[[], FrameConnection], reconnect_s: float
    ) -> Generator[GenerationChunk, None, FrameConnection]:
        """The answer as it comes; returns the link that it ended over. linked: makes another one where that is lost."""
        is_over = is_sound = is_taken_up = False
        reconnect = Reconnect(reconnect_s)
        try:
            to_send: list[FromClient] = [self._ask]
            while True:
                try:
                    for frame in to_send:
                        link.send(frame)
                    self._draft(link)
                    while not is_over:
                        # Without a limit: a long prompt, or others' answers, may take minutes before the next token.
                        is_over = self._take(link, link.receive())
                        self._draft(link)
                        yield from self._new_chunk(is_over)
                    is_sound = True
                    return link
                except LostError as error:
                    link.close()
                    link, is_taken_up = reconnect.find(linked, error, len(self._came)), True
                    to_send = [self._resuming()]
                except RefusedError as error:
                    if error.code != frames.ANSWER_GONE or not is_taken_up:
                        raise
                    is_taken_up = False
                    to_send = self._asking_again()
        except GeneratorExit:
            with suppress(LostError):
                link.send(Cancel())
            raise
        finally:
            if not is_sound:
                link.close()
            if self._text is not None:
                self._text.finish()

    @property
    def _came(self) -> list[int]:
        """The answer's tokens so far."""
        return [] if self._answer is None else self._answer.request.output_token_ids

    def _take(self, link: FrameConnection, frame: FromServer) -> bool:
        """Take a frame, and all others that are there; returns whether the answer is over."""
        while True:
            match frame:
                case Started() if not self._is_started:
                    self._is_started = True
                    self._answer = self._answer or self._made(frame.token_ids)
                    self._begin_text(link)  # while it is the prompt alone
                case Tokens() if self._answer is not None:
                    self._emit(self._answer, frame)
                case End() if self._answer is not None:
                    self._answer.request.finish_reason = frame.finish_reason
                    self._answer.request.stats = frame.stats
                    self._deviation = {} if frame.deviation is None else frame.deviation.for_users()
                    return True
                case _:
                    raise FrameError(f"The server sent a frame {type(frame).__name__} within an answer.")
            try:
                frame = link.receive(0)
            except TimeoutError:
                return False

    def _new_chunk(self, is_over: bool) -> Generator[GenerationChunk, None, None]:
        """The chunk that is there by now."""
        answer = self._answer
        if answer is None or (not is_over and not answer.request.is_running):
            return
        chunk = answer.take()
        if chunk is not None:
            result = chunk.result and replace(chunk.result, deviation=self._deviation)
            yield replace(chunk, deviation=self._deviation, result=result)

    def _emit(self, answer: Answer, tokens: Tokens) -> None:
        """Take tokens in, but for those that came before a connection was lost."""
        request = answer.request
        known = request.output_token_ids[tokens.num_before :][: len(tokens.token_ids)]
        if tokens.num_before > request.num_output_tokens or tokens.token_ids[: len(known)] != known:
            raise FrameError("The server's text is another one than before: ask again.")
        num_reported = tokens.num_before + len(tokens.token_ids)
        wanted = num_reported if request.is_running else min(num_reported, request.num_output_tokens)
        if wanted <= self._num_reported:
            raise FrameError("The server sent a frame that brings no token: ask again, or another server.")
        self._num_reported = num_reported
        for token_id in tokens.token_ids[len(known) :]:
            if token_id >= self._model.vocab_size:
                raise FrameError(f"The server sent token id {token_id}, of {self._model.vocab_size}.")
            if request.is_running:
                request.emit(token_id)

    def _draft(self, link: FrameConnection) -> None:
        """Send what this device drafts now."""
        self._begin_text(link)
        if self._text is not None and self._answer is not None and self._answer.request.is_running:
            for frame in self._text.frames():
                link.send(frame)

    def _begin_text(self, link: FrameConnection) -> None:
        if self._answer is not None and self._text is None and self._ask.mode != frames.NO_DRAFTS:
            self._text = self._make_text(self._answer.request.token_ids, self._ask.mode, link.round_trip_s)

    def _resuming(self) -> Resume:
        """The frame that takes the answer up."""
        if self._text is not None:
            self._text.lost()
        came = self._came
        self._is_started, self._num_reported = False, len(came)
        return Resume(self._ask.answer_id, len(came), hash_of(came))

    def _asking_again(self) -> list[FromClient]:
        """The frames that ask from the start where the server forgot the answer: a seed's tokens are the same again.

        What came already goes along as a hint, and so does whatever is drafted from then on.
        """
        came = self._came
        if came:
            self._ask = structs.replace(self._ask, mode=min(self._ask.mode, frames.HINTS))
        self._is_started, self._num_reported = False, 0
        to_send: list[FromClient] = [self._ask]
        if self._answer is not None and self._text is not None:
            request = self._answer.request
            if came:
                known = request.token_ids[request.num_prompt_tokens - 1 :][:MOST_NODES]
                tree = RemoteTree(request.num_prompt_tokens, DraftTree.chain(known))
                to_send.append(Drafted.of(tree, is_hint=True))
            self._text.finish()
            self._text = None
        return to_send

    def _made(self, token_ids: list[int]) -> Answer:
        return Answer(token_ids, self._config, cast(Manifest, self._model), self._tokenizer)
