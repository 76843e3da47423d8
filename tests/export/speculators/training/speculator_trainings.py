"""Trainings of each format, which tell nobody of their stages."""

from pathlib import Path

from reader_edge_export.speculators.training.train_speculator import (
    TRAINED_FORMATS,
    SpeculatorTraining,
    TrainingOptions,
)


def training_of(form: str, package: Path, out: Path, options: TrainingOptions) -> SpeculatorTraining:
    return SpeculatorTraining(package, out, TRAINED_FORMATS[form], options, lambda stage: None)
