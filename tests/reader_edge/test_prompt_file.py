"""Prompts from a file: lines end where editors end them, and nowhere else."""

import json
from pathlib import Path

import pytest

from reader_edge.prompt_file import read_prompts
from reader_edge_runtime.errors import PromptError

# What str.splitlines takes for line ends besides \n and \r\n.
INSIDE = "a\u2028b\u2029c\x85d\fe\vf\x1cg"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "byte order mark"])
def test_lines_end_at_line_feeds_only(tmp_path: Path, line_end: str, mark: str) -> None:
    text, jsonl = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    text.write_text(mark + line_end.join([INSIDE, "", "two"]), encoding="utf-8", newline="")
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in (INSIDE, "two\n")]
    jsonl.write_text(mark + line_end.join([*lines, ""]), encoding="utf-8", newline="")
    assert read_prompts(text) == [INSIDE, "two"]
    assert read_prompts(jsonl) == [INSIDE, "two\n"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"a\n\xff", r"not UTF-8 text \(byte 2\)"),
        ("a.txt", b"\xef\xbb\xbf\n \n", "holds no prompt"),
        ("a.jsonl", b'{"prompt": "a"}\n{"prompt": 5}', "Line 2 .* is no JSON object"),
        ("a.jsonl", b"[" * 100_000, "Line 1 .* is no JSON object"),
    ],
)
def test_a_file_without_prompts_is_one_sentence(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PromptError, match=words):
        read_prompts(path)
