"""Processes that benchmarks measure: their memory, their workers, and a device before a server."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import benchmarks.device.__main__ as device
from benchmarks.device.__main__ import SETS, WAYS, Seen, check_steps, table
from benchmarks.device.relay import Relay
from benchmarks.exports.process_tree import descendants, memory_of
from benchmarks.peers.measuring import Round, random_prompt
from benchmarks.peers.runtimes import RUNTIMES, Contender
from benchmarks.peers.worker_process import WorkerError, WorkerProcess
from reader_edge_runtime import Engine, GenerationConfig

needs_process_tree = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
MIB = 1 << 20
# A program that holds bytes in anonymous memory, then in a process of its own; or pages of a mapped file.
HOLD = "block = bytearray(b'x') * (64 << 20)"
FORK = f"""
import os, signal
{HOLD}
if os.fork() == 0:
    {{child}}
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
"""
MAP = """
import mmap, signal, sys
file = open(sys.argv[1], "rb")
pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
sum(pages[::4096])
print("ready", flush=True)
signal.pause()
"""


@contextmanager
def held(source: str, *arguments: str) -> Iterator[list[int]]:
    """The processes of a program that has printed its first line."""
    process = subprocess.Popen([sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield (pids := [process.pid, *descendants(process.pid)])
    finally:
        for pid in reversed(pids):
            subprocess.run(["kill", str(pid)], check=True)
        process.wait()
        process.stdout.close()


@needs_process_tree
def test_memory_that_a_fork_shares_counts_once() -> None:
    with held(FORK.format(child="pass")) as pids:
        assert len(pids) == 2
        assert 64 * MIB <= memory_of(pids).anonymous < 128 * MIB


@needs_process_tree
def test_memory_of_each_process_counts() -> None:
    with held(FORK.format(child="own = bytearray(b'y') * (64 << 20)")) as pids:
        assert memory_of(pids).anonymous >= 128 * MIB
        assert memory_of(pids[:1]).anonymous < 128 * MIB


@needs_process_tree
def test_pages_of_a_mapped_file_are_kept_apart(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(64 * MIB))
    with held(MAP, str(tmp_path / "file")) as pids:
        use = memory_of(pids)
    assert use.mapped >= 64 * MIB
    assert use.anonymous < 64 * MIB
    assert use.total == use.anonymous + use.mapped


@needs_process_tree
def test_a_process_that_has_ended_uses_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert memory_of([process.pid]).total == 0


@pytest.mark.long
@needs_process_tree
def test_the_script_reports_each_stage_and_exits_as_the_command_does(tmp_path: Path) -> None:
    child = f"import time; {HOLD}; time.sleep(1)"  # long enough for many samples
    command = f"""
import subprocess, sys
print("0 %\\r50 %\\rsmall", flush=True)
print("large", flush=True)
subprocess.run([sys.executable, "-c", "{child}"])
sys.exit(3)
"""
    script = [sys.executable, "-m", "benchmarks.exports", "--json", str(tmp_path / "figures.json")]
    done = subprocess.run([*script, "--", sys.executable, "-c", command], capture_output=True, text=True)
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert done.returncode == figures["exit_code"] == 3
    assert [stage["line"] for stage in figures["stages"]] == ["", "small", "large"]
    assert figures["stages"][1]["peaks"]["anonymous"] < 64 * MIB <= figures["stages"][2]["peaks"]["anonymous"]
    assert figures["peaks"] == figures["stages"][2]["peaks"]
    assert figures["seconds"] >= 1
    assert done.stdout == ""
    assert "in all: exit code 3" in done.stderr


def state(pid: int) -> str:
    """The kernel's letter for a process: T stopped, S asleep."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def contender(tmp_path: Path, demo_folder: Path) -> Contender:
    contender = Contender(replace(RUNTIMES[0], requirements=()), "int8", tmp_path)
    contender.converted("demo").parent.mkdir(parents=True)
    contender.converted("demo").symlink_to(demo_folder)
    return contender


def test_a_round_measures_what_the_engine_decodes_though_others_fail(contender: Contender, engine: Engine) -> None:
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


def test_a_link_delays_both_ways_and_keeps_the_order() -> None:
    def echo() -> None:
        connection, _ = place.accept()
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as place:
        echoing = threading.Thread(target=echo)
        echoing.start()
        with Relay(place.getsockname()[1], 0.05) as relay:
            with socket.create_connection(("127.0.0.1", relay.port)) as connection:
                connection.sendall(b"a" * 1000)
                start, came = time.monotonic(), b""
                for number in range(20):
                    connection.sendall(bytes([number]))
                while len(came) < 1020:
                    came += connection.recv(1 << 16)
                seconds = time.monotonic() - start
            echoing.join(60)
    assert came == b"a" * 1000 + bytes(range(20))
    assert seconds >= 0.1


def test_the_table_compares_the_fastest_answers() -> None:
    seconds = {"server alone": 2.0, "hints": 1.0, "lock-step": 4.0, "optimistic": 3.0}
    found = [
        Seen(way, kind, 40, prompt, 100, 50, 10, seconds[way] + slower)
        for way in WAYS
        for kind in SETS
        for prompt in (0, 1)
        for slower in (5.0, 0.0)
    ]
    lines = table(found).splitlines()
    assert lines[2] == "| 40 | known | 50.0 | 100.0 | 25.0 | 33.3 | 2.000 (2.000 to 2.000) |"
    assert len(lines) == 4


def test_an_answer_that_did_not_wait_for_its_device_ends_the_benchmark() -> None:
    check_steps(Seen("lock-step", "unknown", 100, 0, 64, 11, 0, 1.01))
    with pytest.raises(SystemExit, match=r"11 steps .* over 100 ms"):
        check_steps(Seen("lock-step", "unknown", 100, 0, 64, 11, 0, 0.66))


@pytest.mark.skipif(importlib.util.find_spec("websockets") is None, reason="needs websockets, of the extra 'remote'")
@pytest.mark.long
def test_answers_are_the_server_s(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    sizes = ["--round-trips", "0,10", "--num-prompts", "1", "--tokens", "24", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["device", str(demo_folder), *sizes])
    device.main()
    assert capsys.readouterr().out.count("\n") == 6
