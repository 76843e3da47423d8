"""How long packages, and GGUF files in other runtimes, take until the first token.

    python -m benchmarks.passes.prompts NAME=PACKAGE NAME=FILE.gguf@PYTHON... [--lengths 2048,7900] [--rounds 5]

All models are loaded at once, and read random tokens in turn. PYTHON is the interpreter of an environment with
llama-cpp-python or, behind a comma, another runtime that reads the file: NAME=FILE.gguf@PYTHON,llama-server or
openvino-genai. What instructions each may use is for the environment: READER_EDGE_INSTRUCTIONS, ONEDNN_MAX_CPU_ISA, a
llama.cpp compiled for them.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

from benchmarks.passes.contenders import contender
from benchmarks.peers.measuring import Round, random_prompt
from benchmarks.peers.tables import table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--lengths", type=lambda text: [int(each) for each in text.split(",")], default=[2048])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            contenders = [contender(text, Path(folder)) for text in options.models]
        except ValueError as error:
            parser.error(str(error))
        medians: dict[str, list[float]] = {each.name: [] for each in contenders}
        with Round(contenders, "") as workers:
            for length in options.lengths:
                for turn in range(options.rounds):
                    workers.generate(random_prompt(length, length + turn, ""), 1, turn)
                for name, record in workers.take().items():
                    medians[name].append(statistics.median(record["first_s"] or [float("nan")]))
            failed = [f"{name}: {record['error']}" for name, record in workers.records.items() if "error" in record]
    if failed:
        parser.error("; ".join(failed))
    rows = [
        [name, *(f"{s:.2f} ({n / s:.0f})" for s, n in zip(seconds, options.lengths, strict=True))]
        for name, seconds in medians.items()
    ]
    print("\n".join(table(["s until the first token (tokens/s); tokens:", *map(str, options.lengths)], rows)))


if __name__ == "__main__":
    main()
