"""Frames between a device and a server, read as both sides read them."""

import json
from pathlib import Path
from random import Random

from reader_edge.remote import frames
from reader_edge.remote.frames import Ask, Resume, Tokens
from reader_edge.remote.remote_model import RemoteModel
from reader_edge.remote.settings import config_of, conversation_of, facts_of, stats_facts, stats_of
from reader_edge_runtime import GenerationConfig, GenerationStats, Grammar
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import DeviceDrafts, DeviceTree, TextCheck
from tests.fuzz.mutation import mutated
from tests.fuzz.subject import Subject

_TEXT = [5, 6, 7, 8]
_TREE = DraftTree.chain([8, 9, 10])


def _read(path: Path) -> None:
    kind, reader = frames.opened(path.read_bytes())
    if kind in (frames.HINT, frames.TREE):
        drafted = frames.unpacked_tree(kind, reader)
        drafted.tree.check(drafted.tree.token_ids[0], 300, len(drafted.tree))
        drafts = DeviceDrafts(kind == frames.TREE)
        drafts.leave(drafted)
        drafts.hint(_TEXT, 16)
        if kind == frames.TREE and drafts.is_ready(_TEXT):
            drafts.take_tree(16)
    elif kind == frames.ASK:
        settings = Ask.unpacked(reader).settings
        chat = settings.pop("conversation", None)
        config_of(settings)
        if chat is not None:
            conversation_of(chat)
    elif kind == frames.RESUME:
        Resume.unpacked(reader)
    elif kind == frames.TOKENS:
        Tokens.unpacked(reader)
    elif kind == frames.WELCOME:
        RemoteModel.of(reader.facts())
    else:
        stats_of(reader.facts().get("stats"))
    reader.end()


def _samples(folder: Path) -> list[bytes]:
    chat = {"conversation": {"messages": [{"role": "user", "content": "a"}]}}
    config = facts_of(GenerationConfig(grammar=Grammar("regex", "a"), stop=("b",)))
    model = {"model": "a", "tokenizer": "00", "tokenizer_bytes": 1, "vocab_size": 9, "max_context": 9, "pass_s": [0.1]}
    check = TextCheck(_TEXT).value
    return [
        frames.packed_tree(frames.HINT, DeviceTree(4, _TREE)),
        frames.packed_tree(frames.TREE, DeviceTree(4, _TREE, check)),
        Ask(bytes(16), frames.HINTS, json.loads(json.dumps(config | chat)), [1, 2, 300]).packed(),
        Resume(bytes(16), 3, bytes(32)).packed(),
        Tokens(3, [1, 2, 300]).packed(),
        frames.packed_facts(frames.WELCOME, model | {"eos_token_ids": [0], "has_chat_template": True, "drafts": "all"}),
        frames.packed_facts(frames.END, {"finish_reason": "stop", "stats": stats_facts(GenerationStats(num_tokens=3))}),
    ]


def _spoilt(content: bytes, random: Random) -> bytes:
    """Mostly behind the head, which else is all that is read."""
    head, body = (content[:4], content[4:]) if random.random() < 0.9 else (b"", content)
    return head + mutated(body, random)


DEVICE_SUBJECTS = {"frame": Subject(_samples, _spoilt, _read)}
