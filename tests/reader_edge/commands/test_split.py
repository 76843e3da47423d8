"""`split` and `stage`: a model over several processes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge.models.model_source import load_tokenizer
from reader_edge_runtime import EngineConfig, assembly
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.package.pipeline_file import KEY_NAME
from tests.stages_here import free_address, stage_process

pytest.importorskip("onnx_ir", reason="the extra 'export' is not installed")


def split(runner: CliRunner, demo_folder: Path, out: Path, *arguments: str) -> str:
    """The report of the command."""
    done = runner.invoke(main, ["split", str(demo_folder), str(out), *arguments])
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(out)
    return done.stderr


@pytest.mark.long
def test_a_model_over_two_processes_keeps_its_promise(runner: CliRunner, demo_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")
    address, out = free_address(), tmp_path / "out"
    split(runner, demo_folder, out, "--stages", "2", "--at", address)
    with stage_process(out / "1", address, "--key", str(out / KEY_NAME)):
        ask = ["-p", "# tar\n", "-n", "30", "--threads", "1", "--no-calibrate"]
        answered, expected = (runner.invoke(main, ["run", str(model), *ask]) for model in (out, demo_folder))
        assert (answered.exit_code, answered.stdout) == (0, expected.stdout), answered.stderr
        proof = runner.invoke(main, ["verify", str(out), "--minutes", "0.2", "--threads", "1", "--json"])
        assert proof.exit_code == 0, proof.stderr
        report = json.loads(proof.stdout)
        assert report["divergences"] == 0 < report["tokens_compared"]
        kept = runner.invoke(main, ["run", str(out), *ask, "--session", str(tmp_path / "talk.res")])
        assert (kept.exit_code, kept.stdout, "several boxes are not kept" in kept.stderr) == (1, "", True)


@pytest.mark.long
def test_a_stage_that_nobody_serves_is_named(
    runner: CliRunner, demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")
    monkeypatch.setattr("reader_edge_runtime.execution.pipeline.ring.ANSWER_S", 0.2)
    address = free_address()
    report = split(runner, demo_folder, tmp_path / "out", "--fit", "8GB,272MB", "--at", address)
    assert "268.4 MB of each box are left for the process" in report
    for name, layers in (("1", "0 to 6 of 8: stage 1 of 2"), ("2", "7 to 7 of 8: stage 2 of 2")):
        shown = runner.invoke(main, ["info", str(tmp_path / "out" / name)])
        assert (shown.exit_code, layers in shown.stdout) == (0, True), shown.output
        alone = runner.invoke(main, ["run", str(tmp_path / "out" / name), "-p", "# tar"])
        assert (alone.exit_code, f"is stage {name} of 2: give the folder above it" in alone.stderr) == (1, True)
    assert load_tokenizer(str(tmp_path / "out")).fingerprint() == load_tokenizer(str(demo_folder)).fingerprint()
    result = runner.invoke(main, ["run", str(tmp_path / "out"), "-p", "# tar"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"Stage 1 at {address} does not answer: start `reader-edge stage` there" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "--stages N, or --fit"),
        (["--stages", "3", "--fit", "1GB,1GB"], "--stages 3 and --fit with 2 boxes differ"),
        (["--fit", "1GB,many"], "Invalid value for '--fit': 'many' is not a size such as 500MB or 4GB"),
    ],
)
def test_wrong_usage_is_shown(
    arguments: list[str], sentence: str, runner: CliRunner, demo_folder: Path, tmp_path: Path
) -> None:
    result = runner.invoke(main, ["split", str(demo_folder), str(tmp_path / "out"), *arguments])
    assert (result.exit_code, sentence in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--stages", "9"], "A model of 8 layers has no 9 stages: give 2 to 8"),
        (
            ["--fit", "260MB,1GB"],
            "MB, of which 268.44 MB are for its process beside weights, where its box has 260.00 MB",
        ),
        (
            ["--fit", "1GB"],
            "One box holds it: the model needs 0.28 GB where the box has 1.00 GB, so no split is needed",
        ),
        (["--fit", "260MB"], "The model does not fit: stage 1 needs"),
        (["--stages", "2", "--at", "10.0.0.2"], "'10.0.0.2' is no address of a stage: give tcp://HOST:PORT"),
        (["--stages", "3", "--at", "tcp://a:1"], "3 stages have 2 addresses"),
    ],
)
def test_a_split_that_cannot_be_leaves_nothing(
    arguments: list[str], sentence: str, runner: CliRunner, demo_folder: Path, tmp_path: Path
) -> None:
    result = runner.invoke(main, ["split", str(demo_folder), str(tmp_path / "out"), *arguments])
    assert (result.exit_code, sentence in result.stderr) == (2, True), result.stderr
    assert not list(tmp_path.iterdir())


def test_what_is_no_stage_is_not_served(runner: CliRunner, demo_folder: Path) -> None:
    pytest.importorskip("zmq", reason="the extra 'pipeline' is not installed")
    result = runner.invoke(main, ["stage", str(demo_folder), "--listen", free_address()])
    assert (result.exit_code, "is no stage: give one of those that `reader-edge split` wrote" in result.stderr) == (
        1,
        True,
    )


def test_a_stage_is_served_by_its_options_and_its_lines_steer_no_terminal(
    runner: CliRunner, demo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[object] = []

    def serve(
        package: ModelPackage, address: str, key: Path | None, config: EngineConfig, on_message: Callable[[str], None]
    ) -> None:
        sent.extend([package.folder, address, key, config.threads, config.uses_native])
        on_message("Serves \x1b[2J.")

    monkeypatch.setattr(assembly, "serve_stage", serve)
    split(runner, demo_folder, tmp_path / "out", "--stages", "2")
    key = tmp_path / "out" / KEY_NAME
    command = ["stage", str(tmp_path / "out" / "1"), "--listen", "tcp://10.0.0.2:5551", "--key", str(key)]
    served = runner.invoke(main, [*command, "--threads", "1", "--no-native"])
    assert (served.exit_code, served.stdout) == (0, "")
    assert sent == [tmp_path / "out" / "1", "tcp://10.0.0.2:5551", key, 1, False]
    assert "\x1b" not in served.stderr
    assert "Serves" in served.stderr


def test_lines_of_stages_go_to_stderr(runner: CliRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "serve_package_stage", lambda *given: given[-1](f"{given[:3]}\x1b"))
    shown = runner.invoke(main, ["stage", str(tmp_path), "--listen", "tcp://127.0.0.1:5551", "--key", __file__])
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert str((tmp_path, "tcp://127.0.0.1:5551", Path(__file__))) in shown.stderr
    assert "\x1b" not in shown.stderr
