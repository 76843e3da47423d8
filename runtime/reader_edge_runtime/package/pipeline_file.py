"""pipeline.json: where the stages of a model listen, beside the last stage, which the client runs itself.

A stage has one address, or several, separated by spaces: spare boxes, which serve the same stage.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from reader_edge_runtime.atomic_file import new_file, write_file
from reader_edge_runtime.errors import PackageError
from reader_edge_runtime.package.package_parts import MAX_STAGES
from reader_edge_runtime.untrusted.plain_file import check_plain_file, check_secret
from reader_edge_runtime.untrusted.untrusted_json import converted, decoded, read_plain
from reader_edge_runtime.untrusted.user_input import BYTE_ORDER_MARK

PIPELINE_NAME, KEY_NAME = "pipeline.json", "pipeline.key"
FIRST_PORT = 5551

_MAX_SPARES = 8  # of all stages together: each that is not there is waited for
_MAX_BYTES = 1 << 16
_ADDRESS = re.compile(r"tcp://(\[[0-9a-fA-F:.]{2,45}\]|[A-Za-z0-9][A-Za-z0-9.-]{0,252}):([1-9][0-9]{0,4})")
_LOOPBACK = re.compile(r"tcp://(127\.\d+\.\d+\.\d+|localhost|\[::1\]):\d+")
_REMEDY = "split the model again, or correct the file"


class _PipelineFile(Struct):
    format: Literal["reader-edge pipeline"]
    format_version: Literal[1]
    stages: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1, max_length=MAX_STAGES - 1)]


def is_address(text: object) -> bool:
    """Whether a text is tcp://HOST:PORT."""
    found = _ADDRESS.fullmatch(text) if isinstance(text, str) else None
    return found is not None and int(found[2]) < 1 << 16


def is_to_listen_at(text: object) -> bool:
    """Whether a text is tcp://HOST:PORT, or tcp://*:PORT for all of this machine's addresses."""
    return is_address(text.replace("//*:", "//0.0.0.0:", 1) if isinstance(text, str) else text)


def are_addresses(text: object) -> bool:
    """Whether a text is of one address or several, with spaces between them."""
    return isinstance(text, str) and len(text) <= _MAX_BYTES and bool(text) and all(map(is_address, text.split(" ")))


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    return _LOOPBACK.fullmatch(address) is not None


def write_pipeline(folder: Path, addresses: Sequence[str]) -> None:
    """addresses: of the stages but the last, in turn. Raises PackageError for what `read_pipeline` would not take."""
    for address in addresses:
        if not are_addresses(address):
            raise PackageError(f"{address!r:.80} is no address of a stage: give tcp://HOST:PORT.")
    _check_together(addresses, "The pipeline")
    fields = {"format": "reader-edge pipeline", "format_version": 1, "stages": list(addresses)}
    write_file(folder / PIPELINE_NAME, (json.dumps(fields, indent=1) + "\n").encode())


def read_pipeline(folder: Path) -> tuple[str, ...]:
    """The addresses of all stages but the last, each with its spare ones. Raises PackageError."""
    return read_pipeline_once(folder)[0]


def read_pipeline_once(folder: Path) -> tuple[tuple[str, ...], str]:
    """The same, and the SHA-256 (hex) of the very bytes that they are from."""
    path = folder / PIPELINE_NAME
    name = f"'{path}'"
    data = read_plain(path, PackageError, _REMEDY, _MAX_BYTES)
    values = decoded(data.removeprefix(BYTE_ORDER_MARK), name, PackageError, _REMEDY)
    file = converted(values, _PipelineFile, name, PackageError, _REMEDY)
    if wrong := next((each for each in file.stages if not are_addresses(each)), None):
        raise PackageError(f"{name} has unusable stages ({wrong!r:.80}), not tcp://HOST:PORT each: {_REMEDY}.")
    _check_together(file.stages, name)
    return file.stages, hashlib.sha256(data).hexdigest()


def _check_together(addresses: Sequence[str], name: str) -> None:
    """Raise PackageError for addresses that are some, but not of one pipeline."""
    every = " ".join(addresses).split(" ")
    num_spares = len(every) - len(addresses)
    if num_spares > _MAX_SPARES:
        raise PackageError(f"{name} has {num_spares} spare addresses, but may have {_MAX_SPARES}: leave some out.")
    if len(set(every)) < len(every):
        raise PackageError(f"{name} has two stages at one address ({addresses!r:.80}): {_REMEDY}.")


def new_key(folder: Path) -> None:
    """Write a key that all boxes of a pipeline share, which its owner alone may read."""
    with new_file(folder / KEY_NAME, 0o600) as file:
        file.write(f"{secrets.token_hex(32)}\n".encode())


def read_key(path: Path) -> bytes:
    """The 32 bytes of a pipeline's key. Raises PackageError."""
    check_plain_file(path, PackageError, "give the pipeline.key that `reader-edge split` wrote")
    text = b"" if path.stat().st_size > 128 else path.read_bytes().removeprefix(BYTE_ORDER_MARK).strip()
    if re.fullmatch(rb"[0-9a-f]{64}", text) is None:
        raise PackageError(f"'{path}' is no key of a pipeline: give the pipeline.key that `reader-edge split` wrote.")
    check_secret(path, PackageError, "split again where others know it")
    return bytes.fromhex(text.decode())
