"""One answer from afar: tokens come, drafts go, and a lost connection is taken up where it was."""

import secrets
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from reader_edge.remote import frames
from reader_edge.remote.device_text import DeviceText
from reader_edge.remote.frames import Ask, FrameError, Reader, Resume, Tokens
from reader_edge.remote.link import Link, LostError, RefusedError
from reader_edge.remote.patience import Patience
from reader_edge.remote.remote_model import RemoteModel
from reader_edge.remote.settings import deviation_of, hash_of, stats_of
from reader_edge_runtime.answer import Answer, GenerationChunk
from reader_edge_runtime.config import GenerationConfig
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import MOST_NODES, DeviceTree
from reader_edge_runtime.outside.user_input import shown
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.text.tokenizer import Tokenizer

_ENDS = ("stop", "length", "context", "cancelled")

MakeText = Callable[[list[int], int, float], DeviceText]


class RemoteAnswer:
    """token_ids: the prompt's; empty where the server is to tell them. make_text: gives what drafts for a text.

    Raises PromptError for token ids that can be no prompt.
    """

    def __init__(
        self,
        model: RemoteModel,
        tokenizer: Tokenizer,
        config: GenerationConfig,
        settings: dict[str, Any],
        mode: int,
        token_ids: list[int],
        make_text: MakeText,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._config = config
        self._make_text = make_text
        self._answer = None if "conversation" in settings else self._made(token_ids)
        ids = self._answer.request.token_ids if self._answer else []
        self._ask = Ask(secrets.token_bytes(frames.ANSWER_ID_BYTES), mode, settings, list(ids))
        self._text: DeviceText | None = None
        self._is_started = False  # over this link
        self._num_told = 0  # tokens, over this link or known before it
        self._deviation: dict[str, Any] = {}

    def chunks(
        self, link: Link, linked: Callable[[], Link], patience_s: float
    ) -> Generator[GenerationChunk, None, Link]:
        """The answer as it comes; returns the link that it ended over. linked: makes another one where that is lost."""
        is_over = is_sound = is_taken_up = False
        patience = Patience(patience_s)
        try:
            asked = [self._ask.packed()]
            while True:
                try:
                    for data in asked:
                        link.send(data)
                    self._draft(link)
                    while not is_over:
                        # Without a limit: a long prompt, or others' answers, may take minutes before the next token.
                        is_over = self._take(link, *link.receive())
                        self._draft(link)
                        yield from self._told(is_over)
                    is_sound = True
                    return link
                except LostError as error:
                    link.close()
                    link, is_taken_up = patience.find(linked, error, len(self._came)), True
                    asked = [self._resuming()]
                except RefusedError as error:
                    if error.code != frames.ANSWER_GONE or not is_taken_up:
                        raise
                    is_taken_up = False
                    asked = self._asking_again()
        except GeneratorExit:
            self._cancel(link)
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

    def _take(self, link: Link, kind: int, reader: Reader) -> bool:
        """Take a frame, and all others that are there; returns whether the answer is over."""
        while True:
            if kind == frames.STARTED and not self._is_started:
                self._is_started = True
                token_ids = reader.token_ids()
                self._answer = self._answer or self._made(token_ids)
                self._begin_text(link)  # while it is the prompt alone
            elif kind == frames.TOKENS and self._answer is not None:
                self._emit(self._answer, Tokens.unpacked(reader))
            elif kind == frames.END and self._answer is not None:
                self._end(self._answer, reader.facts())
                return True
            else:
                raise FrameError(f"The server sent a frame of kind {kind} within an answer.")
            reader.end()
            try:
                kind, reader = link.receive(0)
            except TimeoutError:
                return False

    def _told(self, is_over: bool) -> Generator[GenerationChunk, None, None]:
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
        num_told = tokens.num_before + len(tokens.token_ids)
        wanted = num_told if request.is_running else min(num_told, request.num_output_tokens)
        if wanted <= self._num_told:
            raise FrameError("The server sent a frame that brings no token: ask again, or another server.")
        self._num_told = num_told
        for token_id in tokens.token_ids[len(known) :]:
            if token_id >= self._model.vocab_size:
                raise FrameError(f"The server sent token id {token_id}, of {self._model.vocab_size}.")
            if request.is_running:
                request.emit(token_id)

    def _end(self, answer: Answer, facts: dict[str, Any]) -> None:
        reason = facts.get("finish_reason")
        if reason not in _ENDS:
            raise FrameError(f"The server ended an answer by {shown(reason)}.")
        answer.request.finish_reason = reason
        answer.request.stats = stats_of(facts.get("stats"))
        self._deviation = deviation_of(facts.get("deviation", {}))

    def _draft(self, link: Link) -> None:
        """Send what this device drafts now."""
        self._begin_text(link)
        if self._text is not None and self._answer is not None and self._answer.request.is_running:
            for data in self._text.frames():
                link.send(data)

    def _begin_text(self, link: Link) -> None:
        if self._answer is not None and self._text is None and self._ask.mode != frames.NO_DRAFTS:
            self._text = self._make_text(self._answer.request.token_ids, self._ask.mode, link.round_trip_s)

    def _resuming(self) -> bytes:
        """The frame that takes the answer up."""
        if self._text is not None:
            self._text.lost()
        came = self._came
        self._is_started, self._num_told = False, len(came)
        return Resume(self._ask.answer_id, len(came), hash_of(came)).packed()

    def _asking_again(self) -> list[bytes]:
        """The frames that ask from the start where the server forgot the answer: a seed's tokens are the same again.

        What came already goes along as a hint, and so does whatever is drafted from then on.
        """
        came = self._came
        if came:
            self._ask = self._ask._replace(mode=min(self._ask.mode, frames.HINTS))
        self._is_started, self._num_told = False, 0
        asked = [self._ask.packed()]
        if self._answer is not None and self._text is not None:
            request = self._answer.request
            if came:
                known = request.token_ids[request.num_prompt_tokens - 1 :][:MOST_NODES]
                tree = DeviceTree(request.num_prompt_tokens, DraftTree.chain(known))
                asked.append(frames.packed_tree(frames.HINT, tree))
            self._text.finish()
            self._text = None
        return asked

    def _cancel(self, link: Link) -> None:
        """Want no more."""
        with suppress(LostError):
            link.send(frames.frame(frames.CANCEL))

    def _made(self, token_ids: list[int]) -> Answer:
        return Answer(token_ids, self._config, cast(Manifest, self._model), self._tokenizer)
