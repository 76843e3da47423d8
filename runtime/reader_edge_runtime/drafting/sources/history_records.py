"""The bytes of a history file: a header, then texts as records, each of which vouches for itself.

    offset  bytes
         0      8  magic, b"\\x89redghi\\n"
         8      4  format version, 1
        12     32  tokenizer fingerprint (SHA-256)
        44     20  zeros
        64         records: uint32 tokens, uint32 CRC-32 of their bytes, then the tokens as int32

All numbers are little-endian. A text that was used is appended again; of equal texts only the last counts, so records
are in the order of the last use. The header may come again in place of a record: processes that make the file at the
same moment all write one. Other bytes, left by a killed process or a bad disk, are skipped.
"""

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.errors import HistoryError

MAGIC = b"\x89redghi\n"
FORMAT_VERSION = 1
HEADER_BYTES = 64
TOKEN_BYTES = 4

_HEADER = struct.Struct("<8sI32s20x")
_RECORD = struct.Struct("<II")
# Bounds the search for the next record: bytes summed, and for each place looked at as many as take the same time.
_MAX_SEARCHED_BYTES = 1 << 29
_BYTES_A_PLACE = 1 << 8


@dataclass(frozen=True, slots=True)
class Records:
    """texts: those of the whole records, in order. num_damaged: places with bytes that are no record.

    is_cut: at the end is the beginning of a record, whose writer was killed.
    """

    texts: list[Int32Array]
    num_damaged: int
    is_cut: bool


def pack_header(tokenizer_fingerprint: bytes) -> bytes:
    return _HEADER.pack(MAGIC, FORMAT_VERSION, tokenizer_fingerprint)


def check_header(header: bytes, expected: bytes, path: Path) -> None:
    """Raise HistoryError unless `header` is the expected one."""
    if header[: len(MAGIC)] != MAGIC or len(header) < HEADER_BYTES:
        raise HistoryError(f"'{path}' is not a history file: name another one.")
    version = _HEADER.unpack(header)[1]
    if version != FORMAT_VERSION:
        raise HistoryError(f"'{path}' has format version {version}, this one reads {FORMAT_VERSION}: erase it.")
    if _HEADER.unpack(header) != _HEADER.unpack(expected):
        raise HistoryError(f"'{path}' belongs to another tokenizer: name another file, or erase it.")


def pack_record(token_ids: Int32Array) -> bytes:
    tokens = token_ids.astype("<i4").tobytes()
    return _RECORD.pack(len(token_ids), zlib.crc32(tokens)) + tokens


def read_records(content: memoryview, vocab_size: int) -> Records:
    """The whole records of a file; behind a damaged one the search for the next is bounded, whatever the file holds."""
    texts: list[Int32Array] = []
    num_damaged = num_searched = 0
    at = whole_end = 0
    while at + _RECORD.size <= len(content) and num_searched < _MAX_SEARCHED_BYTES:
        if at == whole_end and content[at : at + HEADER_BYTES] == content[:HEADER_BYTES]:
            at = whole_end = at + HEADER_BYTES
            continue
        num_tokens, checksum = _RECORD.unpack_from(content, at)
        begin, end = at + _RECORD.size, at + _RECORD.size + TOKEN_BYTES * num_tokens
        # Within a text, what looks like a length and a checksum is two token ids.
        is_likely = num_tokens and end <= len(content) and (at == whole_end or checksum >= vocab_size)
        if is_likely and zlib.crc32(content[begin:end]) == checksum:
            num_damaged += at != whole_end
            texts.append(np.frombuffer(content[begin:end], "<i4").astype(np.int32))
            at = whole_end = end
        else:
            num_searched += _BYTES_A_PLACE + (end - begin if is_likely else 0)
            at += 1
    rest = content[whole_end:]
    claims_more = len(rest) < _RECORD.size or _RECORD.size + TOKEN_BYTES * _RECORD.unpack_from(rest)[0] > len(rest)
    num_damaged += len(rest) > 0 and not claims_more
    return Records(texts, num_damaged, is_cut=len(rest) > 0 and claims_more)
