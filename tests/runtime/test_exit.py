"""A process ends as it means to, whatever its threads are at."""

import subprocess
import sys
from pathlib import Path

DECODING = """
import threading, time
from reader_edge_runtime import Engine, GenerationConfig

engine = Engine.load({package!r})

def ask():
    while True:
        engine.generate("# tar", GenerationConfig(max_tokens=400, ignores_eos=True))

threads = [threading.Thread(target=ask, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
while not engine.decoder.running:
    time.sleep(0.01)
"""


def test_a_process_ends_in_order_while_daemon_threads_decode(demo_folder: Path) -> None:
    command = [sys.executable, "-c", DECODING.format(package=str(demo_folder))]
    ended = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(3)]
    assert [(each.returncode, each.stderr) for each in ended] == [(0, "")] * 3
