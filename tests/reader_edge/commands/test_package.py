"""`package sign` and `package verify`, and what other commands say of packages that are signed, changed or neither."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from reader_edge.cli import main
from tests.reader_edge.package_copy import PackageCopy
from tests.signing_keys import write_keys

ANSWER = ["-p", "# tar", "-n", "3", "--no-calibrate", "--no-draft"]


class Signers:
    """A package, its owner's keys, and those of a stranger."""

    def __init__(self, package: PackageCopy, folder: Path) -> None:
        self.package, self.folder = package, str(package.folder)
        self.private, self.public = map(str, write_keys(folder, 7))
        self.other_private, self.other_public = map(str, write_keys(folder, 8))

    def sign(self, key: str) -> None:
        assert ran("package", "sign", self.folder, "--key", key).exit_code == 0


def ran(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def signers(package: PackageCopy, tmp_path: Path) -> Signers:
    return Signers(package, tmp_path)


def test_a_signed_package_runs_and_its_signer_is_shown(signers: Signers) -> None:
    signers.sign(signers.private)
    verified = ran("package", "verify", signers.folder, "--key", signers.public)
    assert (verified.exit_code, verified.stderr) == (0, "")
    assert "which was given" in verified.stdout
    assert "checkpoint, fingerprint" in verified.stdout
    assert "reader-edge 0." in verified.stdout
    required = ran("run", signers.folder, *ANSWER, "--require-signature", signers.public)
    assert required.exit_code == 0
    assert required.stderr.startswith(f"'{signers.folder}' is signed by the key ")
    assert required.stderr.endswith(", which was required.\n")
    anybody = ran("run", signers.folder, *ANSWER)
    assert anybody.stderr.endswith("whose owner was not checked (--require-signature).\n")
    assert anybody.stdout == required.stdout
    assert "is signed by the key" in json.loads(ran("info", signers.folder, "--json").stdout)["signature"]


def test_who_knows_no_key_learns_which_key_signed_and_no_more(signers: Signers) -> None:
    signers.sign(signers.other_private)
    verified = ran("package", "verify", signers.folder)
    assert verified.exit_code == 1
    assert "all as they were signed" in verified.stdout
    assert "which was given" not in verified.stdout
    assert verified.stderr == "Error: Whose key it is was not checked: give the owner's public key with --key.\n"


@pytest.mark.parametrize("how", ["unsigned", "tampered", "by another"])
def test_any_other_package_is_refused_in_a_sentence_before_it_is_loaded(
    signers: Signers, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how != "unsigned":
        signers.sign(signers.private if how == "tampered" else signers.other_private)
    if how == "tampered":
        signers.package.change_manifest(max_context=64)
    key = signers.public
    for command in (
        ("package", "verify", signers.folder, "--key", key),
        ("run", signers.folder, *ANSWER, "--require-signature", key),
        ("verify", signers.folder, "--require-signature", key),
        ("serve", signers.folder, "--port", "0", "--require-signature", key),
        ("serve", signers.folder, signers.folder, "--port", "0", "--require-signature", key),
    ):
        with monkeypatch.context() as patched:
            patched.setattr("reader_edge_runtime.assembly.open_target", None)  # nothing may come so far
            result = ran(*command)
        assert result.exit_code == 1, command
        error = result.stderr.splitlines()[-1]
        assert error.startswith(f"Error: '{signers.folder}")
        assert error.endswith(".")
        assert {"unsigned": "is not signed", "tampered": "has changed since", "by another": "is of the key"}[
            how
        ] in error


def test_a_changed_package_runs_with_a_warning_where_no_signature_is_required(signers: Signers) -> None:
    signers.sign(signers.private)
    signers.package.change_manifest(max_context=64)
    result = ran("run", signers.folder, *ANSWER)
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: ")
    assert "reader_edge.json' has changed since the key" in result.stderr


def test_a_draft_model_has_to_be_signed_too(signers: Signers, tmp_path: Path) -> None:
    signers.sign(signers.private)
    other = shutil.copytree(signers.folder, tmp_path / "draft")
    (other / "model.sig").unlink()
    required = ("--require-signature", signers.public, "--draft-model", str(other))
    result = ran("run", signers.folder, "-p", "# tar", "-n", "3", "--no-calibrate", *required)
    assert result.exit_code == 1
    assert f"'{other}' is not signed" in result.stderr


def test_nothing_is_exported_where_a_signature_is_required(
    signers: Signers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is exported here nobody has signed."""
    monkeypatch.setattr("reader_edge.models.model_source.exported", None)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "config.json").write_bytes(b"{}")
    result = ran("run", str(tmp_path / "source"), *ANSWER, "--require-signature", signers.public)
    assert result.exit_code == 1
    assert "source' holds no reader_edge.json" in result.stderr


def test_a_damaged_package_is_not_signed(signers: Signers) -> None:
    (signers.package.folder / "tokenizer.json").write_bytes(b"{}")
    result = ran("package", "sign", signers.folder, "--key", signers.private)
    assert result.exit_code == 1
    assert "tokenizer.json" in result.stderr
    assert not (signers.package.folder / "model.sig").exists()
