"""A small draft model for a target that has no smaller relative, learned from what the target itself says.

    python -m benchmarks.distilled_draft PACKAGE OUT [--minutes M] [--tokens N] [--answers FOLDER]
    reader-edge export OUT DRAFT && reader-edge run PACKAGE --draft-model DRAFT

The package answers the bundled instructions, and a llama of two layers learns from its eight best successors at every
token, on one thread, for M minutes of processor time. FOLDER keeps the answers (OUT.training unless named), as
`train-drafter` writes them too. OUT is in Hugging Face's format. Prints how often it guesses what the target says in
answers held out.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from benchmarks.draft_module import FEW, DraftModule
from benchmarks.draft_texts import Answers, DraftTexts, read_answers, write_answers
from benchmarks.draft_training import DraftTraining, train
from benchmarks.tables import table
from reader_edge_export.heads.vocabulary_rows import logit_head_rows
from reader_edge_export.package_folder import check_target, new_package
from reader_edge_export.quiet import quiet_libraries
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.package.model_package import ModelPackage


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="of the target; one that reports hidden states")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--minutes", type=float, default=10.0, help="of processor time, for training")
    parser.add_argument("--tokens", type=int, default=57_000, help="that the target writes")
    parser.add_argument("--answers", type=Path, help="folder that keeps them")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    check_target(out, force=False)
    package = open_package(options.package)
    answers = options.answers or out.with_name(f"{out.name}.training")
    write_answers(package, answers, options.tokens)
    learned, held_out = read_answers(package, answers)
    torch.set_num_threads(1)
    with quiet_libraries():
        module = begun_draft(package, learned)
        training = DraftTraining(module, learned, 60 * options.minutes)
        train(training)
        with new_package(out, force=False) as folder:
            module.write(folder, package)
    texts = DraftTexts.of(held_out)
    is_right = module.guesses(texts, texts.even_depths(1, 0)) == texts.top[:, :1]
    shares = [is_right[:, :most].any(1).float().mean().item() for most in (1, FEW)]
    header = ["answers", "epochs", "loss", "processor time", "places held out", "best guess", f"best {FEW}"]
    row = [str(len(learned)), f"{training.num_epochs:.1f}", f"{training.loss:.2f}", f"{training.spent:.0f} s"]
    print("\n".join(table(header, [[*row, str(len(texts.places)), *(f"{share:.3f}" for share in shares)]])))


def begun_draft(package: ModelPackage, answers: Answers) -> DraftModule:
    """An untrained one with the target's own vocabulary."""
    target = settled_target(package, EngineConfig(is_probed=False))[0]
    every_id = np.arange(package.manifest.vocab_size, dtype=np.int32)
    return DraftModule.begun(package.manifest, torch.from_numpy(logit_head_rows(target, answers, every_id)))


if __name__ == "__main__":
    main()
