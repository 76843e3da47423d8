"""The benchmark of a device before a server: its link delays and loses nothing, and its table says who was faster."""

import importlib.util
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

import benchmarks.device.__main__ as device
from benchmarks.device.__main__ import SETS, WAYS, Seen, check_steps, table
from benchmarks.device.relay import Relay


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
def test_all_ways_give_the_answers_of_the_server_alone(
    demo_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":".join(filter(None, sys.path)))
    sizes = ["--round-trips", "0,10", "--num-prompts", "1", "--tokens", "24", "--rounds", "1"]
    monkeypatch.setattr(sys, "argv", ["device", str(demo_folder), *sizes])
    device.main()
    assert capsys.readouterr().out.count("\n") == 6
