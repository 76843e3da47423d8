"""The protocol, the frozen processes and the rounds, with reader-edge's own worker on the demo model."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers.measuring import Round, random_prompt
from benchmarks.peers.runtimes import RUNTIMES, Contender
from benchmarks.peers.worker_process import WorkerError, WorkerProcess
from reader_edge_runtime import Engine, GenerationConfig


def state(pid: int) -> str:
    """The kernel's letter for a process: T stopped, S asleep."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def contender(tmp_path: Path, demo_folder: Path) -> Contender:
    contender = Contender(replace(RUNTIMES[0], requirements=()), "int8", tmp_path)
    contender.converted("demo").parent.mkdir(parents=True)
    contender.converted("demo").symlink_to(demo_folder)
    return contender


def test_a_round_measures_what_the_engine_decodes_whoever_else_fails(contender: Contender, engine: Engine) -> None:
    prompt = random_prompt(40, 0, "demo")
    missing = replace(contender, precision="int4")
    with Round([missing, contender], "demo") as workers:
        workers.generate(prompt, 6, turn=1)
        workers.passes(prompt, rounds=2, turn=1)
    assert "int4" in workers.records[missing.name]["error"]
    record = workers.records[contender.name]
    assert "error" not in record
    assert len(record["first_s"]) == len(record["token_s"]) == 1
    assert {width: len(seconds) for width, seconds in record["pass_s"].items()}["16"] == 2
    assert record["peak_bytes"] > 10_000_000
    config = GenerationConfig(max_tokens=6, ignores_eos=True, is_drafted=False)
    sequence = engine.decoder.submit(prompt, config)
    engine.decoder.finish(sequence)
    assert record["token_ids"] == [list(sequence.output_token_ids)]


def test_an_idle_worker_is_stopped_and_a_failure_names_its_reason(contender: Contender, tmp_path: Path) -> None:
    worker = WorkerProcess(contender.python, "reader_edge_worker.py", tmp_path / "log", contender.environment)
    try:
        with pytest.raises(WorkerError, match="nowhere"):
            worker.ask("load", model=str(tmp_path / "nowhere"), threads=1, is_drafted=False)
        assert state(worker.pid) == "T"
    finally:
        worker.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)
