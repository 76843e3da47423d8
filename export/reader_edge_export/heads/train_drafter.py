"""train_drafter(): a package answers instructions, and a head learns from what it thought meanwhile.

Everything is kept in a folder beside the head until it is there, so that the same command resumes after a break.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from reader_edge_export.heads.acceptance import HeadAcceptance, measure_acceptance
from reader_edge_export.heads.answering import Answering, Progress
from reader_edge_export.heads.examples import Examples, examples_of, frequent_ids
from reader_edge_export.heads.head_loss import BATCH, HeadLoss
from reader_edge_export.heads.head_module import HeadModule
from reader_edge_export.heads.held_out import held_out_apart
from reader_edge_export.heads.payback import HeadPayback, measure_payback
from reader_edge_export.heads.rounded_head import rounded_head
from reader_edge_export.heads.self_written import Manner
from reader_edge_export.heads.state_recorder import RecordedAnswer
from reader_edge_export.heads.training import Tell, TrainingPlan, no_tell, trained
from reader_edge_export.heads.training_options import TrainingOptions
from reader_edge_export.heads.vocabulary_rows import logit_head_rows
from reader_edge_export.package.training_folder import CHECKPOINT_NAME, training_folder
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.atomic_file import check_writable, write_failure
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.drafting.sources.head_file import NUM_FIRST
from reader_edge_runtime.drafting.sources.head_sizes import HeadSizes
from reader_edge_runtime.errors import ExportError, ExportPlaceError
from reader_edge_runtime.execution.providers import open_head
from reader_edge_runtime.package.model_package import ModelPackage
from reader_edge_runtime.target import Target
from reader_edge_runtime.text.conversation import Prompt

_MAX_IDS = 4096
_EPOCHS, _ENOUGH_STEPS = 8, 20_000  # more epochs than make so many steps gain nothing (docs/how-to/trained-head.md)
_MANNER = Manner()


@dataclass(frozen=True, slots=True)
class HeadReport:
    """What came of training. curve: steps and the loss of late, ten times at most. num_tokens: learned from.

    num_planned: steps that there would have been without a limit of time.

    folder: what was written to learn from, which stays for another training.
    """

    out: Path
    folder: Path
    num_bytes: int
    num_ids: int
    num_tokens: int
    acceptance: HeadAcceptance
    curve: Sequence[tuple[int, float]]
    num_planned: int
    seconds: float


@dataclass(frozen=True, slots=True)
class _Lesson:
    """ids: int32, that the head can guess. rows: float32 (ids, E), of the target's logit head."""

    ids: npt.NDArray[np.int32]
    rows: torch.Tensor
    learned: Examples
    held_out: Examples


class HeadTraining:
    """One training of a head for a package; on_stage gets each stage as it begins, tell lines that should stay."""

    def __init__(
        self,
        package: Path,
        out: Path,
        options: TrainingOptions,
        on_stage: Callable[[str], None],
        tell: Tell = no_tell,
    ) -> None:
        self._began = time.monotonic()
        self._package: ModelPackage = open_package(package)
        if self._package.manifest.hidden_size is None:
            raise ExportError(f"'{package}' reports no hidden states, which a head reads: export the model again.")
        self._out = out
        self._options = options
        self._on_stage = on_stage
        self._tell = tell
        self._folder = out.with_name(f"{out.name}.training")
        self._answering = Answering(self._package, self._folder)
        self._target: Target = settled_target(self._package, EngineConfig(is_probed=False))[0]

    def payback(self) -> HeadPayback:
        """Raises ExportError where a head cannot pay, unless that is forced, or a training has begun."""
        assert self._package.manifest.hidden_size is not None
        self._on_stage("measuring what a head would take")
        sizes = HeadSizes(self._package.manifest.hidden_size, min(_MAX_IDS, self._package.manifest.vocab_size))
        payback = measure_payback(self._target, sizes)
        if not (payback.can_pay or self._options.force or self._folder.is_dir()):  # a training begun was wanted
            raise ExportError(f"{payback.sentence()} Take a larger model, or train all the same with --force.")
        return payback

    def run(self, prompts: Sequence[Prompt], on_progress: Progress) -> HeadReport:
        """prompts: further ones than the bundled, asked first. on_progress: gets what is done of each stage."""
        with training_folder(self._out):
            return self._run(prompts, on_progress)

    def _run(self, prompts: Sequence[Prompt], on_progress: Progress) -> HeadReport:
        self._on_stage("having the model answer")
        until = self._began + self._options.seconds_of_writing
        answers = self._answering.written(prompts, _MANNER, self._options.num_tokens, until, on_progress)
        lesson = self._lesson(answers)
        del answers  # lessons hold what is learned of them, and they are as large
        module = new_module(lesson.learned.states, lesson.rows)
        curve, num_planned = self._train(module, lesson.learned, on_progress)
        self._on_stage("measuring acceptance")
        head = rounded_head(module, lesson.ids)
        acceptance = measure_acceptance(open_head(head, self._package.manifest), lesson.held_out)
        check_place(self._out, self._options.force)  # again: a training takes long
        head.write(self._out, self._package.manifest)
        return HeadReport(
            out=self._out,
            folder=self._folder,
            num_bytes=self._out.stat().st_size,
            num_ids=len(lesson.ids),
            num_tokens=len(lesson.learned),
            acceptance=acceptance,
            curve=curve,
            num_planned=num_planned,
            seconds=time.monotonic() - self._began,
        )

    def _lesson(self, answers: Sequence[RecordedAnswer]) -> "_Lesson":
        learned, held_out = held_out_apart(answers)
        vocab_size = self._package.manifest.vocab_size
        ids = frequent_ids(learned, vocab_size, _MAX_IDS)
        if len(ids) < NUM_FIRST or not held_out:
            raise ExportError(f"{len(answers)} answers are too few to learn from: ask for more tokens with --self.")
        self._on_stage("finding the rows of the logit head")
        texts = [answer.token_ids for answer in learned]
        rows = torch.from_numpy(logit_head_rows(self._target, texts, ids))
        return _Lesson(ids, rows, examples_of(learned, ids, vocab_size), examples_of(held_out, ids, vocab_size))

    def _train(
        self, module: HeadModule, examples: Examples, on_progress: Progress
    ) -> tuple[list[tuple[int, float]], int]:
        """The loss of late at the end of each tenth, and how many steps there are without a limit of time."""
        self._on_stage("training")
        epochs = max(1, min(_EPOCHS, _ENOUGH_STEPS * BATCH // len(examples)))
        facts = f"{len(examples)} {module.sizes} {int(examples.guess.sum())} {epochs}"
        fingerprint = hashlib.sha256(self._package.fingerprint() + facts.encode()).digest()
        seconds = max(1.0, self._options.seconds - (time.monotonic() - self._began))
        loss_at = HeadLoss(module, examples)
        num_planned = epochs * loss_at.steps_an_epoch
        plan = TrainingPlan(num_planned, seconds, fingerprint, self._folder / CHECKPOINT_NAME, self._tell)
        return trained(module, loss_at, plan, on_progress), num_planned


def check_place(out: Path, is_forced: bool) -> None:
    """Raise ExportError unless a head may be written at `out`; folders above it are made."""
    if out.exists() and not is_forced:
        raise ExportPlaceError(f"'{out}' exists already: choose another name or replace it with --force.")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        check_writable(out)
    except OSError as error:
        raise ExportError(write_failure(out, error, "the same command resumes")) from error


def new_module(states: torch.Tensor, rows: torch.Tensor) -> HeadModule:
    """An untrained head. states: float16 (N, E), to learn from. rows: float32 (ids, E), of the target's logit head."""
    torch.manual_seed(0)
    some = states[:: max(1, len(states) // 10_000)].float()
    module = HeadModule(HeadSizes(some.shape[1], len(rows)), some.mean(0), some.std(0) + 1e-3)
    module.start_from(rows)
    return module
