"""Trains a speculator: a package answers prompts, a small network learns from its states, and a folder keeps both."""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from reader_edge_export.libraries import quiet_libraries
from reader_edge_export.package.package_folder import CHECKPOINT_NAME, training_folder
from reader_edge_export.speculators.speculator_module import SpeculatorModule
from reader_edge_export.speculators.training.batches import Batches, frequent_ids
from reader_edge_export.speculators.training.chains import ChainLoss, DepthAcceptance, is_half_quicker, measure_depths
from reader_edge_export.speculators.training.dflash_training import DflashTraining
from reader_edge_export.speculators.training.eagle3_training import Eagle3Training
from reader_edge_export.speculators.training.generated_answers import RecordingConfig
from reader_edge_export.speculators.training.measured_cost import SpeculatorCost, measure_cost
from reader_edge_export.speculators.training.mlp_training import MlpTraining
from reader_edge_export.speculators.training.mtp_training import MtpTraining
from reader_edge_export.speculators.training.record_answers import AnswerRecording, Progress, held_out_apart
from reader_edge_export.speculators.training.speculator_folder import write_folder
from reader_edge_export.speculators.training.state_recorder import StateRecorder
from reader_edge_export.speculators.training.trained_format import MAX_IDS, TrainedFormat, TrainingInputs
from reader_edge_export.speculators.training.training_loop import OnMessage, TrainingPlan, no_message, trained
from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.target import Target
from reader_edge_runtime.text.conversation import Prompt

_MAX_TOKENS = 256  # of an answer
_EPOCHS, _ENOUGH_STEPS = 8, 30_000

_SHARE_OF_WRITING = 0.6  # of the time, where that is limited

TRAINED_FORMATS: Mapping[str, TrainedFormat] = {
    each.name: each for each in (MlpTraining(), Eagle3Training(), MtpTraining(), DflashTraining())
}


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """How long to train, and on how much.

    num_tokens: that the target writes, if there are prompts enough; more where one answer must be held out. minutes:
    for all of it; None for no limit. force: train also where a speculator cannot pay.
    """

    num_tokens: int = 200_000
    minutes: float | None = None
    force: bool = False

    @property
    def seconds(self) -> float:
        """For all of it."""
        return float("inf") if self.minutes is None else 60 * self.minutes

    @property
    def seconds_of_writing(self) -> float:
        """Of these at most."""
        return _SHARE_OF_WRITING * self.seconds


@dataclass(frozen=True, slots=True)
class SpeculatorReport:
    """What came of training. num_tokens: learned from, prompts included. num_ids: that the speculator can name.

    depths: acceptance of the first token of a chain, the second and so on. curve: steps and the latest loss, ten times
    at most. num_planned: steps that there would have been without a limit of time. folder: what was written to learn
    from, which stays for another training.
    """

    out: Path
    folder: Path
    num_bytes: int
    num_ids: int
    num_tokens: int
    depths: Sequence[DepthAcceptance]
    curve: Sequence[tuple[int, float]]
    num_planned: int
    seconds: float


class SpeculatorTraining:
    """One training of a speculator for a package; on_phase gets each phase as it begins, on_message lines to keep."""

    def __init__(
        self,
        package: Path,
        out: Path,
        trained_format: TrainedFormat,
        options: TrainingOptions,
        on_phase: Callable[[str], None],
        on_message: OnMessage = no_message,
    ) -> None:
        self._began = time.monotonic()
        self._package = open_package(package)
        manifest = self._package.manifest
        self._trained_format = trained_format
        self.state_ids = trained_format.state_ids(manifest)
        self._columns = [manifest.state_ids.index(each) for each in self.state_ids]
        self._out = out
        self._options = options
        self._on_phase = on_phase
        self._on_message = on_message
        self._folder = out.with_name(f"{out.name}.training")
        self._checkpoint = self._folder / CHECKPOINT_NAME
        self._answering = AnswerRecording(self._package, self._folder, self.state_ids)
        self._target: Target = settled_target(self._package, EngineConfig(is_probed=False))[0]
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def cost(self) -> SpeculatorCost:
        """Raises ExportError where a speculator cannot pay, unless that is forced, or a training has begun."""
        self._on_phase("measuring what a speculator would take")
        with quiet_libraries():
            cost = measure_cost(self._target, self._trained_format)
        if not (cost.pays_off or self._options.force or self._folder.is_dir()):  # a training begun was wanted
            raise ExportError(f"{cost.sentence()} Take a larger model, or train all the same with --force.")
        return cost

    def run(self, prompts: Sequence[Prompt], on_progress: Progress) -> SpeculatorReport:
        """prompts: further ones than the bundled, answered first. on_progress: gets what is done of each phase."""
        with training_folder(self._out):
            return self._run(prompts, on_progress)

    def _run(self, prompts: Sequence[Prompt], on_progress: Progress) -> SpeculatorReport:
        self._on_phase("having the model answer")
        # What a model without a template goes on with by its best guesses alone soon repeats itself.
        recording = RecordingConfig(
            partial(StateRecorder, self._columns), _MAX_TOKENS, is_sampled=not self._answering.has_template
        )
        until = self._began + self._options.seconds_of_writing
        if math.isfinite(until) and self._checkpoint.is_file():
            until = self._began  # a training that has begun goes on with what it began with
        answers = self._answering.written(prompts, recording, self._options.num_tokens, until, on_progress)
        learned, held_out = held_out_apart(answers)
        vocab_size = self._package.manifest.vocab_size
        ids = frequent_ids(learned, vocab_size, MAX_IDS)
        if not held_out:
            raise ExportError(f"{len(answers)} answers are too few to learn from: ask for more tokens with --tokens.")
        self._on_phase("finding the rows of embedding and logit head")
        module, scale = self._trained_format.begin(
            TrainingInputs(self._package, self._target, learned, ids, self._columns)
        )
        scale = scale.to(self._device)
        torch.nn.Module.to(module, self._device)
        batches = Batches(learned, ids, vocab_size, self._trained_format.shape)
        curve, num_planned = self._train(module, batches, scale, ids, on_progress)
        self._on_phase("measuring acceptance")
        named = ids if module.target_ids is not None else np.arange(vocab_size, dtype=np.int32)
        torch.nn.Module.eval(module)
        apart = Batches(held_out, named, vocab_size)
        depths = measure_depths(module, apart, scale, self._trained_format.reads)
        num_bytes = write_folder(
            self._out, self._trained_format, module, scale, self.state_ids, self._package.manifest, self._options.force
        )
        return SpeculatorReport(
            out=self._out,
            folder=self._folder,
            num_bytes=num_bytes,
            num_ids=len(named),
            num_tokens=batches.num_places,
            depths=depths,
            curve=curve,
            num_planned=num_planned,
            seconds=time.monotonic() - self._began,
        )

    def _train(
        self, module: SpeculatorModule, batches: Batches, scale: torch.Tensor, ids: Int32Array, on_progress: Progress
    ) -> tuple[list[tuple[int, float]], int]:
        """The latest loss at the end of each tenth, and how many steps there are without a limit of time."""
        self._on_phase("training")
        epochs = max(1, min(_EPOCHS, _ENOUGH_STEPS // batches.steps_an_epoch))
        num_planned = epochs * batches.steps_an_epoch
        facts = f"{batches.num_places} {module.config.intermediate_size} {self.state_ids} {epochs} {num_planned}"
        fingerprint = hashlib.sha256(self._package.fingerprint() + facts.encode() + ids.tobytes()).digest()
        seconds = max(1.0, self._options.seconds - (time.monotonic() - self._began))
        plan = TrainingPlan(num_planned, seconds, fingerprint, self._checkpoint, self._on_message)
        loss_at = ChainLoss(module, batches, scale, is_half_quicker(self._device), self._trained_format.reads)
        return trained(module, loss_at, plan, on_progress), num_planned
