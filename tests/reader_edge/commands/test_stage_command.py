"""`reader-edge stage`: what it is asked for together, and what it needs."""

from importlib import util
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge_runtime import assembly


@pytest.mark.parametrize(
    "options", [[], ["--listen", "tcp://127.0.0.1:5551", "--ray", "a:1"], ["--ray", "a:1", "--key", __file__]]
)
def test_a_stage_listens_or_a_cluster_serves_all(options: list[str], runner: CliRunner) -> None:
    told = runner.invoke(main, ["stage", "out", *options])
    assert (told.exit_code, "Give --listen" in told.stderr) == (2, True), told.stderr


def test_what_a_stage_tells_goes_to_standard_error(
    runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "serve_package_stage", lambda *given: given[-1](f"{given[:3]}\x1b"))
    told = runner.invoke(main, ["stage", str(tmp_path), "--listen", "tcp://127.0.0.1:5551", "--key", __file__])
    assert (told.exit_code, told.stdout) == (0, "")
    assert str((tmp_path, "tcp://127.0.0.1:5551", Path(__file__))) in told.stderr
    assert "\x1b" not in told.stderr


def test_without_ray_its_extra_is_named(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    told = runner.invoke(main, ["stage", "out", "--ray", "127.0.0.1:6379"])
    assert told.exit_code == 1
    assert "A Ray cluster needs ray, which is missing: pip install 'reader-edge[ray]'" in told.stderr
