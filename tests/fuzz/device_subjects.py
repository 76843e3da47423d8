"""Frames between a device and a server, read as both sides read them."""

from pathlib import Path
from random import Random

from reader_edge.remote.frames import (
    DEVICE_FRAMES,
    HINTS,
    SERVER_FRAMES,
    Ask,
    Drafted,
    End,
    FromDevice,
    FromServer,
    Resume,
    Tokens,
    Welcome,
)
from reader_edge.remote.settings import Settings
from reader_edge_runtime import Conversation, GenerationConfig, GenerationStats, Grammar
from reader_edge_runtime.draft_tree import DraftTree
from reader_edge_runtime.drafting.device_drafts import DeviceDrafts, DeviceTree, TextCheck
from reader_edge_runtime.errors import FrameError
from tests.fuzz.mutation import mutated
from tests.fuzz.subject import Subject

_TEXT = [5, 6, 7, 8]
_TREE = DraftTree.chain([8, 9, 10])


def _read(path: Path) -> None:
    data = path.read_bytes()
    try:
        frame = DEVICE_FRAMES.unpack(data)
    except FrameError:
        SERVER_FRAMES.unpack(data)
        return
    if isinstance(frame, Drafted):
        drafted = frame.tree()
        drafted.tree.check(drafted.tree.token_ids[0], 300, len(drafted.tree))
        drafts = DeviceDrafts(not frame.is_hint)
        drafts.leave(drafted)
        drafts.hint(_TEXT, 16)
        if not frame.is_hint and drafts.is_ready(_TEXT):
            drafts.take_tree(16)
    elif isinstance(frame, Ask):
        settings = Settings.decoded(frame.settings)
        settings.config()
        settings.chat()


def _samples(folder: Path) -> list[bytes]:
    config = GenerationConfig(grammar=Grammar("regex", "a"), stop=("b",))
    settings = Settings.of(config, Conversation([{"role": "user", "content": "a"}]))
    check = TextCheck(_TEXT).value
    from_device: tuple[FromDevice, ...] = (
        Drafted.of(DeviceTree(4, _TREE), is_hint=True),
        Drafted.of(DeviceTree(4, _TREE, check), is_hint=False),
        Ask(bytes(16), HINTS, settings.encoded(), [1, 2, 300]),
        Resume(bytes(16), 3, bytes(32)),
    )
    from_server: tuple[FromServer, ...] = (
        Tokens(3, [1, 2, 300]),
        Welcome("a", bytes(32), 1, 9, 9, (0,), True, "all", (0.1,), {"top_p": 0.5}),
        End("stop", GenerationStats(num_tokens=3), None),
    )
    return [*map(DEVICE_FRAMES.pack, from_device), *map(SERVER_FRAMES.pack, from_server)]


def _spoilt(content: bytes, random: Random) -> bytes:
    """Mostly behind the head, which else is all that is read."""
    head, body = (content[:3], content[3:]) if random.random() < 0.9 else (b"", content)
    return head + mutated(body, random)


DEVICE_SUBJECTS = {"frame": Subject(_samples, _spoilt, _read)}
