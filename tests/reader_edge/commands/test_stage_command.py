"""`reader-edge stage`: what it serves, and where its lines go."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge_runtime import assembly


def test_what_a_stage_tells_goes_to_standard_error(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "serve_package_stage", lambda *given: given[-1](f"{given[:3]}\x1b"))
    shown = runner.invoke(main, ["stage", str(tmp_path), "--listen", "tcp://127.0.0.1:5551", "--key", __file__])
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert str((tmp_path, "tcp://127.0.0.1:5551", Path(__file__))) in shown.stderr
    assert "\x1b" not in shown.stderr
