"""Fixtures of the tests of the command line."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge_runtime.measuring import pass_cost
from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the user's settings comes in; the cache folder is the tests' own (tests/conftest.py)."""
    monkeypatch.delenv("READER_EDGE_MODEL", raising=False)


@pytest.fixture(autouse=True)
def _measured_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands measure a package's passes at its first use: in few rounds, and not behind the longest texts."""
    monkeypatch.setattr(pass_cost, "_MAX_ROUNDS", pass_cost._MIN_ROUNDS)
    monkeypatch.setattr(pass_cost, "PASTS", pass_cost.PASTS[:2])


@pytest.fixture
def runner() -> CliRunner:
    return CliRunner()


@pytest.fixture
def package(demo_folder: Path, tmp_path: Path) -> PackageCopy:
    """A copy of the demo package."""
    return PackageCopy(demo_folder, tmp_path / "package")


@pytest.fixture
def chat_package(package: PackageCopy) -> PackageCopy:
    """The demo package with a chat template."""
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    return package
