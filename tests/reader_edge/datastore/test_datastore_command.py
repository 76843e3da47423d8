"""`reader-edge datastore`: built from texts, reported, searched and merged."""

import errno
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge_runtime import atomic_file
from reader_edge_runtime.drafting.sources.datastore.builder import DatastoreBuilder
from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from tests.reader_edge.datastore.conftest import TEXT, Command, failed
from tests.reader_edge.package_copy import PackageCopy
from tests.runtime.drafting.sources.datastore_reference import check_structure
from tests.small_disk import small_disk


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def built(command: Command, corpus: Path, tmp_path: Path) -> Path:
    out = tmp_path / "corpus.ds"
    assert command("build", corpus, "-o", out).exit_code == 0
    return out


def test_build_prints_the_file_it_wrote(command: Command, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "new.ds"
    result = command("build", corpus, "-o", out)
    assert result.exit_code == 0
    assert result.stdout == f"{out}\n"
    assert "bytes a token" in result.stderr
    check_structure(Datastore.open(out))
    assert not list(tmp_path.glob(".*"))


def test_info_tells_what_the_file_is(command: Command, built: Path) -> None:
    result = command("info", built)
    lines = dict(line.split("  ", 1) for line in result.stdout.splitlines())
    assert lines["documents"].strip() == "1"
    assert lines["corpus"].strip() == "corpus.txt"
    assert lines["checksum"].strip() == "verified"
    fields = json.loads(command("info", built, "--json").stdout)
    assert fields["num_bytes"] == built.stat().st_size
    assert fields["corpus"] == ["corpus.txt"]
    assert fields["checksum_verified"] is True
    assert fields["num_tokens"] == int(lines["tokens"])


def test_info_finds_a_changed_body(command: Command, built: Path) -> None:
    data = bytearray(built.read_bytes())
    data[-1] ^= 1
    built.write_bytes(data)
    assert "differs from its checksum" in failed(command("info", built))


def test_search_shows_the_most_frequent_continuations(command: Command, built: Path) -> None:
    result = command("search", built, "xyz sat on the", "-n", 2)
    assert result.exit_code == 0
    counts, texts = zip(*(line.split("  ", 1) for line in result.stdout.splitlines()), strict=True)
    assert counts == ("3", "1")
    assert texts[0].startswith("' mat\\n")
    assert texts[1].startswith("' rug\\n")
    assert result.stderr == "4 found: ' sat on the'; how often, and what follows:\n"


def test_search_for_what_does_not_occur_finds_nothing(command: Command, built: Path) -> None:
    result = command("search", built, "~")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "0 found: ''\n")


def test_merge_equals_a_build_of_all_files(command: Command, corpus: Path, built: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.txt"
    other.write_text("a cow\x1eone\nsat\x1etwo\nhere", encoding="utf-8")
    assert command("build", other, "-o", tmp_path / "other.ds").exit_code == 0
    assert command("build", corpus, other, "-o", tmp_path / "both.ds").exit_code == 0
    result = command("merge", built, tmp_path / "other.ds", "-o", tmp_path / "merged.ds")
    assert result.stdout == f"{tmp_path / 'merged.ds'}\n"
    assert (tmp_path / "merged.ds").read_bytes() == (tmp_path / "both.ds").read_bytes()
    assert Datastore.open(tmp_path / "merged.ds").header.num_documents == 4


@pytest.mark.parametrize("name", ["model", "model/tokenizer.json"])
def test_the_tokenizer_may_be_a_folder_or_a_file(
    runner: CliRunner, command: Command, corpus: Path, built: Path, tmp_path: Path, name: str
) -> None:
    arguments = ["-o", str(tmp_path / "again.ds"), "--tokenizer", str(tmp_path / name)]
    assert runner.invoke(main, ["datastore", "build", str(corpus), *arguments]).exit_code == 0
    assert (tmp_path / "again.ds").read_bytes() == built.read_bytes()


def test_a_package_s_datastore_fits(runner: CliRunner, package: PackageCopy, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "package.ds"
    arguments = ["datastore", "build", str(corpus), "-o", str(out), "--tokenizer", str(package.folder)]
    assert runner.invoke(main, arguments).exit_code == 0
    assert Datastore.open(out).header.vocab_size <= package.read_manifest()["vocab_size"]


def test_the_fingerprint_is_of_content(
    command: Command, corpus: Path, built: Path, tokenizer: Path, tmp_path: Path
) -> None:
    path = tokenizer / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content["truncation"] = {"max_length": 4, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    path.write_text(json.dumps(dict(reversed(content.items()))), encoding="utf-8")
    assert command("search", built, "the").exit_code == 0
    content["model"]["merges"].pop()
    path.write_text(json.dumps(content), encoding="utf-8")
    assert "another tokenizer" in failed(command("search", built, "the"))


def test_an_existing_file_is_replaced_only_by_force(command: Command, corpus: Path, built: Path) -> None:
    before = built.read_bytes()
    assert "exists: add --force" in failed(command("build", corpus, "-o", built), 2)
    assert "exists: add --force" in failed(command("merge", built, "-o", built), 2)
    assert built.read_bytes() == before
    assert command("merge", built, built, "-o", built, "--force").exit_code == 0
    assert Datastore.open(built).header.num_documents == 2


def test_force_replaces_nothing_but_a_datastore(command: Command, corpus: Path, built: Path) -> None:
    for name, source, out in (("build", corpus, corpus), ("merge", built, corpus), ("build", corpus, "/dev/null")):
        assert "is not a datastore: name another file" in failed(command(name, source, "-o", out, "--force"), 2)
    assert corpus.read_text(encoding="utf-8") == TEXT


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("-o", "no/such/folder/x.ds"), "There is no folder"),
        (("-o", "x.ds", "--max-memory", "lots"), "is not a size such as"),
        (("-o", "x.ds", "--max-memory", f"{'9' * 400}GB"), "is not a size such as"),
        (("-o", "x.ds", "--format", "docx"), "is not one of"),
    ],
)
def test_wrong_usage_is_shown(command: Command, corpus: Path, arguments: tuple[str, ...], sentence: str) -> None:
    assert sentence in failed(command("build", corpus, *arguments), 2)


def test_a_corpus_beyond_memory_is_refused(command: Command, corpus: Path, built: Path, tmp_path: Path) -> None:
    for name, source in (("build", corpus), ("merge", built)):
        sentence = failed(command(name, source, "-o", tmp_path / "small.ds", "--max-memory", "100MB"))
        assert sentence.startswith("This corpus takes about 400.0 MB of memory, more than --max-memory 100.0 MB")
    assert not (tmp_path / "small.ds").exists()


def test_an_interrupt_leaves_nothing(
    command: Command, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: DatastoreBuilder, token_ids: list[int]) -> None:
        raise KeyboardInterrupt

    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(DatastoreBuilder, "add", interrupt)
    result = command("build", corpus, "-o", tmp_path / "new.ds")
    assert result.exit_code == 130
    assert sorted(tmp_path.rglob("*")) == before


def test_a_disk_that_is_full_keeps_nothing(command: Command, corpus: Path, built: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with small_disk(len(built.read_bytes()) // 2):
        results = [command("build", corpus, "-o", tmp_path / "new.ds"), command("merge", built, "-o", built, "--force")]
    for result, name in zip(results, ("new.ds", "corpus.ds"), strict=True):
        sentence = "cannot be written (File too large): see to its disk, then build it again."
        assert failed(result) == f"'{tmp_path / name}' {sentence}"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_folder_that_cannot_be_written_is_shown_before_the_work(
    command: Command, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(target: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(atomic_file, "clear_leftovers", refuse)
    monkeypatch.setattr(DatastoreBuilder, "add", lambda builder, token_ids: pytest.fail("read"))
    sentence = "cannot be written (Permission denied): name a file in a folder that can be written."
    assert failed(command("build", corpus, "-o", tmp_path / "new.ds")).endswith(sentence)


def test_a_tokenizer_that_is_none_is_shown(runner: CliRunner, corpus: Path, tmp_path: Path) -> None:
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}", encoding="utf-8")
    for name, sentence in ((tmp_path / "nowhere", "There is nothing at"), (broken, "is not a readable tokenizer")):
        arguments = ["-o", str(tmp_path / "new.ds"), "--tokenizer", str(name)]
        result = runner.invoke(main, ["datastore", "build", str(corpus), *arguments])
        assert result.exit_code == (1 if name is broken else 2)
        assert sentence in result.stderr


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize(("modes", "expected"), [((0o600, 0o644), 0o600), ((0o640, 0o660), 0o640), ((0o444,), 0o644)])
def test_a_datastore_may_be_read_by_those_who_may_read_all_that_it_was_built_from(
    command: Command, modes: tuple[int, ...], expected: int, tmp_path: Path
) -> None:
    files, out = [tmp_path / f"{number}.txt" for number in range(len(modes))], tmp_path / "out.ds"
    for file, mode in zip(files, modes, strict=True):
        file.write_text(TEXT, encoding="utf-8")
        file.chmod(mode)
    for options in ([], ["--force"]):  # the second replaces a file that others may read
        assert command("build", *files, "-o", out, *options).exit_code == 0
        assert out.stat().st_mode & 0o777 == expected & ~_umask()
        out.chmod(0o666)
    out.chmod(0o600)
    assert command("merge", out, out, "-o", tmp_path / "merged.ds").exit_code == 0
    assert (tmp_path / "merged.ds").stat().st_mode & 0o777 == 0o600


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
