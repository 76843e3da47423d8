"""KV rows of prompts and answers that outlive the process: found by text, chunk by chunk.

The name of a chunk is a chain of digests (SHA-256): of what bits depend on (package, provider, kernels, machine), of
the salt, and of all tokens of the text until the chunk's end. So texts with the same beginning share files, a file of
another model, machine, salt or text is never found, and its name says nothing of the text to who has no salt.
"""

import hashlib
import math
import time
from collections.abc import Mapping

import numpy as np

from reader_edge_runtime.arrays import Array
from reader_edge_runtime.cache import Cache, SlotContents, TextState
from reader_edge_runtime.decoding.prefix_files import PrefixFiles
from reader_edge_runtime.decoding.prompt_images import FIRST_IMAGE_ID, ID_BYTES
from reader_edge_runtime.decoding.slot_arrays import arrays_of, contents_of
from reader_edge_runtime.drafting.drafter import Drafter
from reader_edge_runtime.errors import ConfigError

CHUNK = 64  # tokens: less than so many of a known text are scored again

_NAME = "0"  # of a file's arrays
_KEEP_EVERY_S = 30.0  # what drafting learned takes megabytes
_MAX_LEARNED_BYTES = 1 << 28
_MAX_SALTS = 64  # of which it is known when what was learned of them was kept


class PrefixCache:
    """What an engine keeps on disk of its texts. fingerprint: of all that bits depend on. cache: the engine's."""

    def __init__(self, files: PrefixFiles, fingerprint: bytes, cache: Cache) -> None:
        """Raises ConfigError for rows that are not all in the host's memory, or that have no room in the files."""
        if not cache.has_all_rows or not cache.has_host_rows:
            place = "on a GPU" if cache.has_all_rows else "over several boxes"
            raise ConfigError(
                f"A prefix cache keeps no texts of a model {place}: leave prefix_cache (--prefix-cache) out."
            )
        like = cache.read_slot(0, 0)
        self._rows_bytes = CHUNK * sum(math.prod(each.shape[:2]) * each.shape[3] * each.itemsize for each in like.rows)
        self._states_bytes = sum(
            states.nbytes + CHUNK * pending.shape[0] * pending.shape[2] * pending.itemsize
            for place in like.states[:1]
            for states, pending in zip(place.states, place.pending, strict=True)
        )
        files.check_room(4 * (self._rows_bytes + self._states_bytes))
        self._files = files
        self._fingerprint = fingerprint
        self._kept_at: dict[str, float] = {}  # when what drafting learned was, by salt
        self._unkept: dict[str, Drafter] = {}

    def load(self, cache: Cache, slot: int, token_ids: list[int], salt: str, num_held: int) -> int:
        """Write what files have of a text's first tokens to a slot that holds so many; returns how many it holds then.

        The last token is left out: its logits are what decoding starts from.
        """
        first = num_held // CHUNK
        names = self._names(token_ids, salt, min(len(token_ids) - 1, cache.capacity) // CHUNK)
        end = first
        while end < len(names) and self._files.has(names[end], "rows"):
            end += 1
        num_written, nothing = first, cache.read_slot(slot, 0)
        while end > first:
            places = self._places(cache, names, end)
            if places is None:
                end -= 1
                continue
            num_written = self._write_rows(cache, slot, names, num_written, end)
            if num_written < end:
                end = num_written
                continue
            cache.write_slot(slot, nothing._replace(states=places), end * CHUNK)
            self._files.note_use(names[:end])
            return end * CHUNK
        return cache.cut(slot, num_held)

    def save(self, cache: Cache, slot: int, token_ids: list[int], salt: str, start: int = 0) -> None:
        """Have files of what a slot holds of a text from `start` on; from its first token once it is not gone on with.

        What has to wait too long for the disk is left out, and kept when the text is saved again.
        """
        num_chunks = min(len(token_ids), cache.lengths[slot]) // CHUNK
        if not num_chunks:
            return
        names = self._names(token_ids, salt, num_chunks)
        contents = cache.read_slot(slot, num_chunks * CHUNK)
        for number in range(start // CHUNK, num_chunks):
            rows = tuple(each[:, :, number * CHUNK : (number + 1) * CHUNK] for each in contents.rows)
            if not self._files.put(names[number], "rows", arrays_of(SlotContents(CHUNK, rows), _NAME)):
                return
        for place in contents.states[:-1]:  # the last is where the slot stands
            end = place.end - place.end % CHUNK
            if end and end - CHUNK <= place.num_tokens <= end:
                place = place.until(end)._replace(num_tokens=place.num_tokens - end + CHUNK)
                arrays = arrays_of(SlotContents(CHUNK, (), (place,)), _NAME)
                self._files.put(names[end // CHUNK - 1], "states", arrays)
        if not start:
            self._files.note_use(names)

    def learned(self, salt: str) -> Mapping[str, Array]:
        """What drafting learned of a salt's requests when it was last kept, as a file has it; {} for nothing."""
        return self._files.read(self._root(salt), "drafts", _MAX_LEARNED_BYTES) or {}

    def keep_learned(self, drafter: Drafter, salt: str, is_last: bool = False) -> None:
        """Have a file of what drafting learned of a salt's requests; `flush` has it where one was written lately."""
        now = time.monotonic()
        self._unkept[salt] = drafter
        if not is_last and now - self._kept_at.get(salt, -math.inf) < _KEEP_EVERY_S:
            return
        if arrays := drafter.learned(salt):
            self._files.put(self._root(salt), "drafts", arrays, is_renewed=True)
        del self._unkept[salt]
        self._kept_at.pop(salt, None)
        self._kept_at[salt] = now
        for old in list(self._kept_at)[:-_MAX_SALTS]:
            del self._kept_at[old]
            self._unkept.pop(old, None)

    def flush(self) -> None:
        """Wait until all is written."""
        for salt, drafter in list(self._unkept.items()):
            self.keep_learned(drafter, salt, is_last=True)
        self._files.flush()

    def _write_rows(self, cache: Cache, slot: int, names: list[bytes], start: int, end: int) -> int:
        """Write the rows of some chunks to a slot; returns up to which chunk there are any."""
        for number in range(start, end):
            contents = self._contents(cache, names[number], "rows", self._rows_bytes)
            if contents is None:
                for name in names[number:end]:  # without it nothing finds them, and they may be as bad
                    self._files.erase(name, "rows")
                return number
            cache.write_slot(slot, contents, number * CHUNK)
        return max(start, end)

    def _places(self, cache: Cache, names: list[bytes], end: int) -> tuple[TextState, ...] | None:
        """What recurrent layers keep of the first chunks, so many; None where that is not known."""
        if cache.is_cut_anywhere:
            return ()
        if not self._files.has(names[end - 1], "states"):
            return None
        contents = self._contents(cache, names[end - 1], "states", self._states_bytes)
        begin = (end - 1) * CHUNK
        return (
            None
            if contents is None
            else tuple(place._replace(num_tokens=place.num_tokens + begin) for place in contents.states[-1:])
        )

    def _contents(self, cache: Cache, name: bytes, kind: str, max_bytes: int) -> SlotContents | None:
        """What a file has of a chunk; None for nothing that could be used."""
        like = cache.read_slot(0, 0)
        like = like._replace(states=()) if kind == "rows" else like._replace(rows=())
        arrays = self._files.read(name, kind, max_bytes)
        if arrays is None:
            return None
        try:
            return contents_of(arrays, _NAME, CHUNK, like)
        except (KeyError, ValueError) as error:
            self._files.refuse(name, kind, f"It is not sound ({error}).")
            return None

    def _names(self, token_ids: list[int], salt: str, num_chunks: int) -> list[bytes]:
        """Of the first chunks of a text, so many."""
        digest, names = self._root(salt), []
        for chunk in _encoded_chunks(token_ids[: num_chunks * CHUNK]):
            digest = hashlib.sha256(digest + chunk).digest()
            names.append(digest)
        return names

    def _root(self, salt: str) -> bytes:
        """Where the chains of a salt's texts begin."""
        return hashlib.sha256(self._fingerprint + salt.encode("utf-8", "surrogatepass")).digest()


def _encoded_chunks(token_ids: list[int]) -> list[bytes]:
    """Whole chunks of a text as bytes: those with tokens of images as longer numbers than others."""
    try:
        return [chunk.tobytes() for chunk in np.array(token_ids, "<i4").reshape(-1, CHUNK)]
    except OverflowError:
        chunks = [token_ids[start : start + CHUNK] for start in range(0, len(token_ids), CHUNK)]
        return [
            b"".join(each.to_bytes(ID_BYTES, "little") for each in chunk)
            if max(chunk) >= FIRST_IMAGE_ID
            else np.array(chunk, "<i4").tobytes()
            for chunk in chunks
        ]
