"""What is said between the processes of grammars and those who ask them."""

import io
import struct
from array import array
from collections.abc import Sequence
from typing import BinaryIO

ADVANCE = 1  # by a token: GOES_ON or OVER, then the tokens that are forced next
CUT = 2  # how many tokens to force, a tree's tokens, their parents: the same of the tree that is left
MASK = 3  # the tokens that may come next, a bit each, as a text
CHECK = 4  # the bytes of a text, or none for the answer: what of it the schema does not allow, as a text
UNCHECKED = "?"  # before the reply to CHECK, where there is no telling
GOES_ON, OVER = 0, 1
OUT_OF_MEMORY = 77  # what such a process ends with

Stream = BinaryIO | io.BufferedIOBase


class Channel:
    """Messages over two streams of bytes. Raises EOFError where the other end is gone."""

    def __init__(self, reader: Stream, writer: Stream) -> None:
        self._reader, self._writer = reader, writer

    def read(self, num_bytes: int) -> bytes:
        data = self._reader.read(num_bytes)
        if len(data) < num_bytes:
            raise EOFError
        return data

    def read_text(self) -> bytes:
        return self.read(struct.unpack("<i", self.read(4))[0])

    def read_numbers(self) -> list[int]:
        return array("i", self.read_text()).tolist()

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def write_text(self, text: bytes) -> None:
        self._writer.write(struct.pack("<i", len(text)) + text)

    def write_numbers(self, numbers: Sequence[int]) -> None:
        self.write_text(array("i", numbers).tobytes())

    def flush(self) -> None:
        self._writer.flush()
