"""Inputs that once broke a reader or were made as attacks: contents of files by kind, each with a name."""

import json
from typing import Any

from reader_edge_runtime.decoding.prefix_files import FORMAT as PREFIXES
from reader_edge_runtime.decoding.session import FORMAT as SESSIONS
from tests.fuzz.other_subjects import arrays_file
from tests.fuzz.subjects import DEMO, SUBJECTS, recording
from tests.gguf_files import raw_gguf, text_bytes

_MANIFEST = json.loads((DEMO / "reader_edge.json").read_bytes())


def _manifest(**changes: Any) -> bytes:
    return json.dumps({**_MANIFEST, **changes}).encode()


def _tokenizer(kind: str, vocab: object, unk: object = None, merges: tuple[str, ...] = ()) -> bytes:
    unknown = {"unk_id" if kind == "Unigram" else "unk_token": unk}
    model = {"type": kind, "vocab": vocab, "merges": merges, **unknown}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model}).encode()


def _kind(name: str) -> tuple[str, int, bytes]:
    """Of a projector."""
    return "clip.projector_type", 8, text_bytes(name)


_COST = {"pasts": [64], "widths": [1, 2], "seconds": [[1.0, 1.5]], "row_s": 0.0}

CORPUS: dict[str, dict[str, bytes]] = {
    "manifest": {
        "a lone surrogate": _manifest(source_name="\ud800"),
        "an escape sequence": _manifest(architecture="\x1b[2J"),
        "400 digits": _manifest(num_layers=10**400),
        "4,500 digits": _manifest().replace(b'"num_layers": 4', b'"num_layers": ' + b"9" * 4500),
        "a figure beyond any float": _manifest(checks={"parity": 10**400}),
        "a name that leads outside": _manifest(files={**_MANIFEST["files"], "../weights": {}}),
        "endless nesting": b"[" * 100_000,
        "not UTF-8": b'{"format": "\xff"}',
    },
    "graph": {"nothing": b"", "a length beyond the file": b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"},
    "tokenizer": {
        "no unknown token": _tokenizer("WordLevel", {"a": 0}, "[UNK]"),
        "an unknown token that is missing": _tokenizer("BPE", {"a": 0}, "<unk>"),
        "an id of four thousand million": _tokenizer("WordLevel", {"a": 4_294_967_295}, "a"),
        "an unknown id outside": _tokenizer("Unigram", [["a", 0.0]], 7),
        "a vocabulary of nothing": _tokenizer("Unigram", []),
        "merges of unknown parts": _tokenizer("BPE", {"a": 0}, merges=("x y",)),
        "endless nesting": b"[" * 100_000,
    },
    "template": {
        "a division by zero": b"{{ 1/0 }}",
        "a bad format": b"{{ '%d' % 'x' }}{{ '{:>9999999999}'.format(1) }}",
        "recursion": b"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "not UTF-8": b"\xff{{ messages }}",
        "all memory": b"{{ 'a' * 3000000000 }}",
        "no end": b"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "nested lists": b"{% set n=namespace() %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
        "a complaint with an escape sequence": b"{{ raise_exception('\x1b[2J' ~ messages) }}",
        "a lone surrogate": b"{{ '\\ud800' }}",
        "the way out of a sandbox": b"{{ ''.__class__.__mro__[1].__subclasses__() }}",
    },
    "prompts.txt": {"not UTF-8": b"\xff\n", "nothing": b"", "other line ends": "a\u2028b\x85c\x0cd".encode()},
    "prompts.jsonl": {
        "a byte order mark": b'\xef\xbb\xbf{"prompt": "a"}\n',
        "other line ends": '{"prompt": "a\u2028b"}\n'.encode(),
        "a lone surrogate": b'{"prompt": "\\ud800"}\n',
        "endless nesting": b"[" * 100_000,
        "4,500 digits": b'{"prompt": ' + b"9" * 4500 + b"}",
        "two kinds": b'{"prompt": "a", "turns": ["a"]}',
        "no messages": b'{"messages": []}',
        "a category of control characters": b'{"prompt": "a", "category": "\\u001b[2J"}',
        "a category that is a lone surrogate": b'{"prompt": "a", "category": "\\ud800"}',
    },
    "recording.jsonl": {
        "not UTF-8": b"\xff\n",
        "a list": b"[]",
        "endless nesting": b"[" * 100_000,
        "an id beyond the vocabulary": recording(output_ids=[4, 257]),
        "a negative id": recording(top_ids=[[1, 2], [3, 1], [2, -3]]),
        "400 digits": recording(input_ids=[10**400]),
        "rows of several lengths": recording(top_ids=[[1, 2], [3], [2, 3]]),
        "rows of rows": recording(top_ids=[[[1, 2]]]),
        "no successors": recording(top_ids=[[], [], []], top_logits=[[], [], []]),
        "a position beyond the text": recording(positions=[0, 2, 5]),
        "positions that go back": recording(positions=[2, 0, 3]),
        "a logit of 400 digits": recording(top_logits=[[10**400, 1.0]] * 3),
        "logits beyond any float32": recording(top_logits=[[1e300, 1.0]] * 3),
        "no numbers": recording(top_logits=[["a", "b"]] * 3),
        "no answer": recording(output_ids=[]),
        "texts that are empty": b'{"turns": [{"input": "", "output": ""}]}',
        "an answer to nothing": b'{"turns": [{"input": "", "output": "a a a"}]}',
    },
    "cost": {
        "400 digits": json.dumps({**_COST, "seconds": [[10**400, 1]]}).encode(),
        "no time": json.dumps({**_COST, "row_s": 10**400}).encode(),
        "no number": json.dumps({**_COST, "row_s": float("nan")}).encode(),
        "a width beyond any model": json.dumps({**_COST, "widths": [1, 10**12]}).encode(),
        "a first width that is not 1": json.dumps({**_COST, "widths": [2, 3]}).encode(),
        "endless nesting": b"[" * 100_000,
    },
    "part of gguf": {
        "more parts than files": raw_gguf([("split.no", 2, b"\1\0"), ("split.count", 2, b"\xff\xff")]),
        "a number of exabytes": raw_gguf([("split.no", 10, b"\xff" * 8), ("split.count", 2, b"\3\0")]),
        "a list for a count": raw_gguf([("split.no", 2, b"\1\0"), ("split.count", 9, bytes(12))]),
    },
    "gguf": {
        "nothing": b"",
        "more tensors than atoms": raw_gguf(counts=(1 << 63, 0)),
        "more values than atoms": raw_gguf(counts=(0, 1 << 63)),
        "a text of exabytes": raw_gguf([("general.name", 8, b"\xff" * 7 + b"\x7f")]),
        "an array of exabytes": raw_gguf([("a", 9, b"\x0a\0\0\0" + b"\xff" * 7 + b"\x7f")]),
        "arrays in arrays": raw_gguf([("a", 9, b"\x09\0\0\0\x01" + bytes(7)) for _ in range(1)]) + b"\x09\0\0\0" * 999,
        "a tensor of exabytes": raw_gguf(tensors=[("token_embd.weight", [1 << 39] * 4, 0, 0)], data=bytes(64)),
        "a tensor behind the end": raw_gguf(tensors=[("token_embd.weight", [4], 0, 1 << 62)], data=bytes(64)),
        "an alignment of nothing": raw_gguf([("general.alignment", 4, bytes(4))]),
    },
    "successors": {
        "nothing": b"",
        "endless nesting": arrays_file(b"[" * 500),
        "sizes of 4,500 digits": arrays_file(b'{"token_ids": ["<i4", [' + b"9" * 4500 + b"]]}"),
        "seventy axes": arrays_file(json.dumps({"token_ids": ["<i4", [1] * 70]}).encode() + bytes(4)),
        "sizes that are text": arrays_file(b'{"token_ids": ["<i4", "11"]}'),
        "numbers for arrays": arrays_file(b'{"token_ids": 1}'),
        "a table behind the end": arrays_file(b"{}", 1 << 31),
    },
    "session": {
        "nothing": b"",
        "no arrays": arrays_file(b"{}", magic=SESSIONS.magic),
        "shapes that are text": arrays_file(b'{"lengths": ["<i4", "11"]}', magic=SESSIONS.magic),
        "a name with no array": arrays_file(b'{"lengths": null}', magic=SESSIONS.magic),
        "a list for a table": arrays_file(b"[]", magic=SESSIONS.magic),
    },
    "rows of a prefix": {"nothing": b"", "no arrays": arrays_file(b"{}", magic=PREFIXES.magic)},
    "states of a prefix": {"nothing": b"", "no arrays": arrays_file(b"{}", magic=PREFIXES.magic)},
    "session of states": {"nothing": b"", "no arrays": arrays_file(b"{}", magic=SESSIONS.magic)},
    "history": {"nothing": b"", "another file": b"PRECIOUS" * 9},
    "datastore": {"nothing": b"", "another file": b"PRECIOUS" * 99},
    "frame": {
        "nothing": b"",
        "endless tokens": b"RD\x01\x44\x00\xff\xff\xff\xff\x07",
        "an endless number": b"RD\x01\x44" + b"\xff" * 999,
        "settings of gigabytes": b"RD\x01\x03" + bytes(16) + b"\x01\xff\xff\xff\xff\x07{}",
        "endless nesting": b"RD\x01\x45" + b'{"stats":' + b"[" * 100_000,
        "counts of text": b'RD\x01\x45{"stats": {"steps_by_width": [["a", "b"]]}}',
        "400 digits": b'RD\x01\x45{"stats": {"num_tokens": 1' + b"0" * 400 + b"}}",
        "infinite seconds": b'RD\x01\x45{"stats": {"num_tokens": Infinity}}',
    },
    "speculator's config": {
        "nothing": b"",
        "endless nesting": b"[" * 100_000,
        "layers that are a list": b'{"speculators_model_type": "eagle3", "transformer_layer_config": []}',
        "a type that is a list": b'{"speculators_model_type": "mtp", "transformer_layer_config": {"model_type": []}}',
    },
    "speculator's weights": {"nothing": b"", "a header of exabytes": b"\xff" * 7 + b"\x7f"},
    "signature": {"nothing": b"", "endless nesting": b"[" * 100_000, "a list": b"[]"},
    "certificate": {
        "nothing": b"",
        "endless nesting": b"[" * 100_000,
        "4,500 digits": b'{"format_version": ' + b"9" * 4500 + b"}",
    },
    "signed statement": {
        "nothing": b"",
        "endless nesting": b"[" * 100_000,
        "a key that is none": json.dumps({"predicate": {"public_key": "A" * 10_000}}).encode(),
    },
    "mmproj": {
        "nothing": b"",
        "another kind": raw_gguf([("general.architecture", 8, text_bytes("clip")), _kind("ldp")]),
        "more values than there are": raw_gguf([("general.architecture", 8, text_bytes("clip"))], counts=(0, 1 << 15)),
        "tensors that tell no sizes": raw_gguf([("general.architecture", 8, text_bytes("clip")), _kind("gemma4v")]),
        "a tensor of exabytes": raw_gguf(tensors=[("v.patch_embd.weight", [1 << 39] * 4, 0, 0)], data=bytes(64)),
    },
    "body": {
        "nothing": b"",
        "endless nesting": b'{"path": "/v1/completions", "body": ' + b"[" * 100_000,
        "4,500 digits": b'{"path": "/v1/completions", "body": {"max_tokens": ' + b"9" * 4500 + b"}}",
        "a list for a path": b'{"path": [], "body": {}}',
    },
    "image": {
        "nothing": b"",
        "a canvas of 2**48 pixels": b"RIFF\xff\xff\xff\x7fWEBPVP8X" + b"\xff" * 30,
        "a canvas of 179 Mpx": b"RIFF\xff\xff\xff\x7fWEBPVP8X\x0a\0\0\0\0\0\0\0\x3f\x34\0\x3f\x34\0",
        "a screen of 65,535 lines": b"GIF89a\xff\xff\xff\xff\xf7\0\0"
        + bytes(768)
        + b"\x2c\0\0\0\0\xff\xff\xff\xff\0\x08\0;",
        "rows from below": b"BM" + bytes(8) + b"\x36\0\0\0\x28\0\0\0\x01\0\0\0\0\0\0\x80\x01\0\x18" + bytes(25),
        "scans without number": b"\xff\xd8" + b"\xff\xda\0\x08\x01\x01\0\0\x3f\0" * 100_000,
    },
    "adapter's config": {"a pattern that runs for years": b'{"peft_type": "LORA", "alpha_pattern": {"(.*)*x": 1}}'},
    "adapter's weights": {"a header without end": b"\xff" * 8},
    "adapter in gguf": {"no tensors": raw_gguf([("general.type", 8, text_bytes("adapter"))])},
    "fp8 config": {"settings that are a list": b'{"model_type": "llama", "quantization_config": [4]}'},
    "fp8 weights": {"nothing": b""},
    "quantised config": {
        "layers of another kind": b'{"model_type": "llama", "quantization": {"bits": 4, "a": {"bits": []}}}'
    },
    "quantised weights": {"nothing": b"", "a header without end": b"\xff" * 8},
}

assert CORPUS.keys() == SUBJECTS.keys()
