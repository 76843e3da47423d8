"""No other package may know a wing, whatever module is written next: `lint-imports` says so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytest.importorskip("importlinter", reason="the extra 'dev' has it")

PLANTED = {  # a module, and what it must not import
    "reader_edge/commands/verify.py": "reader_edge_lossy.views",
    "reader_edge/new_room/new.py": "reader_edge_series.forecaster",
    "runtime/reader_edge_runtime/cooperative_threads.py": "reader_edge_lossy.deviation",
    "runtime/reader_edge_runtime/new_room/new.py": "reader_edge_lossy.relaxed",
    "export/reader_edge_export/new.py": "reader_edge_series.series_manifest",
    "wings/reader_edge_series/new.py": "reader_edge_lossy.relaxed",
}


def linted(folder: Path) -> str:
    """What the import rules find in a copy of the sources."""
    paths = os.pathsep.join(str(folder / part) for part in (".", "runtime", "export", "wings"))
    linter, rules = Path(sys.executable).parent / "lint-imports", ROOT / "pyproject.toml"
    command: list[str | Path] = [linter, rules, "--no-cache"]
    found = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    return found.stdout


def test_an_import_of_a_wing_breaks_a_rule_wherever_it_stands(tmp_path: Path) -> None:
    for package in ("reader_edge", "runtime/reader_edge_runtime", "export/reader_edge_export", "wings"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("*.so"))
    assert "0 broken" in linted(tmp_path)
    for name, imported in PLANTED.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        (path.parent / "__init__.py").touch()
        with path.open("a") as file:
            file.write(f"\n\ndef late() -> None:\n    import {imported}\n")
    output = linted(tmp_path)
    modules = [
        name.split("/", name.startswith(("runtime", "export", "wings")))[-1][:-3].replace("/", ".") for name in PLANTED
    ]
    links = [f"{module} -> {imported} " for module, imported in zip(modules, PLANTED.values(), strict=True)]
    assert [link for link in links if link not in output] == []
