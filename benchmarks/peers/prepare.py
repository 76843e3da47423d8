"""Install the peers, each in an environment of its own, and convert the models for all of them.

    python -m benchmarks.peers.prepare CACHE [--only RUNTIME,...] [--passes] [--shapes SHAPE,...]
    python -m benchmarks.peers.prepare CACHE [--only RUNTIME,...] [--passes] --real SOURCE [--gguf FILE]

What is there already is kept, so a second run goes on where the first one ended. What fails is noted in
CACHE/failures.json with its reason, and appears in the results; the other runtimes go on. With --real, a real model is
prepared and nothing else; with --passes, those precisions whose passes are compared.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.pass_contenders import pass_contenders
from benchmarks.peers.real_source import place_source, real_contenders, shape_of
from benchmarks.peers.runtimes import ROOT, RUNTIMES, SHAPES, Command, Contender, contenders


class StepError(Exception):
    """A step failed; the message is the last line its command printed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path, help="a folder for environments and models, about 20 GB")
    parser.add_argument("--only", default=",".join(runtime.name for runtime in RUNTIMES))
    parser.add_argument("--shapes", default=",".join((*SHAPES, "demo")), help="of scripts/random_model, and demo")
    parser.add_argument("--passes", action="store_true", help="for the parts of passes")
    parser.add_argument("--real", type=Path, metavar="SOURCE", help="a Hugging Face folder or a GGUF file")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="the same model for llama.cpp, ready made")
    options = parser.parse_args()
    cache = options.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    if options.real is None:
        shapes, wanted = options.shapes.split(","), contenders(cache)
        for shape in shapes:
            write_source(shape, cache)
    else:
        place_source(cache, options.real, options.gguf)
        shapes, wanted = [shape_of(options.real)], real_contenders(cache, options.real)
    for shape in shapes:
        found = pass_contenders(cache, shape) if options.passes else wanted
        prepare(shape, found, options.only.split(","), cache)


def prepare(shape: str, wanted: Sequence[Contender], only: Sequence[str], cache: Path) -> None:
    """Install and convert; note what fails."""
    failures = read_failures(cache)
    for contender in wanted:
        if contender.runtime.name not in only:
            continue
        failures.pop(f"{contender.name} {shape}", None)
        try:
            install(contender)
            convert(contender, shape)
        except StepError as error:
            failures[f"{contender.name} {shape}"] = str(error)
            print(f"{contender.name}: {error}", file=sys.stderr)
        (cache / "failures.json").write_text(json.dumps(failures, indent=1))


def read_failures(cache: Path) -> dict[str, str]:
    """Why contenders could not be prepared, by name and shape."""
    path = cache / "failures.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_source(shape: str, cache: Path) -> None:
    """The checkpoint that conversions of a shape start from."""
    out = cache / "models" / shape / "source"
    if shape != "demo" and not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f"{out.name}.partial")
        run([sys.executable, ROOT / "scripts" / "random_model", shape, partial], cache, {})
        partial.rename(out)


def install(contender: Contender) -> None:
    """An environment with the runtime's pinned packages."""
    runtime = contender.runtime
    folder = contender.python.parent.parent
    if not runtime.requirements or (folder / "installed").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", folder], contender.cache, {})
    pip: Command = [contender.python, "-m", "pip"]
    run([*pip, "install", *runtime.requirements], contender.cache, {})
    if runtime.unwanted:
        run([*pip, "uninstall", "-y", *runtime.unwanted], contender.cache, {})
    (folder / "installed").touch()


def convert(contender: Contender, shape: str) -> None:
    """The runtime's own form of a checkpoint; half-written ones never take its name."""
    out = contender.converted(shape)
    if contender.runtime.convert is None or out.exists():
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    precision, _, _ = contender.precision.partition(" ")
    command = contender.runtime.convert(contender.python, contender.source(shape), partial, precision)
    run(command, contender.cache, contender.environment)
    partial.rename(out)


def run(command: Command, cache: Path, environment: dict[str, str]) -> None:
    """Run a command, its output in CACHE/prepare.log. Raises StepError."""
    print(" ".join(map(str, command)), file=sys.stderr)
    start = time.perf_counter()
    with (cache / "prepare.log").open("a+") as log:
        begin = log.tell()
        status = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=os.environ | environment).returncode
        log.seek(begin)
        lines = log.read().strip().splitlines()
    if status != 0:
        raise StepError(f"{Path(command[0]).name} ended with {status}: {lines[-1] if lines else 'no output'}")
    print(f"    {time.perf_counter() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
