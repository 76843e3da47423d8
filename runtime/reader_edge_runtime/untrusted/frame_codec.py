"""Frames between machines: MessagePack of typed, bounded classes behind a name and a version. No pickle.

Nothing is allocated for a size that a frame claims: msgspec compares each with what is left of it.
"""

from collections import Counter
from typing import Annotated, Any, Generic, TypeVar, get_args

import msgspec
from msgspec import Meta

from reader_edge_runtime.errors import FrameError

Kind = TypeVar("Kind")

Count = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]


class Frame(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """An array of its fields, behind its tag where it is one of several kinds."""


class FrameCodec(Generic[Kind]):
    """kinds: a class, or a union of classes with tags. magic: what each frame begins with, its last byte the version.

    name: of what is spoken, for sentences.
    """

    def __init__(self, kinds: Any, magic: bytes, max_bytes: int, name: str) -> None:
        self.magic = magic
        self._decoder: msgspec.msgpack.Decoder[Kind] = msgspec.msgpack.Decoder(kinds, dec_hook=_counter)
        self._max_bytes = max_bytes
        self._name = name

    def pack(self, frame: Kind) -> bytes:
        """Raises FrameError where it is larger than a frame may be."""
        data = self.magic + msgspec.msgpack.encode(frame)
        if len(data) > self._max_bytes:
            most = f"but a frame may have {self._max_bytes} at most"
            raise FrameError(f"The request has {len(data)} bytes, {most}: shorten the prompt, or lower --max-batch.")
        return data

    def unpack(self, data: bytes | memoryview | str) -> Kind:
        """Raises FrameError, which names versions that differ."""
        num_name = len(self.magic) - 1
        if isinstance(data, str) or len(data) <= num_name or bytes(data[:num_name]) != self.magic[:-1]:
            raise FrameError(f"What came is no frame of {self._name}: is the other side reader-edge?")
        if len(data) > self._max_bytes:
            raise FrameError(f"A frame has {len(data)} bytes, but may have {self._max_bytes} at most.")
        if data[num_name] != self.magic[-1]:
            versions = f"version {data[num_name]} of {self._name}, this one version {self.magic[-1]}"
            raise FrameError(f"The other side speaks {versions}: install the same release of reader-edge on both.")
        try:
            return self._decoder.decode(memoryview(data)[num_name + 1 :])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as reason:
            words = str(reason).replace("`", "")
            raise FrameError(f"A frame of {self._name} is not what it should be: {words:.200}.") from None


def _counter(kind: Any, values: object) -> Any:
    """Counters are no type of msgspec's."""
    return Counter(msgspec.convert(values, dict[get_args(kind)[0], Annotated[int, Meta(ge=0)]]))  # type: ignore[misc]
