"""What `verify` shows of tiny random models of families: that drafts change no answer. Prints a row of Markdown each.

    python -m tests.export.prove_families [FAMILY ...] [--tokens 50000]

Every combination of sources answers batches of other prompts until so many tokens are compared. Texts of random models
are not those of trained ones: a row says how many different tokens the plain greedy answers have.
"""

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

from reader_edge.prompts import EvalPrompt
from reader_edge.verify.proof import prove
from reader_edge_export import ExportOptions, export_model
from reader_edge_export.libraries import quiet_libraries
from reader_edge_runtime import Engine
from tests.tiny_models import TINY_CONFIGS, build_tiny_model

_WORDS = ["the", "cat", "sat", "on", "mat", "def", "add", "return", "tides", "rise", "and", "fall", "twice", "a", "day"]
_NUM_PROMPTS, _ANSWER = 6, 40


def prove_family(name: str, wanted: int) -> str:
    """A row: the family, tokens compared, divergences, rows of logits with equal bits, different tokens of answers."""
    rng = np.random.default_rng(0)
    compared = divergences = equal = rows = 0
    kinds: set[int] = set()
    with tempfile.TemporaryDirectory() as folder, quiet_libraries():
        source, package = Path(folder) / "source", Path(folder) / "package"
        export_model(build_tiny_model(name, source), package, ExportOptions("int8", "exact", check="none"))
        with Engine.load(package) as engine:
            while compared < wanted:
                texts = [" ".join(rng.choice(_WORDS, 8)) for _ in range(_NUM_PROMPTS)]
                report = prove(engine, [EvalPrompt(text) for text in texts], _ANSWER)
                compared += report.counts.tokens_compared
                divergences += report.counts.divergences
                rows += report.counts.logit_rows
                equal += report.counts.logit_rows_equal
                for text in texts:
                    kinds |= set(engine.generate(text, max_tokens=_ANSWER).token_ids)
    return f"| {name} | {compared:,} | {divergences} | {equal:,} of {rows:,} | {len(kinds)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=list(TINY_CONFIGS))
    parser.add_argument("--tokens", type=int, default=50_000)
    options = parser.parse_args()
    for name in options.families:
        sys.stdout.write(prove_family(name, options.tokens) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
