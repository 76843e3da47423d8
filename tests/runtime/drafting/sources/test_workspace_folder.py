"""The files of a workspace: what git would track, and nothing that could hang, lead out of it or give secrets away."""

import os
import sys
from pathlib import Path

import pytest

from reader_edge_runtime.drafting.sources.workspace import folder as folder_module
from reader_edge_runtime.drafting.sources.workspace.folder import MAX_FILE_BYTES, WorkspaceFolder
from reader_edge_runtime.errors import ConfigError


def write(root: Path, *paths: str, text: str = "text\n") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, "utf-8")


def found(folder: WorkspaceFolder) -> list[str]:
    return sorted(folder.scan(lambda: None))


def readable(folder: WorkspaceFolder) -> list[str]:
    return [path for path in found(folder) if folder.read(path) is not None]


def test_what_git_ignores_is_left_out_by_the_rules_of_all_its_files(tmp_path: Path) -> None:
    write(
        tmp_path, ".git/config", "src/a.py", "src/a.pyc", "src/lib/b.py", "build/c.py", "src/build/d.py", "notes/own.md"
    )
    write(tmp_path, "src/lib/kept.pyc", "src/lib/gen/e.py", "docs/f.log", "docs/g.md")
    write(tmp_path, ".gitignore", text="*.pyc\n/build/\n*.log\n")
    write(tmp_path, "src/lib/.gitignore", text="!kept.pyc\n/gen\n")
    write(tmp_path, ".git/info/exclude", text="notes/\n")
    assert found(WorkspaceFolder(tmp_path)) == [
        *(".gitignore", "docs/g.md", "src/a.py", "src/build/d.py"),
        *("src/lib/.gitignore", "src/lib/b.py", "src/lib/kept.pyc"),
    ]


def test_a_folder_inside_a_repository_has_the_rules_above_it(tmp_path: Path) -> None:
    write(tmp_path, ".git/config", "a/b/c/kept.py", "a/b/c/no.tmp", "a/b/c/late.py", "a/other.py")
    write(tmp_path, ".gitignore", text="*.tmp\n")
    write(tmp_path, "a/.gitignore", text="/b/c/late.py\n")
    assert found(WorkspaceFolder(tmp_path / "a" / "b")) == ["a/b/c/kept.py"]


def test_changed_rules_hold_with_the_next_scan(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py")
    folder = WorkspaceFolder(tmp_path)
    assert found(folder) == ["a.py", "b.py"]
    write(tmp_path, ".gitignore", text="b.py\n.gitignore\n")
    assert found(folder) == ["a.py"]
    (tmp_path / ".gitignore").unlink()
    assert found(folder) == ["a.py", "b.py"]


@pytest.mark.parametrize(
    "name", [".env", ".env.production", "x/server.pem", "id_rsa", "x/.npmrc", "secrets.yaml", "x/.aws/credentials"]
)
def test_what_mostly_holds_secrets_is_left_out(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, "open.py", ".env.example")
    assert found(WorkspaceFolder(tmp_path)) == [".env.example", "open.py"]


def test_only_text_of_bounded_size_is_read(tmp_path: Path) -> None:
    write(tmp_path, "text.py", "empty.py")
    (tmp_path / "empty.py").write_bytes(b"")
    (tmp_path / "zeros.bin").write_bytes(b"text\0")
    (tmp_path / "latin.txt").write_bytes("Käse".encode("latin-1"))
    (tmp_path / "large.txt").write_bytes(b"a" * (MAX_FILE_BYTES + 1))
    (tmp_path / "mark.txt").write_bytes(b"\xef\xbb\xbfmarked")
    folder = WorkspaceFolder(tmp_path)
    assert readable(folder) == ["mark.txt", "text.py"]
    assert folder.read("mark.txt") == "marked"
    assert dict(folder.left_out) == {"above 1 MiB": 1}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pipes among files, and links need a right")
def test_no_link_is_followed_and_nothing_but_files_is_opened(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    write(root, "real.py", "becomes.py")
    write(outside, "secret.txt")
    (root / "link.txt").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    (root / "loop").symlink_to(root)
    os.mkfifo(root / "pipe")
    (root / "gitless").mkdir()
    os.mkfifo(root / "gitless" / ".gitignore")
    folder = WorkspaceFolder(root)
    assert found(folder) == ["becomes.py", "real.py"]
    for path in ("pipe", "link.txt", "gone.py", "folder/secret.txt/x"):
        assert folder.read(path) is None
    (root / "becomes.py").unlink()
    os.mkfifo(root / "becomes.py")  # since it was listed
    assert folder.read("becomes.py") is None


@pytest.mark.skipif(sys.platform != "linux", reason="other systems hold names to be text")
def test_a_name_that_is_no_text_is_a_name_like_others(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.py")).write_text("text\n", "utf-8")
    write(tmp_path, ".gitignore", text="*.pyc\n")
    folder = WorkspaceFolder(tmp_path)
    assert len(readable(folder)) == 2


@pytest.mark.parametrize("rules", ["# much\n" * 2001, "#" * (1 << 17)], ids=["lines", "bytes"])
def test_rules_beyond_their_bounds_leave_their_folder_out(tmp_path: Path, rules: str) -> None:
    write(tmp_path, "a.py", "in/b.py")
    write(tmp_path, "in/.gitignore", text=rules)
    assert found(WorkspaceFolder(tmp_path)) == ["a.py"]


def test_rules_that_mean_nothing_are_none(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py")
    (tmp_path / ".gitignore").write_bytes(b"\\\n!\n/\n[z-a]\nx\\\n[\n***\\\n\xff\n\0\nb.py\n")
    assert found(WorkspaceFolder(tmp_path)) == [".gitignore", "a.py"]


def test_no_rule_takes_long_to_match(tmp_path: Path) -> None:
    write(tmp_path, "a" * 200, "b.py", "c/a1b2c3d4e", "c/a1b2x")
    write(tmp_path, ".gitignore", text="*a*a*a*a*a*a*a*a*a*b*b\nb.py\na*b*c*d*e\n!*b*b*b*b*p*y\n")
    assert found(WorkspaceFolder(tmp_path)) == [".gitignore", "c/a1b2x"]  # of the first rule, its beginning counts


def test_rules_that_are_made_to_take_long_let_others_go_on_and_leave_out_no_less(tmp_path: Path) -> None:
    write(tmp_path, "a" * 200, "kept.py", "x7y.o", "x150z.o")
    rules = [f"*x{number}*y*.o" for number in range(300)]  # from the hundredth on without the last star and behind
    write(tmp_path, ".gitignore", text="\n".join(rules))
    paces: list[None] = []
    assert sorted(WorkspaceFolder(tmp_path).scan(lambda: paces.append(None))) == [".gitignore", "a" * 200, "kept.py"]
    assert len(paces) > 5  # one for each file, not for each folder alone


def test_deep_folders_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "a/" * 32 + "b.py", "a/" * 33 + "c.py")
    assert found(WorkspaceFolder(tmp_path)) == ["a/" * 32 + "b.py"]


def test_what_is_known_of_files_that_are_gone_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MAX_ENTRIES", 10)
    folder = WorkspaceFolder(tmp_path)
    for number in range(50):
        write(tmp_path, f"{number}/.gitignore", text="*.o\n")
        assert found(folder) == [f"{number}/.gitignore"]
        (tmp_path / f"{number}/.gitignore").unlink()
        (tmp_path / f"{number}").rmdir()
    assert len(folder._verdicts) + len(folder._rules) <= 40


def test_so_many_entries_are_looked_at_and_what_is_left_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "MAX_ENTRIES", 6)
    write(tmp_path, *(f"{letter}/{number}.py" for letter in "abcd" for number in range(3)))
    folder = WorkspaceFolder(tmp_path)
    assert len(found(folder)) == 2  # four folders, then files of the first
    assert sum(folder.left_out.values()) == 3


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        WorkspaceFolder(tmp_path / "none")


def test_a_folder_that_goes_away_has_no_files(tmp_path: Path) -> None:
    write(tmp_path, "root/a.py")
    folder = WorkspaceFolder(tmp_path / "root")
    (tmp_path / "root" / "a.py").unlink()
    (tmp_path / "root").rmdir()
    assert found(folder) == []
