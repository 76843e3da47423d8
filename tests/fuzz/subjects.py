"""What is fuzzed: for each kind of file a good sample, a way to spoil it, and what a program does with one."""

import json
import shutil
import struct
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch

import numpy as np

from reader_edge.bench.recording import read_recording
from reader_edge.bench.replay import replay
from reader_edge.prompts import read_prompts
from reader_edge_export.sources.gguf.gguf_file import GgufFile
from reader_edge_export.sources.gguf.gguf_source import GgufSource
from reader_edge_export.sources.gguf.summary import summary_of
from reader_edge_export.sources.gguf.tokenizer import build_tokenizer
from reader_edge_runtime import DraftConfig, EngineConfig, GenerationConfig
from reader_edge_runtime.decoding.decoder import Decoder
from reader_edge_runtime.decoding.prefix_cache import PrefixCache
from reader_edge_runtime.decoding.prefix_files import PrefixFiles
from reader_edge_runtime.decoding.session import FORMAT as SESSIONS
from reader_edge_runtime.decoding.session import load_session, save_session
from reader_edge_runtime.errors import ReaderEdgeError
from reader_edge_runtime.measuring import cost_cache
from reader_edge_runtime.measuring.pass_cost import PassCost
from reader_edge_runtime.package.graph_file import GraphFile
from reader_edge_runtime.package.manifest import GRAPH_NAME, MANIFEST_NAME
from reader_edge_runtime.package.manifest_file import write_manifest
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.text.conversation import Conversation
from reader_edge_runtime.text.template.chat_template import ChatTemplate
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.conftest import ROOT
from tests.fake_hybrid import FakeHybridTarget, hybrid_manifest
from tests.fake_target import FakeTarget, make_manifest
from tests.fuzz.adapter_subjects import ADAPTER_SUBJECTS
from tests.fuzz.http_subjects import HTTP_SUBJECTS
from tests.fuzz.image_subjects import IMAGE_SUBJECTS
from tests.fuzz.mmproj_subjects import MMPROJ_SUBJECTS
from tests.fuzz.mutation import Subject, mutated, mutated_json
from tests.fuzz.other_subjects import DEVICE_SUBJECTS, DRAFTING_SUBJECTS, SPECULATOR_SUBJECTS, arrays_file, spoil_arrays
from tests.fuzz.quantized_subjects import QUANTIZED_SUBJECTS
from tests.fuzz.signature_subjects import SIGNATURE_SUBJECTS
from tests.gguf_files import sentence_piece, small_vocabulary, split_gguf, write_small
from tests.random_drafter import RandomDrafter, decode, make_decoder
from tests.reader_edge.package_copy import CHAT_TEMPLATE
from tests.runtime.drafting.sources.test_successor_store import FINGERPRINT as TABLE_FINGERPRINT
from tests.runtime.text.text_cases import BYTE_LEVEL, byte_fallback_tokenizer, byte_level_tokenizer

DEMO = ROOT / "models" / "demo" / "package"
TEXTS = ("", "# tar\n", "Zürich 🙂 \u2028 \ufffd", "\ud800")
COST = PassCost(1, (64,), (1, 2), np.array([[1.0, 1.5]]))


def _read_manifest(path: Path) -> None:
    manifest = ModelPackage.open(path.rename(path.with_name(MANIFEST_NAME)).parent).manifest
    manifest.past_names()
    manifest.capsule_sizes()


def _manifest_samples(folder: Path) -> list[bytes]:
    """Of a package, and of one that tells of each layer what it keeps."""
    write_manifest(folder, hybrid_manifest())
    return [(each / MANIFEST_NAME).read_bytes() for each in (DEMO, folder)]


def _read_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer.from_file(path)
    tokenizer.fingerprint()
    for text in TEXTS:
        try:
            token_ids = tokenizer.encode(text)
        except ReaderEdgeError:
            continue
        tokenizer.decode(token_ids)
    tokenizer.decode(range(min(tokenizer.vocab_size, 1000)))


def _render_template(path: Path) -> None:
    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "\x1b[2J"}]
    ChatTemplate.open(path, {"eos_token": "<end>"}).render(Conversation(messages))


def _encode_prompts(path: Path) -> None:
    for prompt in read_prompts(path):
        for turn in prompt.turns:
            BYTE_LEVEL.encode(turn if isinstance(turn, str) else turn[-1]["content"])


def _prompts_samples(folder: Path) -> list[bytes]:
    lines = (
        {"prompt": "# tar"},
        {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]},
        {"turns": ["Hello", "And then?"], "category": "chat"},
    )
    return ["".join(json.dumps(line) + "\n" for line in lines).encode()]


def recording(**changes: object) -> bytes:
    """A recorded request of BYTE_LEVEL's tokens."""
    output = {"positions": [0, 2, 3], "top_ids": [[1, 2], [3, 1], [2, 3]], "top_logits": [[2.5, 1.0]] * 3}
    turn = {"input": "a b", "output": "c", "input_ids": [1, 2, 3], "output_ids": [4, 5], **output, **changes}
    return json.dumps({"id": "1", "task": "chat", "tokenizer": BYTE_LEVEL.fingerprint(), "turns": [turn]}).encode()


def _recording_samples(folder: Path) -> list[bytes]:
    return [recording()]


def _replay_recording(path: Path) -> None:
    replay(read_recording(path, BYTE_LEVEL), DraftConfig(max_nodes=5))


def _read_cost(path: Path) -> None:
    """A broken cache is no error: the cost is measured again."""
    with (
        patch.object(cost_cache, "cost_path", lambda *_: path),
        patch.object(cost_cache, "measure_pass_cost", lambda *_, **__: COST),
    ):
        cost_cache.load_or_measure(FakeTarget(make_manifest()), 0, 1).pass_seconds(100)


def _session_samples(folder: Path) -> list[bytes]:
    decoder = make_decoder(make_manifest(vocab_size=4), RandomDrafter(4, 6, seed=0))
    decode(decoder, [[1, 2, 3], [3, 3]], [GenerationConfig(max_tokens=9)] * 2)
    save_session(decoder, folder / "sample", bytes.fromhex(TABLE_FINGERPRINT), [{"role": "user", "content": "Zürich"}])
    return [(folder / "sample").read_bytes()]


def _spoil_session(content: bytes, random: Random) -> bytes:
    (table_bytes,) = struct.unpack_from("<I", content, 76)
    changed = mutated(content[80:], random, random.choice((0, table_bytes)))
    return arrays_file(changed, table_bytes, SESSIONS.magic)


def _load_session(path: Path) -> None:
    """What was loaded goes on, whatever it is."""
    decoder = make_decoder(make_manifest(vocab_size=4), RandomDrafter(4, 6, seed=0))
    load_session(decoder, path, bytes.fromhex(TABLE_FINGERPRINT))
    save_session(decoder, path, bytes.fromhex(TABLE_FINGERPRINT), [])
    load_session(decoder, path, bytes.fromhex(TABLE_FINGERPRINT))


def _hybrid_session_samples(folder: Path) -> list[bytes]:
    decoder = _hybrid_decoder()
    decode(decoder, [[1, 2, 3], [3, 3]], [GenerationConfig(max_tokens=9)] * 2)
    save_session(decoder, folder / "sample", bytes.fromhex(TABLE_FINGERPRINT), [])
    return [(folder / "sample").read_bytes()]


def _load_hybrid_session(path: Path) -> None:
    decoder = _hybrid_decoder()
    load_session(decoder, path, bytes.fromhex(TABLE_FINGERPRINT))
    save_session(decoder, path, bytes.fromhex(TABLE_FINGERPRINT), [])
    load_session(decoder, path, bytes.fromhex(TABLE_FINGERPRINT))


def _hybrid_decoder() -> Decoder:
    return Decoder(FakeHybridTarget(hybrid_manifest(4)), RandomDrafter(4, 6, seed=0), EngineConfig(max_batch=4))


_PREFIX = [1, 2, 3, 0] * 40


def _prefix_samples(kind: str, folder: Path) -> list[bytes]:
    shutil.rmtree(folder / "kept", ignore_errors=True)
    decoder = _hybrid_decoder()
    prefixes = PrefixCache(PrefixFiles(folder / "kept", 1 << 20), b"", decoder.cache)
    decoder.slots.prefixes = prefixes
    decoder.finish(decoder.submit(_PREFIX, GenerationConfig(max_tokens=9)))
    prefixes.flush()
    return [path.read_bytes() for path in sorted((folder / "kept").rglob(f"*.{kind}"))]


def _load_prefix(kind: str, path: Path) -> None:
    """In place of the good file whose name it bears, else of any."""
    good = {content[12:44]: content for content in _prefix_samples(kind, path.parent)}
    content = path.read_bytes()
    name = (content[12:44] if content[12:44] in good else next(iter(good))).hex()
    (path.parent / "kept" / name[:2] / f"{name[2:]}.{kind}").write_bytes(content)
    cache = _hybrid_decoder().cache
    files = PrefixFiles(path.parent / "kept", 1 << 20)
    num_loaded = PrefixCache(files, b"", cache).load(cache, 0, _PREFIX, "", 0)
    assert num_loaded == (128 if content in good.values() else num_loaded)


def _gguf_samples(folder: Path) -> list[bytes]:
    pieces = {"\u2581a": -1.0, "a": -2.0, "\u2581": -3.0}
    vocabularies = (small_vocabulary(), sentence_piece(pieces, {}))
    return [write_small(folder / "sample", vocabulary).read_bytes() for vocabulary in vocabularies]


def _spoil_gguf(content: bytes, random: Random) -> bytes:
    """Often behind the vocabulary, where sizes, types and offsets of tensors lie."""
    return mutated(content, random, random.choice((0, 24, content.index(b"token_embd"))))


def _read_gguf(path: Path) -> None:
    """As far as it goes without PyTorch: header, config, tokenizer, and the values of all tensors."""
    summary_of(path)
    source = GgufSource.of(GgufFile.open(path), None)
    tokenizer = build_tokenizer(source.vocabulary)
    tokenizer.decode(tokenizer.encode(TEXTS[1]).ids)
    for name in source.file.tensors:
        source.file.values(name)


def _split_sample(folder: Path) -> Path:
    return split_gguf(write_small(folder / "sample.gguf", small_vocabulary()), 5)


def _second_part(folder: Path) -> list[bytes]:
    return [_split_sample(folder).with_name("sample-00002-of-00003.gguf").read_bytes()]


def _read_parts(path: Path) -> None:
    """A spoilt second part between a good first and third."""
    first = path.parent / "sample-parts" / "sample-00001-of-00003.gguf"
    if not first.exists():
        _split_sample(path.parent)
    first.with_name("sample-00002-of-00003.gguf").write_bytes(path.read_bytes())
    file = GgufFile.open(first)
    for name in file.tensors:
        file.values(name)


SUBJECTS = {
    "manifest": Subject(_manifest_samples, mutated_json, _read_manifest),
    "graph": Subject(lambda _: [(DEMO / GRAPH_NAME).read_bytes()], mutated, GraphFile.read),
    "tokenizer": Subject(
        lambda _: [make().to_str().encode() for make in (byte_level_tokenizer, byte_fallback_tokenizer)],
        mutated_json,
        _read_tokenizer,
    ),
    "template": Subject(lambda _: [CHAT_TEMPLATE.encode()], mutated, _render_template),
    "prompts.txt": Subject(lambda _: ["# tar\n\nZürich\n".encode()], mutated, _encode_prompts),
    "prompts.jsonl": Subject(_prompts_samples, mutated, _encode_prompts),
    "recording.jsonl": Subject(_recording_samples, mutated_json, _replay_recording),
    "cost": Subject(
        lambda _: [json.dumps({"pasts": [64, 512], "widths": [1, 2], "seconds": [[1, 1.5]] * 2, "row_s": 0}).encode()],
        mutated_json,
        _read_cost,
    ),
    "gguf": Subject(_gguf_samples, _spoil_gguf, _read_gguf),
    "part of gguf": Subject(_second_part, mutated, _read_parts),
    "session": Subject(_session_samples, _spoil_session, _load_session),
    "session of states": Subject(_hybrid_session_samples, _spoil_session, _load_hybrid_session),
    **{
        f"{kind} of a prefix": Subject(partial(_prefix_samples, kind), spoil_arrays, partial(_load_prefix, kind))
        for kind in ("rows", "states")
    },
    **DEVICE_SUBJECTS,
    **DRAFTING_SUBJECTS,
    **SPECULATOR_SUBJECTS,
    **SIGNATURE_SUBJECTS,
    **IMAGE_SUBJECTS,
    **MMPROJ_SUBJECTS,
    **HTTP_SUBJECTS,
    **ADAPTER_SUBJECTS,
    **QUANTIZED_SUBJECTS,
}
