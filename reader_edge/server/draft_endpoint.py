"""The WebSocket at `/v1/draft`: a handshake, then one answer after another, drafted for by the remote client."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property, partial

from msgspec import structs
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketDisconnected

from reader_edge.remote import frames
from reader_edge.remote.frames import (
    CLIENT_FRAMES,
    SERVER_FRAMES,
    Ask,
    Cancel,
    Drafted,
    Fetch,
    FromClient,
    FromServer,
    Hello,
    Refusal,
    Resume,
    SettingsPart,
    TokenizerPart,
    Welcome,
)
from reader_edge.remote.settings import Settings
from reader_edge.server.api_error import ApiError, api_error
from reader_edge.server.metrics import Metrics
from reader_edge.server.request_log import LEFT_STATUS, RequestNote, note_of, public_sentence
from reader_edge.server.resumable_answers import ResumableAnswer, ResumableAnswers, own_id
from reader_edge.server.settings import ServerSettings
from reader_edge_runtime import AsyncEngine
from reader_edge_runtime.drafting.remote_drafts import RemoteDrafts
from reader_edge_runtime.errors import FrameError, ReaderEdgeError

_MAX_CONNECTIONS = 256
_GREETING_S = 10.0
_IDLE_S = 600.0  # between answers
_LAST_WORD_S = 1.0  # for the frames of a client from before it left
_PART_BYTES = 1 << 18  # of the tokenizer in a frame
_DRAFTS_A_TOKEN = 8  # that a client may send; one that keeps to its turn sends 5 at most
_SPARE_DRAFTS = 64  # besides, over one connection
_FAULT_CODE, _END_CODE = 1008, 1000  # of WebSockets: a peer that does what it may not, and a plain end
_TYPICAL_PAST = 256  # rows at which a client gets the time of passes

_LOG = logging.getLogger(__name__)


class DraftEndpoint:
    """A route's handler. on_end: called at the end of each answer."""

    def __init__(
        self,
        engine: AsyncEngine,
        settings: ServerSettings,
        metrics: Metrics,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self.answers = ResumableAnswers(settings.max_away_s)
        self._engine = engine
        self._settings = settings
        self._metrics = metrics
        self._on_end = on_end
        self._num_part_bytes = 0  # of all connections
        self._connections: set[WebSocket] = set()

    async def close(self) -> None:
        """Forget all answers, and end all connections."""
        self.answers.close()
        if closing := [asyncio.ensure_future(_close(each, _END_CODE)) for each in self._connections]:
            await asyncio.wait(closing, timeout=_LAST_WORD_S)

    async def __call__(self, websocket: WebSocket) -> None:
        self._connections.add(websocket)
        try:
            await websocket.accept()
            if len(self._connections) > _MAX_CONNECTIONS:
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
            self._connections.discard(websocket)

    @cached_property
    def _tokenizer(self) -> bytes:
        return self._engine.engine.tokenizer.to_json().encode()

    @cached_property
    def _tokenizer_hash(self) -> bytes:
        return hashlib.sha256(self._tokenizer).digest()

    async def _greet(self, websocket: WebSocket) -> None:
        """Raises FrameError for another version, ApiError for another tokenizer."""
        try:
            hello = await _received(websocket, _GREETING_S)
        except TimeoutError:
            raise FrameError(f"No greeting came within {_GREETING_S:g} seconds.") from None
        if not isinstance(hello, Hello):
            raise FrameError("The first frame is no greeting.")
        if hello.tokenizer_hash not in (b"", self._tokenizer_hash):
            raise ApiError(
                409,
                f"The tokenizer of this device is another one than that of {self._settings.model_name!r}: leave it "
                "out, and the server's is fetched.",
                code="other_tokenizer",
            )
        await _send(websocket, self._welcome())

    def _welcome(self) -> Welcome:
        """What a client has to know of the model."""
        engine = self._engine.engine
        manifest, permission, times = engine.package.manifest, engine.draft_permission, engine.decoder.planner.times
        return Welcome(
            model=self._settings.model_name,
            tokenizer=self._tokenizer_hash,
            tokenizer_bytes=len(self._tokenizer),
            vocab_size=manifest.vocab_size,
            max_context=manifest.max_context,
            eos_token_ids=tuple(manifest.eos_token_ids),
            has_chat_template=engine.tokenizer.has_chat_template,
            drafts=permission.scope,
            pass_s=tuple(times.seconds([_TYPICAL_PAST])[1:]) if times.is_measured else (),
            sampling=dict(engine.sampling),
        )

    async def _serve(self, websocket: WebSocket) -> None:
        """Answer one frame; a request that is refused leaves the connection as it was."""
        try:
            frame = await _received(websocket, _IDLE_S)
        except TimeoutError:
            raise ApiError(408, f"No request came for {_IDLE_S:g} seconds: connect again.") from None
        if isinstance(frame, SettingsPart):
            await self._serve_parts(websocket, frame)
        elif isinstance(frame, Fetch):
            await self._send_tokenizer(websocket)
        elif isinstance(frame, Ask | Resume):
            await self._serve_answer(websocket, frame)
        elif not isinstance(frame, Drafted | Cancel):  # which may come behind an answer's end
            raise FrameError(f"A frame {type(frame).__name__} has no place here.")

    async def _serve_parts(self, websocket: WebSocket, frame: FromClient) -> None:
        """Answer a request whose settings come in parts. Those that find no room are read, and refused at their end."""
        parts, max_s, refusal = bytearray(), self._settings.max_body_s, None
        try:
            try:
                async with asyncio.timeout(max_s):
                    while isinstance(frame, SettingsPart):
                        refusal = refusal or self._refusal_of_part(len(parts), len(frame.data))
                        if refusal is None:
                            parts += frame.data
                            self._num_part_bytes += len(frame.data)
                        frame = await _received(websocket)
            except TimeoutError:
                sentence = f"The request took longer than {max_s:g} seconds to come: send it at once."
                raise ApiError(408, sentence) from None
            if not isinstance(frame, Ask):
                raise FrameError(f"A frame {type(frame).__name__} has no place behind parts of settings.")
            await self._serve_answer(websocket, structs.replace(frame, settings=bytes(parts) + frame.settings), refusal)
        finally:
            self._num_part_bytes -= len(parts)

    def _refusal_of_part(self, num_before: int, num_bytes: int) -> ApiError | None:
        most = self._settings.max_body_bytes
        if num_before + num_bytes > most:
            return ApiError(413, f"The request has more than the {most} bytes that it may have: give smaller images.")
        if self._num_part_bytes + num_bytes > self._settings.max_bodies_bytes:
            return ApiError(429, "Others' requests leave no room for this one: try again later.", code="queue_full")
        return None

    async def _serve_answer(self, websocket: WebSocket, frame: Ask | Resume, refusal: ApiError | None = None) -> None:
        """An answer that is requested or taken up, and its line of the log. refusal: why there is none."""
        note = note_of(websocket.scope).within(type(frame).__name__.upper())
        note.model = self._settings.model_name
        caller = websocket.scope.get("caller", "")
        try:
            answer_id = own_id(caller, frame.answer_id)
            if refusal is not None:
                raise refusal
            if isinstance(frame, Ask):
                settings, num_sent = Settings.decoded(frame.settings), 0
                messages = settings.conversation and settings.conversation.messages
                note.read_prompt({"prompt": frame.token_ids or None, "messages": messages})
                answer = self._begun(answer_id, frame, settings, caller)
            else:
                num_sent = frame.num_tokens
                answer = self.answers.taken_up(answer_id, frame)
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
            self._on_end()
            note.write()

    async def _send_tokenizer(self, websocket: WebSocket) -> None:
        for start in range(0, len(self._tokenizer), _PART_BYTES):
            await _send(websocket, TokenizerPart(self._tokenizer[start : start + _PART_BYTES]))

    def _begun(self, answer_id: bytes, ask: Ask, settings: Settings, caller: str) -> ResumableAnswer:
        """The answer that is requested, begun. Raises ApiError and ConfigError."""
        self.answers.check_new(answer_id)
        config, chat = settings.config(), settings.chat()
        max_tokens, _ = self._settings.allowed_tokens("max_tokens", config.max_tokens)
        salt = self._settings.salt(caller, config.cache_salt)
        config = replace(config, max_tokens=max_tokens, cache_salt=salt)
        permission = self._engine.engine.draft_permission
        if ask.mode == frames.VERIFY and not (permission.is_on and config.is_drafted):
            reason = permission.reason if not permission.is_on else "the request is not to be drafted"
            raise ApiError(400, f"No drafts are verified here, since {reason}: ask with hints, or without drafts.")
        device = RemoteDrafts(ask.mode == frames.VERIFY)
        prompt = ask.token_ids if chat is None else chat
        stream = self._engine.stream(prompt, config, device=device)
        answer = ResumableAnswer(stream, device, chat is not None, self._settings.max_answer_s, self._metrics)
        self.answers.add(answer_id, answer)
        return answer

    async def _answer(
        self, websocket: WebSocket, answer_id: bytes, answer: ResumableAnswer, num_sent: int, note: RequestNote
    ) -> None:
        """Send an answer while its client drafts for it. Raises WebSocketDisconnect, and what the answer failed of."""
        reader = answer.reader = asyncio.ensure_future(answer.send(partial(_send, websocket), num_sent))
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
                await asyncio.wait((listener,), timeout=_LAST_WORD_S)  # its last frame may want no more
            if listener.done() and listener.exception() is None:
                is_kept = False
                note.refuse(LEFT_STATUS, "The device wanted no more.")
                await _send(websocket, answer.end("cancelled"))
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

    async def _listen(self, websocket: WebSocket, answer: ResumableAnswer) -> None:
        """Take what a client drafts, until it wants no more. Raises FrameError and WebSocketDisconnect."""
        vocab_size = self._engine.engine.package.manifest.vocab_size
        num_before, num_drafts = len(answer.token_ids), 0
        while True:
            frame = await _received(websocket)
            if isinstance(frame, Cancel):
                return
            if not isinstance(frame, Drafted):
                raise FrameError(f"A frame {type(frame).__name__} has no place within an answer.")
            num_drafts += 1
            if num_drafts > _SPARE_DRAFTS + _DRAFTS_A_TOKEN * (len(answer.token_ids) - num_before):
                raise FrameError(f"A device sent {num_drafts} drafts, more than a text takes that is not longer.")
            drafted = frame.tree()
            try:
                drafted.tree.check(drafted.tree.token_ids[0], vocab_size, len(drafted.tree))
            except ReaderEdgeError as error:
                raise FrameError(str(error)) from None
            if answer.remote.is_lockstep != frame.is_hint:
                answer.remote.leave(drafted)


async def refuse_socket(websocket: WebSocket, error: Exception) -> None:
    """Refuse a client for whose answers there is no model."""
    await websocket.accept()
    await _refuse(websocket, error, note_of(websocket.scope))
    await _close(websocket, _END_CODE)


_GONE = (WebSocketDisconnect, WebSocketDisconnected)


async def _received(websocket: WebSocket, max_s: float | None = None) -> FromClient:
    """The next frame. Raises FrameError, WebSocketDisconnect and TimeoutError."""
    async with asyncio.timeout(max_s):
        message = await websocket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"])
    return CLIENT_FRAMES.unpack(message.get("bytes") or message.get("text") or b"")


async def _send(websocket: WebSocket, frame: FromServer) -> None:
    await websocket.send_bytes(SERVER_FRAMES.pack(frame))


def _of_frame(error: FrameError) -> ApiError:
    return ApiError(400, str(error), code="frame", public=public_sentence(error))


async def _refuse(websocket: WebSocket, error: Exception, note: RequestNote) -> None:
    """Send the reason why a request gets no answer, where the client is still there, and log it."""
    refusal = _of_frame(error) if isinstance(error, FrameError) else api_error(error)
    refusal.note(note)
    try:
        await _send(websocket, Refusal(str(refusal), refusal.status, refusal.code))
    except (*_GONE, RuntimeError):
        _LOG.debug("A device left before it was refused.")


async def _close(websocket: WebSocket, code: int) -> None:
    try:
        await websocket.close(code)
    except (*_GONE, RuntimeError):
        _LOG.debug("A device left before it was closed.")
