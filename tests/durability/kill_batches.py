"""Kill -9 during `reader-edge batch`, again and again: is any line lost, repeated or torn?

    python -m tests.durability.kill_batches

Each batch is answered by commands that are killed at random moments, until one gets to its end; then its output must
have one whole line for each request, with the answer that an undisturbed batch gave. Exit code 1 where it has not.
"""

import argparse
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from reader_edge.models.model_source import find_package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--requests", type=int, default=40, help="of a batch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        num_batches = kill_batches(find_package(options.model), Path(folder), options.kills, options.requests)
    print(f"{options.kills} kills over {num_batches} batches: nothing lost or repeated.")


def kill_batches(package: Path, folder: Path, num_kills: int, num_requests: int) -> int:
    """How many batches it took."""
    given = folder / "given.jsonl"
    given.write_text("".join(json.dumps(request(number)) + "\n" for number in range(num_requests)))
    finish_batch(package, given, folder / "undisturbed")  # drafting is compiled
    start = time.perf_counter()
    finish_batch(package, given, folder / "again")
    whole_s = time.perf_counter() - start
    expected = answers(folder / "undisturbed")
    num_killed = num_batches = 0
    while num_killed < num_kills:
        num_batches += 1
        out = folder / f"{num_batches}.jsonl"
        while num_killed < num_kills:
            process = start_batch(package, given, out)
            time.sleep(whole_s * secrets.randbelow(1000) / 1000)
            if process.poll() is not None:
                break
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            num_killed += 1
        finish_batch(package, given, out)
        if answers(out) != expected:
            sys.exit(f"The output of batch {num_batches} is not that of an undisturbed one.")
    return num_batches


def request(number: int) -> dict[str, object]:
    body = {"model": "demo", "prompt": f"# tar {number}", "temperature": 0, "max_tokens": 20 + number}
    return {"custom_id": f"request {number}", "method": "POST", "url": "/v1/completions", "body": body}


def start_batch(package: Path, given: Path, out: Path) -> "subprocess.Popen[str]":
    """The command that begins a batch, or goes on with it."""
    command = [sys.executable, "-m", "reader_edge", "batch", str(given), str(out), str(package), "--name", "demo"]
    return subprocess.Popen(
        [*command, "--max-batch", "4", "--no-calibrate"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish_batch(package: Path, given: Path, out: Path) -> None:
    process = start_batch(package, given, out)
    _, output = process.communicate()
    if process.returncode != 0:
        sys.exit(f"A batch failed: {output}")


def answers(out: Path) -> list[tuple[str, str]]:
    """What was answered to each request, sorted; every line must be whole."""
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    return sorted((line["custom_id"], line["response"]["body"]["choices"][0]["text"]) for line in lines)


if __name__ == "__main__":
    main()
