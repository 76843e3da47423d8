"""A session: what a decoder holds between requests, in a file: texts with their KV rows, and what drafting learned.

Going on from a loaded session is what staying would have been: rows and states are the same bits in the same slots. The
file belongs to a package, whose fingerprint it bears. Its checksum tells damage; it is no signature, so load only your
own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reader_edge_runtime.array_file import MAX_BYTES, ArrayFormat
from reader_edge_runtime.arrays import Array
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.prompt_images import (
    DIGEST_BYTES,
    FIRST_IMAGE_ID,
    image_token,
    image_token_id,
)
from reader_edge_runtime.decoding.slot_arrays import MAX_PLACES, arrays_of, contents_of
from reader_edge_runtime.errors import CapacityError, DraftError, PromptError, SessionError
from reader_edge_runtime.package.images import MAX_IMAGE_TOKENS
from reader_edge_runtime.package.manifest import Manifest
from reader_edge_runtime.text.conversation import Conversation, Message
from reader_edge_runtime.text.conversation_check import sound_messages
from reader_edge_runtime.text.image_parts import with_neutral_parts, with_own_parts

_MAGIC, _LOSSY_MAGIC = b"\x89redgss\n", b"\x89redgsl\n"
FORMAT = ArrayFormat(
    magic=_MAGIC,
    error=SessionError,
    name="a session",
    owner="package",
    remedy="erase it and begin a new session",
    akin={_LOSSY_MAGIC: "is a lossy session, which `run --rule` goes on with, and no exact engine does"},
)
LOSSY_FORMAT = replace(
    FORMAT,
    magic=_LOSSY_MAGIC,
    name="a lossy session",
    akin={_MAGIC: "is a session of exact answers, which `run` goes on with, and no engine with a rule does"},
)
_DRAFTER = "drafter/"
_MAX_MESSAGE_BYTES = 1 << 26


def save_session(
    decoder: Decoder, path: Path, fingerprint: bytes, messages: Sequence[Message], file_format: ArrayFormat = FORMAT
) -> None:
    """Write a session in place of a file, or make it; it appears whole or not at all. Raises SessionError.

    Requests that run meanwhile are in it as far as they have come, but for all with a `cache_salt`. messages: a
    conversation to keep beside it. file_format: what marks the file, which alone `load_session` takes.
    """
    check_rows(decoder)
    texts = [text[: decoder.cache.usable(slot, len(text))] for slot, text in enumerate(decoder.scheduler.texts())]
    encoded = _encoded(messages)
    arrays: dict[str, Array] = {
        "messages": np.frombuffer(encoded, np.uint8),
        "lengths": np.array([len(text) for text in texts], np.int32),
        **_id_arrays([token_id for text in texts for token_id in text]),
    }
    for slot, text in enumerate(texts):
        if text:
            arrays |= arrays_of(decoder.cache.read_slot(slot, len(text)), str(slot))
    arrays |= {_DRAFTER + name: array for name, array in decoder.drafter.state().items()}
    file_format.write(path, fingerprint, arrays, mode=0o600, is_durable=True)  # the conversation is nobody else's


def load_session(decoder: Decoder, path: Path, fingerprint: bytes, file_format: ArrayFormat = FORMAT) -> list[Message]:
    """Have what a session holds, in place of all that requests left behind; returns the messages kept beside it.

    Raises SessionError where a request runs or waits, and for a file that is foreign, damaged or too large for this
    engine's max_batch and max_kv_bytes; then nothing has changed.
    """
    check_rows(decoder)
    if decoder.running or decoder.waiting or decoder.scheduler.prefilling is not None:
        raise SessionError("Requests run: load a session when they have ended.")
    manifest = decoder.target.manifest
    row_bytes = manifest.kv_row_bytes + (manifest.speculator.kv_row_bytes if manifest.speculator else 0)
    num_text_bytes = manifest.max_context * row_bytes + MAX_PLACES * manifest.state_bytes
    arrays = file_format.read(path, fingerprint, MAX_BYTES + int(decoder.config.max_batch * num_text_bytes))
    try:
        messages = _messages(arrays["messages"])
        texts = _texts(arrays, decoder)
        like = decoder.cache.read_slot(0, 0)
        contents = [contents_of(arrays, str(slot), len(text), like) for slot, text in enumerate(texts)]
        with decoder.slots.resizing():
            num_pending = max((each.end - each.num_tokens for held in contents for each in held.states), default=0)
            decoder.kv_budget.make_room_for(list(map(len, texts)), num_pending)
        learned = {name.removeprefix(_DRAFTER): array for name, array in arrays.items() if name.startswith(_DRAFTER)}
        if learned:
            decoder.drafter.restore(learned, decoder.target.manifest.vocab_size)
    except (CapacityError, DraftError) as error:
        raise SessionError(f"'{path}' cannot be taken up: {error}") from None
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SessionError(f"'{path}' is no sound session ({error}): erase it and begin a new session.") from None
    if not learned:  # what decodes plainly has saved it
        decoder.drafter.forget()
    decoder.slots.reset()
    for slot, each in enumerate(contents):
        if each.length:
            decoder.cache.write_slot(slot, each)
    decoder.slots.remember(texts)
    return messages


def check_rows(decoder: Decoder) -> None:
    """Raise SessionError for a model whose rows are not all here."""
    if not decoder.cache.has_all_rows:
        raise SessionError("Sessions of a model over several boxes are not kept: leave the session's file out.")


def _encoded(messages: Sequence[Message]) -> bytes:
    """Messages as they are written, with their images. Raises SessionError for what could not be loaded again."""
    try:
        encoded = json.dumps([dict(message) for message in _sound(messages, as_json=True)]).encode()
    except (PromptError, TypeError, ValueError, RecursionError) as error:
        raise SessionError(f"The messages cannot be saved ({error}): give those of a conversation.") from None
    if len(encoded) > _MAX_MESSAGE_BYTES:
        most = _MAX_MESSAGE_BYTES >> 20
        raise SessionError(f"The messages have {len(encoded) >> 20} MiB, but may have {most} at most: leave some out.")
    return encoded


def _messages(encoded: Array) -> list[Message]:
    if encoded.dtype != np.uint8 or encoded.nbytes > _MAX_MESSAGE_BYTES:
        raise ValueError("its messages are none")
    try:
        return _sound(json.loads(encoded.tobytes()), as_json=False)
    except PromptError:
        raise ValueError("its messages are none") from None


def _sound(messages: Sequence[Message], as_json: bool) -> list[Message]:
    chat = with_neutral_parts(Conversation(messages))
    sound = sound_messages(chat.messages, has_images=True)
    return with_own_parts(replace(chat, messages=sound), as_json)


def _id_arrays(token_ids: Sequence[int]) -> dict[str, Array]:
    """Token ids of texts; one of an image is -1 - n, where n is that of its digest, and has its number in order."""
    if max(token_ids, default=0) < FIRST_IMAGE_ID:
        return {"token_ids": np.array(token_ids, np.int32)}
    digests: dict[bytes, int] = {}
    numbers, plain = [], []
    for token_id in token_ids:
        if token_id >= FIRST_IMAGE_ID:
            digest, number = image_token(token_id)
            numbers.append(number)
            token_id = -1 - digests.setdefault(digest, len(digests))
        plain.append(token_id)
    return {
        "token_ids": np.array(plain, np.int32),
        "image_tokens": np.array(numbers, np.int32),
        "images": np.frombuffer(b"".join(digests), np.uint8),
    }


def _with_own_ids(token_ids: Array, arrays: Mapping[str, Array], manifest: Manifest) -> list[int]:
    """What `_id_arrays` was given. Raises KeyError or ValueError for what it could not have been."""
    ids: list[int] = token_ids.tolist()
    if not np.any(token_ids < 0):
        return ids
    numbers, digests = arrays["image_tokens"], arrays["images"].tobytes()
    is_sound = numbers.dtype == np.int32 and numbers.shape == (np.count_nonzero(token_ids < 0),)
    is_sound = is_sound and bool(np.all((numbers >= 0) & (numbers < MAX_IMAGE_TOKENS)))
    if manifest.images is None or not is_sound or np.any(token_ids < -(len(digests) // DIGEST_BYTES)):
        raise ValueError("its images are none")
    left = iter(numbers.tolist())
    starts = [(-1 - token_id) * DIGEST_BYTES for token_id in ids]
    return [
        token_id if token_id >= 0 else image_token_id(digests[start : start + DIGEST_BYTES], next(left))
        for token_id, start in zip(ids, starts, strict=True)
    ]


def _texts(arrays: Mapping[str, Array], decoder: Decoder) -> list[list[int]]:
    """The tokens that each slot holds."""
    lengths, token_ids, manifest = arrays["lengths"], arrays["token_ids"], decoder.target.manifest
    for array in (lengths, token_ids):
        if array.dtype != np.int32 or array.ndim != 1:
            raise ValueError("its texts are none")
    if len(lengths) > decoder.config.max_batch:
        raise CapacityError(f"it holds {len(lengths)} texts, so max_batch must be that at least.")
    is_sized = np.all((lengths >= 0) & (lengths <= manifest.max_context)) and lengths.sum() == len(token_ids)
    if not is_sized or not np.all(token_ids < manifest.vocab_size):
        raise ValueError("its texts are none of this model")
    own_ids, ends = _with_own_ids(token_ids, arrays, manifest), np.cumsum(lengths).tolist()
    return [own_ids[end - length : end] for end, length in zip(ends, lengths.tolist(), strict=True)]
