"""What a server says of its model is believed as far as it can be."""

from typing import Any

import pytest

from reader_edge.remote.frames import FrameError
from reader_edge.remote.remote_model import RemoteModel, tokenizer_hash
from reader_edge_runtime import Engine
from reader_edge_runtime.errors import RemoteError

FACTS: dict[str, Any] = {
    "model": "demo",
    "tokenizer": "00",
    "tokenizer_bytes": 10,
    "vocab_size": 300,
    "max_context": 512,
    "eos_token_ids": [0],
    "has_chat_template": False,
    "drafts": "all",
    "pass_s": [0.1, 0.2],
}


class Fetching:
    """In the place of a link."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def fetch(self, num_bytes: int) -> bytes:
        return self.data


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", 5),
        ("tokenizer", None),
        ("tokenizer_bytes", 1 << 30),
        ("vocab_size", True),
        ("max_context", 0),
        ("eos_token_ids", [-1]),
        ("eos_token_ids", 5),
        ("has_chat_template", 1),
        ("pass_s", [0]),
        ("pass_s", [1.0] * 999),
        ("drafts", []),
    ],
)
def test_what_cannot_be_is_not_believed(name: str, value: object) -> None:
    assert RemoteModel.of(FACTS).pass_s == (0.1, 0.2)
    with pytest.raises(FrameError, match=name):
        RemoteModel.of(FACTS | {name: value})


def test_a_tokenizer_is_taken_by_its_hash_alone(shared_engine: Engine) -> None:
    own = shared_engine.tokenizer
    link: Any = Fetching(own.to_json().encode())
    fetched = RemoteModel.of(FACTS | {"tokenizer": tokenizer_hash(own).hex()}).fetched_tokenizer(link)
    assert fetched.fingerprint() == own.fingerprint()
    with pytest.raises(RemoteError, match="came damaged"):
        RemoteModel.of(FACTS).fetched_tokenizer(link)
    with pytest.raises(RemoteError, match="cannot be read"):
        RemoteModel.of(FACTS).fetched_tokenizer(Fetching(b"{}"))  # type: ignore[arg-type]
