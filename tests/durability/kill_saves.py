"""Kill -9 while a session is saved: is what is found afterwards ever anything but a whole session?

    python -m tests.durability.kill_saves

A forked process saves two sessions in turn over one file; it is killed at a random moment, and the file must be one of
the two, bit for bit. What a killed save leaves beside it must be refused, unless it is whole, and be gone after the
next save. Exit code 1 where any of it is not so.
"""

import argparse
import os
import secrets
import signal
import sys
import tempfile
import time
from pathlib import Path

from reader_edge.models.model_source import find_package
from reader_edge_runtime import Engine, EngineConfig, GenerationConfig
from reader_edge_runtime.atomic_file import leftovers
from reader_edge_runtime.errors import SessionError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--kills", type=int, default=200)
    options = parser.parse_args()
    engine = Engine.load(find_package(options.model), EngineConfig(is_calibrated=False))
    with tempfile.TemporaryDirectory() as folder:
        num_during = kill_saves(engine, Path(folder), options.kills)
    print(f"{options.kills} kills, {num_during} of them during a save: the session was whole each time.")


def kill_saves(engine: Engine, folder: Path, num_kills: int) -> int:
    """How many of the kills came during a save. Exits where a session was lost or a torn one accepted."""
    sessions = [folder / "first", folder / "second"]
    for number, path in enumerate(sessions):
        engine.generate(f"# tar {number}\n" * 20, GenerationConfig(max_tokens=50 * (number + 1), ignores_eos=True))
        engine.save_session(path)
    contents = [path.read_bytes() for path in sessions]
    kept, num_during = folder / "kept", 0
    kept.write_bytes(contents[0])
    start = time.perf_counter()
    engine.save_session(kept)
    save_s = time.perf_counter() - start
    for _ in range(num_kills):
        child = os.fork()
        if child == 0:
            save_for_ever(engine, kept, sessions)
        time.sleep(6 * save_s * secrets.randbelow(1000) / 1000)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if kept.read_bytes() not in contents:
            sys.exit(f"After a kill '{kept}' is neither session.")
        engine.load_session(kept)
        for torn in leftovers(kept):
            num_during += 1
            check_refused(engine, torn, contents)
    engine.load_session(sessions[0])
    engine.save_session(kept)
    if kept.read_bytes() != contents[0] or any(leftovers(kept)):
        sys.exit("The last save was not whole, or left something.")
    return num_during


def save_for_ever(engine: Engine, kept: Path, sessions: list[Path]) -> None:
    while True:
        for path in sessions:
            engine.load_session(path)
            engine.save_session(kept)


def check_refused(engine: Engine, torn: Path, contents: list[bytes]) -> None:
    is_whole = torn.read_bytes() in contents
    try:
        engine.load_session(torn)
    except SessionError:
        return
    if not is_whole:
        sys.exit(f"'{torn}' is torn, and was accepted.")


if __name__ == "__main__":
    main()
