"""GGUF files before the command, and the words of the glossary."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from reader_edge.cli import main
from reader_edge.models.model_source import load_tokenizer
from reader_edge.terminal.export_report import WORDS, check_pairs, glossary
from reader_edge_runtime.errors import InstallationError
from tests.gguf_files import raw_gguf, small_vocabulary, write_gguf, write_small


@pytest.fixture
def path(tmp_path: Path) -> Path:
    values = {
        "general.name": "Small\x1b[2J\nOne",
        "general.license": "apache-2.0",
        "tokenizer.chat_template": "{{ 1 }}",
    }
    return write_small(tmp_path / "small.gguf", small_vocabulary(), values)


def pairs(result: Result) -> dict[str, str]:
    assert (result.exit_code, result.stderr) == (0, "")
    return {
        name.strip(): value.strip()
        for name, value in (line.strip().split("  ", 1) for line in result.stdout.splitlines())
    }


def test_info_tells_what_a_file_holds(runner: CliRunner, path: Path) -> None:
    shown = pairs(runner.invoke(main, ["info", str(path)]))
    assert shown["name"] == "Small?[2J?One"
    assert shown["licence"] == "apache-2.0"
    assert (shown["architecture"], shown["layers"], shown["hidden size"]) == ("llama", "1", "8")
    assert shown["attention heads"] == "2, 1 for keys and values"
    assert (shown["vocabulary"], shown["max context"]) == ("259", "64 tokens")
    assert (shown["tokenizer"], shown["chat template"]) == ("gpt2, gpt-2", "yes")
    assert (shown["tensors"], shown["F32"]) == ("11", "11 tensors, 2,576 values, 10.3 kB")
    assert shown["can be exported"] == "yes"


def test_info_tells_why_a_model_cannot_be_exported(runner: CliRunner, tmp_path: Path) -> None:
    values: dict[str, Any] = {"mamba.block_count": 3, "mamba.expert_count": 8, "mamba.expert_used_count": 2}
    values |= {"mamba.attention.head_count": 4, "mamba.attention.head_count_kv": [0, 2, 0]}
    path = write_gguf(tmp_path / "file", "mamba", values, {"w": np.ones(4, np.float32)})
    shown = pairs(runner.invoke(main, ["info", str(path)]))
    assert (shown["architecture"], shown["layers"], shown["max context"]) == ("mamba", "3", "not given")
    assert shown["experts"] == "8, 2 a token"
    assert shown["attention heads"] == "4, 2 for keys and values"  # of the layer that has some
    assert shown["can be exported"].startswith(f"no: '{path}' holds a model of the architecture 'mamba', which")


def test_info_as_json_holds_the_same(runner: CliRunner, path: Path) -> None:
    fields = json.loads(runner.invoke(main, ["info", str(path), "--json"]).stdout)
    assert (fields["name"], fields["has_chat_template"], fields["refusal"]) == ("Small?[2J?One", True, None)
    assert fields["tensors"] == {"F32": {"num_tensors": 11, "num_values": 2576, "num_bytes": 10304}}
    assert fields["num_bytes"] == path.stat().st_size


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"blk.0.ffn_up.weight": None}, "holds 0 tensors instead of one for blk.0.ffn_up.weight: give another file"),
        ({"blk.0.ffn_up.weight": np.ones((13, 8), "f4")}, "of the shape (13, 8) instead of (12, 8)"),
        ({"blk.0.attn_sinks.weight": np.ones(2, "f4")}, "'blk.0.attn_sinks.weight', for which its architecture has no"),
        ({"rope_freqs.weight": np.ones(3, "f4")}, "has 3 factors for 2 frequencies"),
    ],
)
def test_info_compares_as_export_does(tensors: dict[str, Any], words: str, runner: CliRunner, tmp_path: Path) -> None:
    path = write_small(tmp_path / "small.gguf", small_vocabulary(), tensors=tensors)
    shown = pairs(runner.invoke(main, ["info", str(path)]))["can be exported"]
    assert shown.startswith("no: ")
    assert words in shown
    refused = runner.invoke(main, ["export", str(path), str(tmp_path / "out")])
    assert refused.stderr.splitlines()[-1] == f"Error: {shown.removeprefix('no: ')}"


def test_info_needs_no_pytorch_and_tells_what_it_did_not_compare(path: Path) -> None:
    script = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *parents: None if name == 'torch' else find(name, *parents)\n"
        "from click.testing import CliRunner\n"
        "from reader_edge.cli import main\n"
        "shown = CliRunner().invoke(main, ['info', sys.argv[1]]).stdout\n"
        "assert 'can be exported  yes by its header; whether its tensors fit' in shown, shown\n"
        "assert not {'torch', 'transformers', 'onnx'} & set(sys.modules), 'heavy'\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], env={"PYTHONPATH": ":".join(sys.path)}, check=True)


@pytest.mark.parametrize("command", [["info"], ["run", "-p", "x"], ["export", "--force"]])
def test_a_broken_file_is_one_sentence(command: list[str], runner: CliRunner, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2Jbroken.gguf"
    path.write_bytes(raw_gguf(counts=(1 << 60, 0)))
    out = [str(tmp_path / "out")] if command[0] == "export" else []
    result = runner.invoke(main, [command[0], str(path), *out, *command[1:]])
    assert result.exit_code == 1
    error = result.stderr.splitlines()[-1]
    assert error.startswith("Error: '")
    assert "it counts 1152921504606846976 tensors" in error
    assert "\x1b" not in result.output


def test_what_is_no_model_file_is_one_sentence(runner: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("Dear diary")
    result = runner.invoke(main, ["info", str(tmp_path / "notes.txt")])
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "is no GGUF file: give a .gguf file, a package or a folder" in result.stderr


@pytest.mark.parametrize("command", [["info"], ["run", "-p", "x"], ["export"]])
def test_a_pointer_of_git_lfs_is_no_gguf_file_yet(runner: CliRunner, tmp_path: Path, command: list[str]) -> None:
    path = tmp_path / "model.gguf"
    path.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 123456789\n")
    out = [str(tmp_path / "out")] if command == ["export"] else []
    result = runner.invoke(main, [*command, str(path), *out])
    assert result.exit_code == 1
    shown = f"Error: '{path}' is a pointer of git-lfs and not the file itself: fetch it there with `git lfs pull`.\n"
    assert result.stderr == shown


def test_a_file_lends_its_tokenizer(path: Path) -> None:
    assert load_tokenizer(str(path)).encode("he he") == [256, 257]


def test_without_the_library_the_remedy_is_one_sentence(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_export.libraries.util.find_spec", lambda name: None)
    with pytest.raises(InstallationError, match=r"needs gguf, which is missing: pip install 'reader-edge\[export\]'"):
        load_tokenizer(str(path))


ROOT = Path(__file__).parents[2]
PACKAGES = ("reader_edge", "runtime/reader_edge_runtime", "export/reader_edge_export")
NOT_IN_A_WHEEL = re.compile(r"(?<![\w/])(?:docs|scripts|benchmarks)/\w|\b(?:README|CONTRIBUTING|CHANGELOG)\b")
CARD_MODULES = ("model_card.py", "package.py", "push.py")  # whose README.md is a package's own
EXPLAINED = [line.split("|")[1].strip() for line in glossary().read_text().splitlines() if line.startswith("| ")]
FIGURES = [  # of every check that an export may make
    *("mean_kl_nats", "p99_kl_nats", "top1_agreement", "held_out_tokens", "source_weight_bits", "tree_logit_error"),
    *("logit_scale", "tree_rows_equal", "tree_decoding_spread", "greedy_tokens", "greedy_near_ties"),
    *("chats_compared", "chats_suited", "chats_different"),
    *("speculator_error", "speculator_agreement", "speculator_target_agreement"),
]


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_has_a_word_that_is_explained(figure: str) -> None:
    ((word, shown),) = check_pairs({figure: 1.0})
    assert word == WORDS[figure][0]
    assert word in EXPLAINED
    assert shown.startswith(("1", "by 1", "logits differ by 1", "100", "the source's own 1"))


def _texts(path: Path) -> Iterator[str]:
    """The texts of a module's code. Docstrings stay inside, but for those of commands, which are their help."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    inside = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        is_shown = "commands" in path.parts or id(node) not in inside
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_shown:
            yield node.value


def test_nothing_that_is_shown_points_to_a_file_that_a_wheel_does_not_have() -> None:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name not in CARD_MODULES]
    found = {(path.name, text) for path in modules for text in _texts(path) if NOT_IN_A_WHEEL.search(text)}
    assert len(modules) > 300
    assert found == {("export_report.py", "docs/reference/glossary.md")}  # which the wheel has


def test_the_wheel_has_the_page_of_words() -> None:
    assert glossary().is_file()
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert '"docs/reference/glossary.md" = "reader_edge/glossary.md"' in project
