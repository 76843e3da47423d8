"""`--judge FILE`: what is no judge of the model is refused in one sentence, and nothing is answered."""

import hashlib
import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from reader_edge.cli import main
from reader_edge_runtime import Engine
from reader_edge_runtime.lossy.judge_figures import num_figures
from reader_edge_runtime.lossy.judge_file import JudgeFile

TRAIN = "train it again with 'reader-edge lossy train-judge'."
HEADER_BYTES = 80


def refusal(demo_folder: Path, judge: Path) -> str:
    """What standard error says."""
    asked = ["--rule", "judge", "--judge", str(judge), "--no-calibrate", "-p", "# tar", "-n", "4"]
    refused = CliRunner().invoke(main, ["lossy", "run", str(demo_folder), *asked])
    assert (refused.exit_code, refused.stdout) == (1, "")
    return refused.stderr.replace("\n", " ").strip()


def with_table(judge: bytes, table: object) -> bytes:
    """A judge's header, and a table of arrays that its checksum fits."""
    told = json.dumps(table).encode()
    (table_bytes,) = struct.unpack_from("<I", judge, HEADER_BYTES - 4)
    body = told + judge[HEADER_BYTES + table_bytes :]
    return judge[:44] + hashlib.sha256(body).digest() + struct.pack("<I", len(told)) + body


@pytest.fixture
def judge(engine: Engine, tmp_path: Path) -> Path:
    path = tmp_path / "some.judge"
    JudgeFile(np.zeros(1 + num_figures(engine.package.manifest))).write(path, engine.package.manifest)
    return path


@pytest.mark.parametrize("factor", [np.nan, np.inf, 1e300])
def test_weights_that_are_no_numbers(engine: Engine, demo_folder: Path, judge: Path, factor: float) -> None:
    size = 1 + num_figures(engine.package.manifest)
    JudgeFile(np.full(size, factor)).write(judge, engine.package.manifest)
    said = f"'{judge}' does not hold {size} weights that are numbers: {TRAIN}"
    assert refusal(demo_folder, judge).endswith(said)


def test_a_judge_of_another_package(engine: Engine, demo_folder: Path, judge: Path) -> None:
    manifest = replace(engine.package.manifest, source_fingerprint="0" * 64)
    JudgeFile(np.zeros(1 + num_figures(manifest))).write(judge, manifest)
    assert refusal(demo_folder, judge).endswith(f"'{judge}' belongs to another model: name another file.")


@pytest.mark.parametrize(
    "table",
    [
        {"weights": ["<f8", [1 << 60]]},
        {"weights": ["<f8", [1 << 31, 1 << 31]]},
        {"weights": ["<f8", [10**400]]},
        {"weights": ["<f8", [-8]]},
        {"weights": ["|O", [8]]},
    ],
    ids=["exabytes", "a product beyond 64 bits", "400 digits", "less than nothing", "objects"],
)
def test_sizes_that_cannot_be(demo_folder: Path, judge: Path, table: object) -> None:
    judge.write_bytes(with_table(judge.read_bytes(), table))
    assert refusal(demo_folder, judge).endswith(f"'{judge}' has no sound table of arrays: {TRAIN}")


def test_other_files(demo_folder: Path, judge: Path) -> None:
    sound = judge.read_bytes()
    judge.write_bytes(sound[:-1])
    assert refusal(demo_folder, judge).endswith(f"'{judge}' is damaged: {TRAIN}")
    judge.write_bytes(sound + bytes(1 << 22))
    assert refusal(demo_folder, judge).endswith(f"'{judge}' is not a file of a judge: name another file.")
    judge.write_bytes(b"PRECIOUS" * 99)
    assert refusal(demo_folder, judge).endswith(
        f"'{judge}' is not a file of a judge of this version: name another file."
    )
