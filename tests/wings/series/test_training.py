"""Training learns from series what comes next, resumes, and refuses what it cannot learn from."""

import itertools
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from reader_edge_export.package.package_folder import training_folder
from reader_edge_export.progress import Progress
from reader_edge_export.speculators.training import training_loop as training
from reader_edge_runtime.errors import ConfigError, ExportError, SeriesError
from reader_edge_series.export.learned_parts import LEAST_VALUES, learned_parts
from reader_edge_series.export.patch_module import PatchConfig, PatchModule
from reader_edge_series.export.train_series import SeriesTrainingOptions, train_series
from reader_edge_series.export.training import Parts, Windows, distilled, likelihood
from reader_edge_series.patch_distribution import PatchDistribution

TINY = SeriesTrainingOptions(1, 32, 2, num_steps=12, draft_layers=1, draft_hidden_size=32, draft_steps=4)
SERIES = {"waves": np.sin(np.arange(2000) / 5.0), "steps": np.arange(2000) % 24.0}


def test_a_training_lowers_the_loss_and_writes_both_models(tmp_path: Path) -> None:
    phases = Progress()
    train_series(SERIES, tmp_path / "out", TINY, phases)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert (tmp_path / "out" / "draft" / "config.json").is_file()
    assert list(phases.seconds) == ["training the model", "training the small model"]
    with pytest.raises(ExportError, match="exists already"):
        train_series(SERIES, tmp_path / "out", TINY, Progress())


def test_of_two_trainings_to_one_folder_the_second_is_refused_before_it_trains(tmp_path: Path) -> None:
    with training_folder(tmp_path / "out"), pytest.raises(ExportError, match="in use by another training: wait"):
        train_series(SERIES, tmp_path / "out", TINY, Progress(on_phase=pytest.fail))
    assert [path.name for path in tmp_path.iterdir()] == ["out.training"]


def test_what_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ExportError, match="exists already"):
        train_series(SERIES, out, TINY, Progress(on_phase=lambda phase: out.mkdir(exist_ok=True)))
    assert not list(out.iterdir())


@pytest.mark.skipif(os.name == "nt", reason="links and names of other lengths")
def test_a_place_where_no_folder_can_be_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    for name, words in {"link": "is a link to 'nowhere'", "x" * 245: "File name too long", "a\nb": "be shown"}.items():
        with pytest.raises(ExportError, match=rf"{words}.*choose another folder\.$"):
            train_series(SERIES, tmp_path / name, TINY, Progress(on_phase=pytest.fail))
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_short_and_spoilt_series_and_odd_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SeriesError, match=f"needs {LEAST_VALUES}"):
        train_series({"short": np.arange(100.0)}, tmp_path / "out", TINY, Progress())
    with pytest.raises(SeriesError, match="gap at value 3"):
        train_series({"gap": np.where(np.arange(2000) == 2, np.nan, 1.0)}, tmp_path / "out", TINY, Progress())
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"cannot be written .*: choose another folder"):
        train_series(SERIES, tmp_path / "file" / "out", TINY, Progress())
    with pytest.raises(ConfigError, match="multiple of 8"):
        train_series(SERIES, tmp_path / "out", SeriesTrainingOptions(hidden_size=36), Progress())


@pytest.mark.parametrize(
    ("held_out", "needed"),
    [(0.2, "1040, the 20% held out included"), (0.3, "1188, the 30% held out included"), (0.0, "832")],
)
def test_what_is_too_short_is_shown_with_what_is_held_out(held_out: float, needed: str) -> None:
    least = int(needed.split(",")[0])
    sentence = f"Series 'few' has {least - 1} values, but a training needs {needed}: give a longer one."
    with pytest.raises(SeriesError, match=re.escape(sentence)):
        learned_parts({"few": np.arange(least - 1.0)}, held_out)
    parts = learned_parts({"few": np.arange(float(least))}, held_out)
    assert len(parts["few"]) == LEAST_VALUES


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("phase", ["training the model", "training the small model"])
def test_a_killed_training_resumes_to_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    monkeypatch.setattr(training, "_EVERY_S", 0.0)  # every step is kept
    steps: list[tuple[str, float]] = []
    train_series(SERIES, tmp_path / "whole", TINY, Progress())

    def killed(done: float, total: float) -> None:
        if phases[-1] == phase and done == total // 2:
            raise KeyboardInterrupt

    phases: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        train_series(SERIES, tmp_path / "killed", TINY, Progress(phases.append, killed))
    assert not (tmp_path / "killed").exists()
    again = Progress(phases.append, lambda done, total: steps.append((phases[-1], done)))
    train_series(SERIES, tmp_path / "killed", replace(TINY, minutes=90.0), again)
    assert next(done for each, done in steps if each == phase) > 1  # what was kept is not made again
    assert _files(tmp_path / "killed") == _files(tmp_path / "whole")


@pytest.mark.long
def test_a_training_ended_by_its_minutes_goes_on_as_without_an_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_series(SERIES, tmp_path / "whole", TINY, Progress())
    monkeypatch.setattr(training, "_EVERY_S", 1e9)
    seconds = itertools.count(0.0, 5.0)  # 15 for each step
    monkeypatch.setattr(training, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    for minutes, sentence in (
        (0.01, "at step 0 of 12, before step 12, from which there is a result: give the same command more --minutes;"),
        (1.0, "at step 4 of 12, before step 12, from .* command about 2.5 more --minutes; what .* learned is kept"),
        (0.1, "at step 4 of 12, .* command about 3.9 more --minutes;"),
        (1.5, "at step 5 of 12, .* command about 2.3 more --minutes;"),
    ):
        with pytest.raises(ExportError, match=sentence):
            train_series(SERIES, tmp_path / "broken", replace(TINY, minutes=minutes), Progress())
        assert not (tmp_path / "broken").exists()
    train_series(SERIES, tmp_path / "broken", replace(TINY, minutes=60.0), Progress())
    assert _files(tmp_path / "broken") == _files(tmp_path / "whole")


def test_a_small_model_begins_again_behind_a_new_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_FEWEST_STEPS", 3)
    monkeypatch.setattr(training, "_EVERY_S", 0.0)

    def killed(done: float, total: float) -> None:
        if total == TINY.draft_steps and done == total - 1:
            raise KeyboardInterrupt

    def firsts(minutes: float, further: Callable[[float, float], None]) -> list[float]:
        steps: dict[float, float] = {}
        seconds = itertools.count(0.0, 5.0)

        def on_share(done: float, total: float) -> None:
            steps.setdefault(total, done)
            further(done, total)

        with monkeypatch.context() as patch:
            patch.setattr(training, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
            train_series(SERIES, tmp_path / "out", replace(TINY, minutes=minutes), Progress(None, on_share))
        return list(steps.values())

    with pytest.raises(KeyboardInterrupt):
        firsts(2.0, killed)
    first_of_model, first_of_small = firsts(60.0, lambda done, total: None)
    assert first_of_model > 1
    assert first_of_small == 1


def _out_of_memory(*_: object) -> None:
    raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")


def _no_memory(*_: object) -> None:
    raise MemoryError


def _other_fault(*_: object) -> None:
    raise RuntimeError("another fault")


@pytest.mark.parametrize(
    ("name", "fault"),
    [("free_bytes", lambda: 1), ("train_patches", _out_of_memory), ("train_patches", _no_memory)],
)
def test_a_training_beyond_memory_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fault: Callable[..., object]
) -> None:
    monkeypatch.setattr(f"reader_edge_series.export.train_series.{name}", fault)
    with pytest.raises(ExportError, match=r"1 layers of size 32 takes more memory .*: give fewer --layers"):
        train_series(SERIES, tmp_path / "out", TINY, Progress())
    assert not list(tmp_path.iterdir())


def test_faults_that_no_memory_mends_are_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_series.export.train_series.train_patches", _other_fault)
    with pytest.raises(RuntimeError, match="another fault"):
        train_series(SERIES, tmp_path / "out", TINY, Progress())


def test_windows_are_scaled_by_their_first_patches_alone() -> None:
    config = PatchConfig()
    patches, prompts = Windows(list(SERIES.values()), config).batch(3)
    again, _ = Windows(list(SERIES.values()), config).batch(3)
    assert torch.equal(patches, again)
    assert patches.shape[1:] == (config.max_prompt + 32, config.patch_size)
    assert config.min_prompt <= int(prompts.min()) <= int(prompts.max()) <= config.max_prompt


def test_the_loss_is_the_density_of_what_came() -> None:
    """Of one coming patch: minus the logarithm of the Gaussian density, but for a constant."""
    torch.manual_seed(0)
    patches, logits = torch.randn(2, 5, 8), torch.randn(2, 5, 16)
    parts = Parts.of(logits, 1)
    density = torch.distributions.Normal(parts.means[:, :-1, 0], parts.log_scales[:, :-1, 0].exp())
    expected = -density.log_prob(patches[:, 1:])[:, 1:].mean() - 0.5 * np.log(2 * np.pi)
    found = likelihood(logits, patches, torch.tensor([2, 2]), 1)
    assert float(found) == pytest.approx(float(expected), abs=1e-5)


def test_copies_of_what_the_large_model_says_lose_nothing() -> None:
    logits = torch.randn(2, 5, 16)
    assert float(distilled(logits, logits, torch.tensor([1, 3]), 1)) == pytest.approx(0.0, abs=1e-6)
    assert float(distilled(logits + 1, logits, torch.tensor([1, 3]), 1)) > 0.1


def test_parts_are_read_as_the_runtime_reads_them() -> None:
    logits = torch.randn(4, 1, 10 * 8)
    parts, distribution = Parts.of(logits, 3), PatchDistribution.of(logits[:, 0].numpy(), 3)
    np.testing.assert_allclose(distribution.binding.mean, parts.means[:, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(distribution.binding.scale, parts.log_scales[:, 0, 0].exp(), rtol=1e-5)
    before = distribution.binding.mean + 1.0
    gains = parts.gains[:, 0, 0] + parts.gains[:, 0, 1]
    np.testing.assert_allclose(distribution.further(1, before), parts.means[:, 0, 1] + gains, rtol=1e-5, atol=1e-5)


def test_untrained_heads_look_a_day_and_a_week_back_in_hours() -> None:
    module = PatchModule(PatchConfig.of_sizes(1, 64, 1))
    attention, seen = module.model.layers[0].self_attn, []
    attention.q_proj.weight.data.zero_()
    attention.k_proj.weight.data.zero_()
    module.config._attn_implementation = "eager"
    attention.register_forward_hook(lambda _, __, outputs: seen.append(outputs[1]))
    module.score(torch.randn(1, 60, 8))
    assert seen[0][0, :2, 50].argmax(-1).tolist() == [50 - 2, 50 - 20]


def test_modules_see_a_window() -> None:
    module = PatchModule(PatchConfig.of_sizes(1, 32, 1))
    patches = torch.randn(1, 110, 8)
    other = patches.clone()
    other[:, :10] += 5  # out of the window of the last nodes
    with torch.no_grad():
        parts, again = module.score(patches), module.score(other)
    assert torch.allclose(parts[:, 106:], again[:, 106:], atol=1e-6)
    assert not torch.allclose(parts[:, 50:60], again[:, 50:60], atol=1e-3)
