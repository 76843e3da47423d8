"""The WebSocket at `/v1/draft`: a handshake, then answers one after the other, drafted for by the device that asks."""

import asyncio
import hashlib
import logging
from dataclasses import replace
from functools import cached_property
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from reader_edge.remote import frames
from reader_edge.remote.frames import Ask, FrameError, Reader, Resume
from reader_edge.remote.settings import config_of, conversation_of
from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.draft.kept_answer import KeptAnswer
from reader_edge.server.draft.kept_answers import KeptAnswers, own_id
from reader_edge.server.http.request_log import LEFT_STATUS, RequestNote, note_of, public_sentence
from reader_edge.server.metrics import Metrics
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from reader_edge_runtime.drafting.device_drafts import DeviceDrafts
from reader_edge_runtime.errors import ReaderEdgeError

_MAX_CONNECTIONS = 256
_GREETING_S = 10.0
_IDLE_S = 600.0  # between answers
_LAST_WORD_S = 1.0  # for what a device said before it left
_PART_BYTES = 1 << 18  # of the tokenizer in a frame
_DRAFTS_A_TOKEN = 8  # that a device may send; one that keeps to its turn sends 5 at most
_SPARE_DRAFTS = 64  # besides, over one connection
_ASKING = {frames.ASK: "ASK", frames.RESUME: "RESUME"}  # and what the log calls them
_LATE = (frames.HINT, frames.TREE, frames.CANCEL)  # what may come behind an answer's end
_FAULT_CODE, _END_CODE = 1008, 1000  # of WebSockets: a peer that does what it may not, and a plain end
_TYPICAL_PAST = 256  # rows at which a device is told what passes take

_LOG = logging.getLogger(__name__)


class DraftEndpoint:
    """A route's handler."""

    def __init__(self, engine: AsyncEngine, settings: ServerSettings, metrics: Metrics) -> None:
        self.answers = KeptAnswers(settings.max_away_s)
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._num_connections = 0

    async def __call__(self, websocket: WebSocket) -> None:
        await websocket.accept()
        self._num_connections += 1
        try:
            if self._num_connections > _MAX_CONNECTIONS:
                raise ApiError(503, f"{_MAX_CONNECTIONS} devices are connected already: try again later.")
            await self._greet(websocket)
            while True:
                await self._serve(websocket)
        except (WebSocketDisconnect, WebSocketDisconnected):
            pass
        except Exception as error:
            await _refuse(websocket, error, note_of(websocket.scope))
            await _close(websocket, _FAULT_CODE if isinstance(error, ReaderEdgeError) else _END_CODE)
        finally:
            self._num_connections -= 1

    @cached_property
    def _tokenizer(self) -> bytes:
        return self._engine.engine.tokenizer.to_json().encode()

    @cached_property
    def _tokenizer_hash(self) -> bytes:
        return hashlib.sha256(self._tokenizer).digest()

    async def _greet(self, websocket: WebSocket) -> None:
        """Raises FrameError for another version, ApiError for another tokenizer."""
        try:
            kind, reader = await _received(websocket, _GREETING_S)
        except TimeoutError:
            raise FrameError(f"No greeting came within {_GREETING_S:g} seconds.") from None
        if kind != frames.HELLO:
            raise FrameError("The first frame is no greeting.")
        own_hash = reader.rest()
        if own_hash not in (b"", self._tokenizer_hash):
            raise ApiError(
                409,
                f"The tokenizer of this device is another one than that of {self._settings.model_name!r}: leave it "
                "out, and the server's is fetched.",
                code="other_tokenizer",
            )
        await websocket.send_bytes(frames.packed_facts(frames.WELCOME, self._facts()))

    def _facts(self) -> dict[str, object]:
        """What a device has to know of the model."""
        engine = self._engine.engine
        manifest, permission, times = engine.package.manifest, engine.draft_permission, engine.decoder.planner.times
        return {
            "model": self._settings.model_name,
            "tokenizer": self._tokenizer_hash.hex(),
            "tokenizer_bytes": len(self._tokenizer),
            "vocab_size": manifest.vocab_size,
            "max_context": manifest.max_context,
            "eos_token_ids": list(manifest.eos_token_ids),
            "has_chat_template": engine.tokenizer.has_chat_template,
            "sampling": dict(engine.sampling),
            "drafts": permission.scope,
            "pass_s": times.seconds(1, _TYPICAL_PAST)[1:] if times.is_measured else [],
        }

    async def _serve(self, websocket: WebSocket) -> None:
        """Answer one frame; a request that is refused leaves the connection as it was."""
        try:
            kind, reader = await _received(websocket, _IDLE_S)
        except TimeoutError:
            raise ApiError(408, f"Nothing was asked for {_IDLE_S:g} seconds: connect again.") from None
        if kind == frames.FETCH:
            await self._send_tokenizer(websocket)
        elif kind in _ASKING:
            await self._serve_answer(websocket, kind, reader)
        elif kind not in _LATE:
            raise FrameError(f"A frame of kind {kind} has no place here.")

    async def _serve_answer(self, websocket: WebSocket, kind: int, reader: Reader) -> None:
        """An answer that is asked for or taken up, and its line of the log."""
        note = note_of(websocket.scope).within(_ASKING[kind])
        note.model = self._settings.model_name
        caller = websocket.scope.get("caller", "")
        try:
            if kind == frames.ASK:
                ask = Ask.unpacked(reader)
                reader.end()
                note.read_prompt({"prompt": ask.token_ids or None, "messages": ask.settings.get("conversation")})
                answer_id, num_sent = own_id(caller, ask.answer_id), 0
                answer = self._begun(ask, caller)
            else:
                resume = Resume.unpacked(reader)
                reader.end()
                answer_id, num_sent = own_id(caller, resume.answer_id), resume.num_tokens
                answer = self.answers.taken_up(answer_id, resume)
            note.usage = answer.usage
            await self._answer(websocket, answer_id, answer, num_sent, note)
        except (WebSocketDisconnect, WebSocketDisconnected):
            note.leave()
            raise
        except FrameError as error:
            _of_frame(error).note(note)
            raise
        except ReaderEdgeError as error:
            await _refuse(websocket, error, note)
            self._metrics.count_request(frames.DRAFT_PATH, api_error(error).status)
        except BaseException as error:
            note.break_off(error)
            raise
        finally:
            note.write()

    async def _send_tokenizer(self, websocket: WebSocket) -> None:
        for start in range(0, len(self._tokenizer), _PART_BYTES):
            await websocket.send_bytes(frames.frame(frames.PART, self._tokenizer[start : start + _PART_BYTES]))

    def _begun(self, ask: Ask, caller: str) -> KeptAnswer:
        """The answer that is asked for, begun. Raises ApiError and ConfigError."""
        answer_id = own_id(caller, ask.answer_id)
        self.answers.check_new(answer_id)
        settings: dict[str, Any] = dict(ask.settings)
        chat = settings.pop("conversation", None)
        config = config_of(settings)
        max_tokens, _ = self._settings.allowed_tokens("max_tokens", config.max_tokens)
        salt = self._settings.salt(caller, config.cache_salt)
        config = replace(config, max_tokens=max_tokens, cache_salt=salt)
        permission = self._engine.engine.draft_permission
        if ask.mode == frames.VERIFY and not (permission.is_on and config.is_drafted):
            reason = permission.reason if not permission.is_on else "the request is not to be drafted"
            raise ApiError(400, f"No drafts are verified here, since {reason}: ask with hints, or without drafts.")
        device = DeviceDrafts(ask.mode == frames.VERIFY)
        prompt = ask.token_ids if chat is None else conversation_of(chat)
        stream = self._engine.stream(prompt, config, device=device)
        answer = KeptAnswer(stream, device, chat is not None, self._settings.max_answer_s, self._metrics)
        self.answers.add(answer_id, answer)
        return answer

    async def _answer(
        self, websocket: WebSocket, answer_id: bytes, answer: KeptAnswer, num_sent: int, note: RequestNote
    ) -> None:
        """Send an answer while its device drafts for it. Raises WebSocketDisconnect, and what the answer failed of."""
        reader = answer.reader = asyncio.ensure_future(answer.send(websocket.send_bytes, num_sent))
        listener = asyncio.ensure_future(self._listen(websocket, answer))
        is_kept = True
        try:
            await asyncio.wait((reader, listener), return_when=asyncio.FIRST_COMPLETED)
            if reader.cancelled():
                raise ApiError(
                    409,
                    "The rest of this answer goes to another connection, which took it up later: ask again here.",
                    code=frames.ANSWER_TAKEN,
                )
            if reader.done() and isinstance(reader.exception(), _GONE):
                await asyncio.wait((listener,), timeout=_LAST_WORD_S)  # it may have said that it wants no more
            if listener.done() and listener.exception() is None:
                is_kept = False
                note.refuse(LEFT_STATUS, "The device wanted no more.")
                await websocket.send_bytes(answer.end("cancelled"))
                return
            if reader.done():
                is_kept = reader.exception() is None or isinstance(reader.exception(), _GONE)
                reader.result()
                note.status = 200
                self._metrics.count_request(frames.DRAFT_PATH, 200)
                return
            listener.result()
        finally:
            for task in (reader, listener):
                task.cancel()
            await asyncio.gather(reader, listener, return_exceptions=True)
            if answer.reader is reader:
                answer.reader = None
                if is_kept:
                    self.answers.leave(answer_id)
                else:
                    self.answers.drop(answer_id)

    async def _listen(self, websocket: WebSocket, answer: KeptAnswer) -> None:
        """Take what a device drafts, until it wants no more. Raises FrameError and WebSocketDisconnect."""
        vocab_size = self._engine.engine.package.manifest.vocab_size
        num_before, num_drafts = len(answer.token_ids), 0
        while True:
            kind, reader = await _received(websocket)
            if kind == frames.CANCEL:
                return
            if kind not in (frames.HINT, frames.TREE):
                raise FrameError(f"A frame of kind {kind} has no place within an answer.")
            num_drafts += 1
            if num_drafts > _SPARE_DRAFTS + _DRAFTS_A_TOKEN * (len(answer.token_ids) - num_before):
                raise FrameError(f"A device sent {num_drafts} drafts, more than a text takes that is not longer.")
            drafted = frames.unpacked_tree(kind, reader)
            reader.end()
            try:
                drafted.tree.check(drafted.tree.token_ids[0], vocab_size, len(drafted.tree))
            except ReaderEdgeError as error:
                raise FrameError(str(error)) from None
            if answer.device.is_lockstep == (kind == frames.TREE):
                answer.device.leave(drafted)


_GONE = (WebSocketDisconnect, WebSocketDisconnected)


async def _received(websocket: WebSocket, max_s: float | None = None) -> tuple[int, Reader]:
    """The kind of the next frame, and what reads it. Raises FrameError, WebSocketDisconnect and TimeoutError."""
    async with asyncio.timeout(max_s):
        message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    return frames.opened(message.get("bytes") or message.get("text") or b"")


def _of_frame(error: FrameError) -> ApiError:
    return ApiError(400, str(error), code="frame", public=public_sentence(error))


async def _refuse(websocket: WebSocket, error: Exception, note: RequestNote) -> None:
    """Say what keeps a request from its answer, to whoever is there still, and to the log."""
    refusal = _of_frame(error) if isinstance(error, FrameError) else api_error(error)
    refusal.note(note)
    facts: dict[str, object] = {"status": refusal.status, "message": str(refusal), "code": refusal.code}
    try:
        await websocket.send_bytes(frames.packed_facts(frames.REFUSAL, facts))
    except (*_GONE, RuntimeError):
        _LOG.debug("A device left before it was refused.")


async def _close(websocket: WebSocket, code: int) -> None:
    try:
        await websocket.close(code)
    except (*_GONE, RuntimeError):
        _LOG.debug("A device left before it was closed.")
