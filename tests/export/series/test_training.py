"""Training learns from series what comes next, resumes, and refuses what it cannot learn from."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from reader_edge_export.series.patch_loss import Parts, distilled, likelihood
from reader_edge_export.series.patch_module import PatchConfig, PatchModule
from reader_edge_export.series.train_series import SeriesTrainingOptions, train_series
from reader_edge_export.series.training import Windows, least_values
from reader_edge_export.stages import Stages
from reader_edge_runtime.errors import ConfigError, ExportError, SeriesError
from reader_edge_runtime.series.outlook import Outlook

TINY = SeriesTrainingOptions(1, 32, 2, num_steps=12, draft_layers=1, draft_hidden_size=32, draft_steps=4)
SERIES = {"waves": np.sin(np.arange(2000) / 5.0), "steps": np.arange(2000) % 24.0}


def test_a_training_lowers_the_loss_and_writes_both_models(tmp_path: Path) -> None:
    stages = Stages()
    train_series(SERIES, tmp_path / "out", TINY, stages)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    assert (tmp_path / "out" / "draft" / "config.json").is_file()
    assert list(stages.seconds) == ["training the model", "training the small model"]
    with pytest.raises(ConfigError, match="exists already"):
        train_series(SERIES, tmp_path / "out", TINY, Stages())


def test_short_and_spoilt_series_and_odd_sizes_are_refused(tmp_path: Path) -> None:
    least = least_values(PatchConfig())
    with pytest.raises(SeriesError, match=f"needs {least}"):
        train_series({"short": np.arange(100.0)}, tmp_path / "out", TINY, Stages())
    with pytest.raises(SeriesError, match="gap at value 3"):
        train_series({"gap": np.where(np.arange(2000) == 2, np.nan, 1.0)}, tmp_path / "out", TINY, Stages())
    (tmp_path / "file").touch()
    with pytest.raises(ExportError, match=r"cannot be written .*: choose another folder"):
        train_series(SERIES, tmp_path / "file" / "out", TINY, Stages())
    with pytest.raises(ConfigError, match="multiple of 8"):
        train_series(SERIES, tmp_path / "out", SeriesTrainingOptions(hidden_size=36), Stages())


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
    monkeypatch.setattr(f"reader_edge_export.series.train_series.{name}", fault)
    with pytest.raises(ExportError, match=r"1 layers of size 32 takes more memory .*: give fewer --layers"):
        train_series(SERIES, tmp_path / "out", TINY, Stages())
    assert not list(tmp_path.iterdir())


def test_faults_that_no_memory_mends_are_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reader_edge_export.series.train_series.train_patches", _other_fault)
    with pytest.raises(RuntimeError, match="another fault"):
        train_series(SERIES, tmp_path / "out", TINY, Stages())


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
    said = Parts.of(logits, 1)
    density = torch.distributions.Normal(said.means[:, :-1, 0], said.log_scales[:, :-1, 0].exp())
    expected = -density.log_prob(patches[:, 1:])[:, 1:].mean() - 0.5 * np.log(2 * np.pi)
    found = likelihood(logits, patches, torch.tensor([2, 2]), 1)
    assert float(found) == pytest.approx(float(expected), abs=1e-5)


def test_copies_of_what_the_large_model_says_lose_nothing() -> None:
    logits = torch.randn(2, 5, 16)
    assert float(distilled(logits, logits, torch.tensor([1, 3]), 1)) == pytest.approx(0.0, abs=1e-6)
    assert float(distilled(logits + 1, logits, torch.tensor([1, 3]), 1)) > 0.1


def test_parts_are_read_as_the_runtime_reads_them() -> None:
    logits = torch.randn(4, 1, 10 * 8)
    parts, outlook = Parts.of(logits, 3), Outlook.of(logits[:, 0].numpy(), 3)
    np.testing.assert_allclose(outlook.binding.mean, parts.means[:, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(outlook.binding.scale, parts.log_scales[:, 0, 0].exp(), rtol=1e-5)
    before = outlook.binding.mean + 1.0
    gains = parts.gains[:, 0, 0] + parts.gains[:, 0, 1]
    np.testing.assert_allclose(outlook.further(1, before).mean, parts.means[:, 0, 1] + gains, rtol=1e-5, atol=1e-5)


def test_untrained_heads_look_a_day_and_a_week_back_in_hours() -> None:
    module = PatchModule(PatchConfig.of_sizes(1, 64, 1))
    attention, seen = module.model.layers[0].self_attn, []
    attention.q_proj.weight.data.zero_()
    attention.k_proj.weight.data.zero_()
    module.config._attn_implementation = "eager"
    attention.register_forward_hook(lambda _, __, outputs: seen.append(outputs[1]))
    module.said(torch.randn(1, 60, 8))
    assert seen[0][0, :2, 50].argmax(-1).tolist() == [50 - 2, 50 - 20]


def test_modules_see_a_window() -> None:
    module = PatchModule(PatchConfig.of_sizes(1, 32, 1))
    patches = torch.randn(1, 110, 8)
    other = patches.clone()
    other[:, :10] += 5  # out of the window of the last nodes
    with torch.no_grad():
        said, again = module.said(patches), module.said(other)
    assert torch.allclose(said[:, 106:], again[:, 106:], atol=1e-6)
    assert not torch.allclose(said[:, 50:60], again[:, 50:60], atol=1e-3)
