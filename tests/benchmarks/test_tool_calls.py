"""The replay of calls: guesses of what tools allow save passes."""

from pathlib import Path

from benchmarks.tool_calls import replay
from reader_edge_runtime.assembly import open_package
from reader_edge_runtime.text.tokenizer import Tokenizer
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy


def test_calls_take_fewer_passes_where_they_are_guessed(demo_folder: Path, tmp_path: Path) -> None:
    package = PackageCopy(demo_folder, tmp_path / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    tokenizer = Tokenizer.open(open_package(package.folder))
    num_tokens, num_passes = replay(tokenizer, 8, is_guessed=True, in_turn=False)
    assert replay(tokenizer, 8, is_guessed=False, in_turn=False) > (num_tokens, 1.2 * num_passes)
