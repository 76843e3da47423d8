"""Every way a package can be wrong is one sentence and exit code 1."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from reader_edge.cli import main
from tests.reader_edge.package_copy import PackageCopy


def _truncate(package: PackageCopy) -> None:
    path = package.folder / "model.onnx.data"
    path.write_bytes(path.read_bytes()[:-1])


def _flip_bit(package: PackageCopy) -> None:
    path = package.folder / "model.onnx.data"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _lose_file(package: PackageCopy) -> None:
    (package.folder / "model.onnx").unlink()


def _lose_manifest(package: PackageCopy) -> None:
    (package.folder / "reader_edge.json").unlink()


def _break_manifest(package: PackageCopy) -> None:
    (package.folder / "reader_edge.json").write_text('{"format_version":')


def _take_newer_format(package: PackageCopy) -> None:
    package.change_manifest(format_version=99)


def _point_outside(package: PackageCopy) -> None:
    files = package.read_manifest()["files"]
    package.change_manifest(files=files | {"../secret": {"num_bytes": 1, "sha256": "0" * 64}})


def _link_nowhere(package: PackageCopy) -> None:
    path = package.folder / "tokenizer.json"
    path.unlink()
    path.symlink_to("elsewhere.json")


def _take_larger_tokenizer(package: PackageCopy) -> None:
    num_tokens = package.read_manifest()["vocab_size"] + 1
    tokenizer = Tokenizer(WordLevel({str(i): i for i in range(num_tokens)}))
    package.write_file("tokenizer.json", tokenizer.to_str().encode())


def _take_no_tokenizer(package: PackageCopy) -> None:
    package.write_file("tokenizer.json", b"{}")


def _take_no_graph(package: PackageCopy) -> None:
    package.write_file("model.onnx", b"not a graph")


def _claim_more_layers(package: PackageCopy) -> None:
    package.change_manifest(num_layers=package.read_manifest()["num_layers"] + 1)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_truncate, "bytes instead of"),
        (_flip_bit, "differs from its checksum"),
        (_lose_file, "is missing"),
        (_lose_manifest, "it has neither reader_edge.json"),
        (_break_manifest, "is not valid JSON"),
        (_take_newer_format, "format version 99"),
        (_point_outside, "an unusable name in files ('../secret')"),
        (_link_nowhere, "is a link to 'elsewhere.json', where nothing is"),
        (_take_larger_tokenizer, "it belongs to another model"),
        (_take_no_tokenizer, "is not a readable tokenizer"),
        (_take_no_graph, "is not an ONNX model"),
        (_claim_more_layers, "differ from the manifest"),
    ],
)
def test_a_spoilt_package_is_one_sentence(
    runner: CliRunner, package: PackageCopy, spoil: Callable[[PackageCopy], None], words: str
) -> None:
    spoil(package)
    result = runner.invoke(main, ["run", str(package.folder), "-p", "# tar"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


@pytest.mark.parametrize("command", ["run", "verify", "info"])
def test_a_folder_that_is_missing_or_empty_is_one_sentence(runner: CliRunner, tmp_path: Path, command: str) -> None:
    missing = runner.invoke(main, [command, str(tmp_path / "missing")], input="# tar")
    assert missing.exit_code == 2
    assert missing.stderr.startswith("Error: There is nothing at '")
    (tmp_path / "empty").mkdir()
    empty = runner.invoke(main, [command, str(tmp_path / "empty")], input="# tar")
    assert empty.exit_code == 1
    assert "is no model: it has neither reader_edge.json (a package) nor config.json (a Hugging" in empty.stderr


@pytest.mark.long
@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_package_in_the_hubs_cache_answers(
    runner: CliRunner, package: PackageCopy, tmp_path: Path, is_read_only: bool
) -> None:
    plain = runner.invoke(main, ["run", str(package.folder), "-p", "# tar", "-n", "4"])
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "0123abcd"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(package.folder.iterdir())):
        path.rename(blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{number:064x}")
    if is_read_only:
        snapshot.chmod(0o500)
    linked = runner.invoke(main, ["run", str(snapshot), "-p", "# tar", "-n", "4"])
    assert (linked.exit_code, linked.stdout) == (0, plain.stdout)
    assert plain.stdout


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("adapter_config.json", "holds an adapter"),
        ("one.gguf", "holds GGUF files (one.gguf)"),
        ("snapshots/0123/config.json", "is the hub cache's folder of a model"),
        ("config.json", "cannot be exported"),
    ],
)
def test_a_folder_of_another_kind_is_shown_as_what_it_is(
    runner: CliRunner, tmp_path: Path, file: str, words: str
) -> None:
    path = tmp_path / "folder" / file
    path.parent.mkdir(parents=True)
    path.write_text('{"model_type": "mamba"}')
    result = runner.invoke(main, ["run", str(tmp_path / "folder"), "-p", "# tar"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert words in result.stderr
