"""A package answers, and a speculator learns from its states meanwhile; a folder keeps all of it for the next time."""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from reader_edge_export.heads.answering import Answering, Progress
from reader_edge_export.heads.examples import frequent_ids
from reader_edge_export.heads.held_out import held_out_apart
from reader_edge_export.heads.self_written import Manner
from reader_edge_export.heads.training import TrainingPlan, trained
from reader_edge_export.heads.training_options import TrainingOptions
from reader_edge_export.quiet import quiet_libraries
from reader_edge_export.speculators.eagle3_module import Eagle3Module
from reader_edge_export.speculators.training.chain_loss import ChainLoss
from reader_edge_export.speculators.training.depth_acceptance import DepthAcceptance, measure_depths
from reader_edge_export.speculators.training.embedding_rows import embedding_rows
from reader_edge_export.speculators.training.first_weights import begin
from reader_edge_export.speculators.training.layer_state_recorder import LayerStateRecorder
from reader_edge_export.speculators.training.lessons import Lessons
from reader_edge_export.speculators.training.new_network import new_eagle3, usual_state_ids
from reader_edge_export.speculators.training.products import is_half_quicker
from reader_edge_export.speculators.training.speculator_folder import write_eagle3
from reader_edge_export.speculators.training.speculator_payback import SpeculatorPayback, measure_payback
from reader_edge_runtime.arrays import Int32Array
from reader_edge_runtime.assembly import open_package, settled_target
from reader_edge_runtime.config import EngineConfig
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.target import Target
from reader_edge_runtime.text.conversation import Encodable

_MAX_IDS = 4096  # a logit head of more takes most of a step
_MAX_TOKENS = 256  # of an answer
_EPOCHS, _ENOUGH_STEPS = 8, 30_000


@dataclass(frozen=True, slots=True)
class SpeculatorReport:
    """What came of training. num_tokens: learned from, prompts included. num_ids: that the speculator can name.

    depths: acceptance of the first token of a chain, the second and so on. Others: see `HeadReport`.
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
    """One training of an EAGLE-3 speculator for a package; on_stage gets each stage as it begins."""

    def __init__(self, package: Path, out: Path, options: TrainingOptions, on_stage: Callable[[str], None]) -> None:
        self._began = time.monotonic()
        self._package = open_package(package)
        manifest = self._package.manifest
        self.state_ids = usual_state_ids(manifest)
        self._columns = [manifest.state_ids.index(each) for each in self.state_ids]
        self._out = out
        self._options = options
        self._on_stage = on_stage
        self._folder = out.with_name(f"{out.name}.training")
        self._checkpoint = self._folder / "checkpoint.bin"
        self._answering = Answering(self._package, self._folder, f"states {self.state_ids}")
        self._target: Target = settled_target(self._package, EngineConfig(is_probed=False))[0]
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def payback(self) -> SpeculatorPayback:
        """Raises ExportError where a speculator cannot pay, unless that is forced, or a training has begun."""
        self._on_stage("measuring what a speculator would take")
        num_ids = min(_MAX_IDS, self._package.manifest.vocab_size)
        with quiet_libraries():
            payback = measure_payback(self._target, num_ids, len(self.state_ids))
        if not (payback.can_pay or self._options.force or self._folder.is_dir()):  # a training begun was wanted
            raise ExportError(f"{payback.sentence()} Take a larger model, or train all the same with --force.")
        return payback

    def run(self, prompts: Sequence[Encodable], on_progress: Progress) -> SpeculatorReport:
        """prompts: further ones than the bundled, asked first. on_progress: gets what is done of each stage."""
        self._on_stage("having the model answer")
        # What a model without a template goes on with by its best guesses alone soon repeats itself.
        manner = Manner(
            partial(LayerStateRecorder, self._columns), _MAX_TOKENS, is_sampled=not self._answering.has_template
        )
        until = self._began + self._options.seconds_of_writing
        if math.isfinite(until) and self._checkpoint.is_file():
            until = self._began  # a training that has begun goes on with what it began with
        answers = self._answering.written(prompts, manner, self._options.num_tokens, until, on_progress)
        learned, held_out = held_out_apart(answers)
        vocab_size = self._package.manifest.vocab_size
        ids = frequent_ids(learned, vocab_size, _MAX_IDS)
        if not held_out:
            raise ExportError(f"{len(answers)} answers are too few to learn from: ask for more tokens with --self.")
        self._on_stage("finding the rows of embedding and logit head")
        module = new_eagle3(self._package.manifest, ids, embedding_rows(self._package), len(self.state_ids))
        texts = [answer.token_ids for answer in learned]
        scale = begin(module, self._target, texts, ids, self._columns).to(self._device)
        torch.nn.Module.to(module, self._device)
        lessons = Lessons(learned, ids, vocab_size)
        curve, num_planned = self._train(module, lessons, scale, ids, on_progress)
        self._on_stage("measuring acceptance")
        depths = measure_depths(module, Lessons(held_out, ids, vocab_size), scale)
        return SpeculatorReport(
            out=self._out,
            folder=self._folder,
            num_bytes=write_eagle3(self._out, module, scale, self.state_ids, self._package.manifest),
            num_ids=len(ids),
            num_tokens=lessons.num_places,
            depths=depths,
            curve=curve,
            num_planned=num_planned,
            seconds=time.monotonic() - self._began,
        )

    def _train(
        self, module: Eagle3Module, lessons: Lessons, scale: torch.Tensor, ids: Int32Array, on_progress: Progress
    ) -> tuple[list[tuple[int, float]], int]:
        """The loss of late at the end of each tenth, and how many steps there are without a limit of time."""
        self._on_stage("training")
        epochs = max(1, min(_EPOCHS, _ENOUGH_STEPS // lessons.steps_an_epoch))
        facts = f"{lessons.num_places} {module.config.intermediate_size} {self.state_ids} {epochs}"
        fingerprint = hashlib.sha256(self._package.fingerprint() + facts.encode() + ids.tobytes()).digest()
        seconds = max(1.0, self._options.seconds - (time.monotonic() - self._began))
        num_planned = epochs * lessons.steps_an_epoch
        plan = TrainingPlan(num_planned, seconds, fingerprint, self._checkpoint)
        loss_at = ChainLoss(module, lessons, scale, is_half_quicker(self._device))
        return trained(module, loss_at, plan, on_progress), num_planned
