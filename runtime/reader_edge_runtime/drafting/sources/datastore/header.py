"""The first bytes of a datastore file: what it holds, where, and for which tokenizer.

    offset  bytes
         0      8  magic, b"\\x89redgds\\n"
         8      4  format version, 1
        12      4  vocabulary size: every token id is below it
        16      8  number of tokens, T
        24      8  number of documents, D
        32      4  bytes a token id, 2 or 4
        36      4  key step, 16
        40      8  bytes of the facts, F
        48     32  tokenizer fingerprint (SHA-256)
        80     32  SHA-256 of all bytes behind the header
       112     32  SHA-256 of the bytes before this field
       144     48  zeros

Behind the header, each at the next multiple of 64 bytes, zeros between them:

    facts      F bytes               JSON object: "corpus", names of the files; "num_corpus_files", how many there were
    tokens     T + D ids             the documents; each is followed by an end mark, the id whose bits are all set
    suffixes   T x uint32            positions of all tokens, sorted by the tokens that follow up to the document's end
    keys       ceil(T / 16) x 2 x uint32   the first two tokens of every 16th suffix; an end mark has 32 bits here

All numbers are unsigned and little-endian. Sizes follow from the header, and the file ends where the keys do.
"""

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from reader_edge_runtime.errors import DatastoreError
from reader_edge_runtime.untrusted.untrusted_json import Text, converted, decoded

MAGIC = b"\x89redgds\n"
FORMAT_VERSION = 1
HEADER_BYTES = 192
MAX_FILES = 4  # that are searched as if they were one
KEY_STEP = 16
MAX_POSITIONS = 2**31 - 1
MAX_VOCAB_SIZE = 2**24 - 1

_FIELDS = struct.Struct("<8sIIQQIIQ32s32s")
_MAX_FACTS_BYTES = 1 << 20
_MAX_NAMES = 1000
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class DatastoreHeader:
    """What a datastore file says of itself.

    tokenizer_fingerprint, body_sha256: hex digits. facts_bytes: size of the facts behind the header.
    """

    vocab_size: int
    num_tokens: int
    num_documents: int
    facts_bytes: int
    tokenizer_fingerprint: str
    body_sha256: str

    @property
    def token_bytes(self) -> int:
        return token_bytes_for(self.vocab_size)

    @property
    def num_positions(self) -> int:
        """Tokens and document ends."""
        return self.num_tokens + self.num_documents

    @property
    def tokens_at(self) -> int:
        return _aligned(HEADER_BYTES + self.facts_bytes)

    @property
    def suffixes_at(self) -> int:
        return _aligned(self.tokens_at + self.num_positions * self.token_bytes)

    @property
    def keys_at(self) -> int:
        return _aligned(self.suffixes_at + self.num_tokens * 4)

    @property
    def file_bytes(self) -> int:
        return self.keys_at + -(-self.num_tokens // KEY_STEP) * 8

    def pack(self) -> bytes:
        sizes = (self.vocab_size, self.num_tokens, self.num_documents, self.token_bytes, KEY_STEP, self.facts_bytes)
        digests = (bytes.fromhex(self.tokenizer_fingerprint), bytes.fromhex(self.body_sha256))
        fields = _FIELDS.pack(MAGIC, FORMAT_VERSION, *sizes, *digests)
        return (fields + hashlib.sha256(fields).digest()).ljust(HEADER_BYTES, b"\0")


def token_bytes_for(vocab_size: int) -> int:
    """Two bytes an id where they leave room for the end mark."""
    return 2 if vocab_size <= 0xFFFF else 4


def parse_header(data: bytes, file_bytes: int, path: Path) -> DatastoreHeader:
    """The header of a file of `file_bytes` bytes; the sizes it claims are those of the file. Raises DatastoreError."""
    if not data.startswith(MAGIC):
        raise DatastoreError(f"'{path}' is not a datastore: give a file written by 'reader-edge datastore build'.")
    if len(data) < HEADER_BYTES:
        raise DatastoreError(f"'{path}' ends inside its header: copy or build it again.")
    _, version, vocab_size, num_tokens, num_documents, token_bytes, key_step, facts_bytes, tokenizer, body = (
        _FIELDS.unpack_from(data)
    )
    if version != FORMAT_VERSION:
        remedy = "upgrade reader-edge" if version > FORMAT_VERSION else "build it again"
        raise DatastoreError(f"'{path}' has format version {version}, this runtime reads {FORMAT_VERSION}: {remedy}.")
    checksum = hashlib.sha256(data[: _FIELDS.size]).digest()
    if data[_FIELDS.size : HEADER_BYTES] != checksum.ljust(HEADER_BYTES - _FIELDS.size, b"\0"):
        raise DatastoreError(f"'{path}' has a damaged header: copy or build it again.")
    header = DatastoreHeader(vocab_size, num_tokens, num_documents, facts_bytes, tokenizer.hex(), body.hex())
    is_possible = (
        1 <= vocab_size <= MAX_VOCAB_SIZE
        and 1 <= num_documents <= num_tokens
        and header.num_positions <= MAX_POSITIONS
        and (token_bytes, key_step) == (header.token_bytes, KEY_STEP)
        and facts_bytes <= _MAX_FACTS_BYTES
    )
    if not is_possible:
        raise DatastoreError(f"'{path}' claims impossible sizes: do not trust this file, build it again.")
    if header.file_bytes != file_bytes:
        raise DatastoreError(
            f"'{path}' has {file_bytes} bytes instead of the {header.file_bytes} its header tells: "
            "copy or build it again."
        )
    return header


@dataclass(frozen=True, slots=True)
class DatastoreFacts:
    """The corpus files of a datastore: names of the first thousand, and how many there were."""

    corpus: tuple[Text, ...]
    num_corpus_files: Annotated[int, Meta(ge=0)]

    @classmethod
    def merged(cls, parts: Sequence["DatastoreFacts"]) -> "DatastoreFacts":
        """Facts of several corpora, one behind the other."""
        names = [name[:200] for part in parts for name in part.corpus]
        return cls(tuple(names[:_MAX_NAMES]), sum(part.num_corpus_files for part in parts))

    def pack(self) -> bytes:
        return json.dumps({"corpus": self.corpus, "num_corpus_files": self.num_corpus_files}).encode()


def parse_facts(data: bytes, path: Path) -> DatastoreFacts:
    """Facts from their bytes. Raises DatastoreError."""
    name, remedy = f"The list of corpus files in '{path}'", "build it again"
    return converted(decoded(data, name, DatastoreError, remedy), DatastoreFacts, name, DatastoreError, remedy)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
