"""What a server says of its model, checked: it comes from outside."""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reader_edge.remote.frames import FrameError
from reader_edge.remote.link import Link
from reader_edge_runtime.errors import RemoteError, TokenizerError
from reader_edge_runtime.generation_config import is_own_sampling
from reader_edge_runtime.outside.user_input import shown
from reader_edge_runtime.text.tokenizer import Tokenizer

_MOST = 1 << 27  # of a vocabulary, a context, a tokenizer's bytes
_MOST_TIMES = 256


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """model: its name there. tokenizer: its hash. drafts: which requests are drafted there ("all", "greedy", "none").

    sampling: what requests that leave it open go by, as of `Engine.sampling`; servers of before say nothing of it.
    pass_s: seconds of a pass over 1, 2, ... nodes; empty where they were not measured. hidden_size: None, since none
    are sent.
    """

    model: str
    tokenizer: str
    tokenizer_bytes: int
    vocab_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    has_chat_template: bool
    drafts: str
    pass_s: tuple[float, ...]
    sampling: Mapping[str, float] = field(default_factory=dict)
    hidden_size: None = None

    @classmethod
    def of(cls, facts: dict[str, Any]) -> "RemoteModel":
        """Raises FrameError for what is no such thing."""
        for name in ("model", "tokenizer", "drafts"):
            _require(isinstance(facts.get(name), str), name, facts)
        for name in ("tokenizer_bytes", "vocab_size", "max_context"):
            _require(_is_whole(facts.get(name)) and 0 < facts[name] <= _MOST, name, facts)
        ends, times, has_template = facts.get("eos_token_ids"), facts.get("pass_s"), facts.get("has_chat_template")
        _require(isinstance(ends, list) and all(map(_is_whole, ends)), "eos_token_ids", facts)
        is_times = isinstance(times, list) and len(times) <= _MOST_TIMES
        _require(is_times and all(isinstance(each, float) and each > 0 for each in times or ()), "pass_s", facts)
        _require(isinstance(has_template, bool), "has_chat_template", facts)
        sampling = facts.get("sampling", {})
        _require(is_own_sampling(sampling), "sampling", facts)
        names = ("model", "tokenizer", "tokenizer_bytes", "vocab_size", "max_context", "has_chat_template", "drafts")
        given = {name: facts[name] for name in names} | {"sampling": sampling}
        return cls(**given, eos_token_ids=tuple(ends or ()), pass_s=tuple(times or ()))

    def fetched_tokenizer(self, link: Link) -> Tokenizer:
        """Raises RemoteError where what comes is not what was announced, or broken."""
        data = link.fetch(self.tokenizer_bytes)
        with tempfile.TemporaryDirectory(prefix="reader-edge-") as folder:
            path = Path(folder) / "tokenizer.json"
            path.write_bytes(data)
            try:
                tokenizer = Tokenizer.from_file(path)
            except TokenizerError:  # which names a file that is gone then
                raise RemoteError(f"The server sent a tokenizer of {shown(self.model)} that cannot be read.") from None
        if tokenizer_hash(tokenizer).hex() != self.tokenizer:
            raise RemoteError(f"The tokenizer of {shown(self.model)} came damaged: connect again.")
        return tokenizer


def tokenizer_hash(tokenizer: Tokenizer) -> bytes:
    """SHA-256 of a tokenizer in the library's form, by which both sides know that they mean the same tokens."""
    return hashlib.sha256(tokenizer.to_json().encode()).digest()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _require(is_sound: bool, name: str, facts: dict[str, Any]) -> None:
    if not is_sound:
        raise FrameError(f"The server says {shown(facts.get(name))} of its model's {name}.")
