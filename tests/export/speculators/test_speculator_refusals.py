"""Speculators that do not fit, or are damaged: one clear sentence, before the target's weights are read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from reader_edge.cli import main
from reader_edge_export import ExportOptions, export_model
from reader_edge_runtime.errors import ConfigError, ExportError, ReaderEdgeError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.speculators.speculator_folders import DRAFT_VOCAB_SIZE, LAYER, write_eagle3, write_plain_eagle3
from tests.tiny_models import VOCAB_SIZE

Change = Callable[[dict[str, Any], dict[str, torch.Tensor]], None]


def _sets(**values: Any) -> Change:
    return lambda config, tensors: config.update(values)


def _layer(**values: Any) -> Change:
    return lambda config, tensors: config["transformer_layer_config"].update(values)


def _tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor | None]) -> Change:
    def apply(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        changed = change(tensors.pop(name))
        if changed is not None:
            tensors[name] = changed

    return apply


def _whole(offset: int) -> Change:
    """All of the target's tokens, and a map that leads each so far from itself, around the end."""

    def apply(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        ids = torch.arange(VOCAB_SIZE)
        config["draft_vocab_size"] = VOCAB_SIZE
        tensors["lm_head.weight"] = torch.ones(VOCAB_SIZE, tensors["lm_head.weight"].shape[1])
        tensors["d2t"], tensors["t2d"] = (ids + offset) % VOCAB_SIZE - ids, torch.ones(VOCAB_SIZE, dtype=torch.bool)

    return apply


def _twice(offsets: torch.Tensor) -> torch.Tensor:
    offsets[1] = offsets[0] - 1
    return offsets


_REFUSED: dict[str, tuple[Change, str]] = {
    "another vocabulary": (_layer(vocab_size=VOCAB_SIZE + 1), "vocabulary of 321, and the model has 320"),
    "a vocabulary beyond the target's": (_sets(draft_vocab_size=1 << 50), "and the model has 320"),
    "another hidden size": (_sets(target_hidden_size=128), "hidden states of 128, and the model has 64"),
    "a number of a thousand digits": (_sets(draft_vocab_size=10**1000), "000...000"),
    "a state of a thousand digits": (_sets(eagle_aux_hidden_state_layer_ids=[10**1000, 0, 1]), "000...000"),
    "too few states": (_sets(eagle_aux_hidden_state_layer_ids=[0, 1]), "joins 192 numbers of its target, where 2"),
    "a state beyond the last layer": (_sets(eagle_aux_hidden_state_layer_ids=[0, 1, 4]), "0, 1, 4, which must be"),
    "a state twice": (_sets(eagle_aux_hidden_state_layer_ids=[0, 1, 1]), "0, 1, 1, which must be"),
    "no states told": (_sets(eagle_aux_hidden_state_layer_ids=None), "does not say which states"),
    "states of no numbers": (_sets(eagle_aux_hidden_state_layer_ids=["a"]), "a list of at most"),
    "more layers than tensors": (_layer(num_hidden_layers=1 << 40), "correct num_hidden_layers"),
    "layers of another kind": (_layer(model_type="gemma2"), "of the type 'gemma2'"),
    "a window": (_layer(model_type="qwen3", use_sliding_window=True, sliding_window=8), "see a window of tokens"),
    "heads that do not fit": (_layer(num_key_value_heads=3), "correct them"),
    "a key of unknown meaning": (_sets(turns_twice=True), "sets 'turns_twice' to True"),
    "both norms": (_sets(norm_before_fc=True, fc_norm=True), "both norm_before_fc and fc_norm"),
    "P-EAGLE": (_sets(speculators_model_type="peagle"), "of the format P-EAGLE"),
    "DFlash": (_sets(speculators_model_type="dflash"), "of the format DFlash"),
    "a format that is no word": (_sets(speculators_model_type=["eagle3"]), "of the format"),
    "no map": (_tensor("d2t", lambda _: None), "lacks d2t"),
    "a map out of the vocabulary": (_tensor("d2t", lambda d2t: d2t + VOCAB_SIZE), "out of the 320 tokens"),
    "a map below zero": (_tensor("d2t", lambda d2t: d2t - VOCAB_SIZE), "out of the 320 tokens"),
    "a map that wraps around": (_tensor("d2t", lambda d2t: d2t * 0 + (1 << 63) - 1), "out of the 320 tokens"),
    "a token twice": (_tensor("d2t", _twice), "twice in d2t"),
    "a map of fractions": (_tensor("d2t", lambda d2t: d2t.float()), "must be (100,) whole numbers"),
    "maps that differ": (_tensor("t2d", lambda t2d: ~t2d), "contradict each other"),
    "a map beside all tokens": (_whole(1), "has all 320 tokens of its target and maps some of them to others"),
    "a map of tokens that it lacks": (
        lambda config, tensors: (_whole(0)(config, tensors), tensors["t2d"][3:4].fill_(False))[0],
        "has all 320 tokens of its target and maps some",
    ),
    "angles of longer texts": (
        _layer(rope_scaling={"rope_type": "dynamic", "factor": 2.0}, max_position_embeddings=32),
        "rotary embeddings of the kind 'dynamic', which change as a text grows",
    ),
    "two kinds of angles": (
        _layer(
            rope_scaling={"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
            original_max_position_embeddings=32,
            max_position_embeddings=128,
        ),
        "rotary embeddings of the kind 'longrope'",
    ),
    "a layer missing": (_tensor("layers.0.mlp.up_proj.weight", lambda _: None), "lack layers.0.mlp.up_proj.weight"),
    "a matrix of another shape": (
        _tensor("norm.weight", lambda norm: norm[:-1]),
        "of the shape (47,) instead of (48,)",
    ),
    "a matrix of integers": (_tensor("fc.weight", lambda fc: fc.to(torch.int8)), "as I8"),
    "no embedding, which is not the target's": (_tensor("embed_tokens.weight", lambda _: None), "lacks embed_tokens"),
    "no head for its own vocabulary": (
        lambda config, tensors: (tensors.pop("lm_head.weight"), _layer(hidden_size=64)(config, tensors))[1],
        f"lacks lm_head.weight for its own vocabulary of {DRAFT_VOCAB_SIZE}",
    ),
    "a tensor of no place": (lambda config, tensors: tensors.update({"extra.weight": torch.ones(3)}), "extra.weight"),
}


def test_a_map_of_all_tokens_to_themselves_is_no_map(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    write_eagle3(tmp_path / "speculator")
    _change(tmp_path / "speculator", _whole(0))
    options = ExportOptions("fp32", check="none", speculator=tmp_path / "speculator")
    export_model(tiny_model("llama"), tmp_path / "out", options)
    part = ModelPackage.open(tmp_path / "out").manifest.speculator
    assert part is not None
    assert part.draft_vocab_size == VOCAB_SIZE


def test_no_name_is_not_the_current_folder(tmp_path: Path) -> None:
    told = CliRunner().invoke(main, ["export", str(tmp_path), str(tmp_path / "out"), "--speculator", ""])
    assert told.exit_code == 2
    assert told.stderr == "Error: speculator is '', which names no folder: give one, or leave speculator out.\n"


@pytest.mark.parametrize("case", _REFUSED)
def test_what_does_not_fit_is_refused_before_the_target_is_read(
    case: str, tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, words = _REFUSED[case]
    write_eagle3(tmp_path / "speculator")
    _change(tmp_path / "speculator", change)
    assert words in _refusal(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", monkeypatch)


def test_older_eagles_are_refused_by_name(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plain_eagle3(tmp_path / "speculator")

    def make_older(config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        del config["draft_vocab_size"]
        for name in [name for name in tensors if name.startswith("midlayer.")]:
            tensors[name.replace("midlayer.", "layers.0.")] = tensors.pop(name)

    _change(tmp_path / "speculator", make_older)
    told = _refusal(tiny_model("llama"), tmp_path / "speculator", tmp_path / "out", monkeypatch)
    assert "EAGLE-1 or EAGLE-2" in told


def test_pickles_are_refused(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "speculator"
    write_eagle3(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "a pickle that may run code" in _refusal(tiny_model("llama"), folder, tmp_path / "out", monkeypatch)


def test_weights_that_give_no_numbers_are_refused_and_leave_nothing(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tmp_path / "speculator"
    write_eagle3(folder)
    _change(folder, _tensor("layers.0.mlp.down_proj.weight", lambda weight: weight * 0 + 3e38))
    with pytest.raises(ExportError, match="What the speculator computes is too large"):
        export_model(tiny_model("llama"), tmp_path / "out", ExportOptions("fp32", check="quick", speculator=folder))
    assert list(tmp_path.iterdir()) == [folder]


def test_a_model_without_layers_for_later_tokens_has_no_speculator_of_its_own(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for model_type in ("llama", "qwen3_5_text"):
        assert "has no layers for later tokens" in _refusal(
            tiny_model(model_type), "auto", tmp_path / "out", monkeypatch
        )


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp16"},
        {"precision": "bf16"},
        {"precision": "fp32", "attention": "fast"},
        {"attention": "portable"},
        {"attention": "portable-exact"},
        {"engine": "iree", "attention": "portable-exact"},
    ],
    ids=str,
)
def test_packages_that_report_no_states_have_no_speculator(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="has no states that a speculator could read"):
        ExportOptions(**options, speculator="auto")  # type: ignore[arg-type]


def _change(folder: Path, change: Change) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "model.safetensors")
    change(config, tensors)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")


def _refusal(source: Path, speculator: Path | str, out: Path, patch: pytest.MonkeyPatch) -> str:
    """What is said, with no package left and no weights of the target read."""
    patch.setattr("reader_edge_export.sources.folder.hugging_face.HuggingFaceSource.open_model", _never)
    with pytest.raises(ReaderEdgeError) as error:
        export_model(source, out, ExportOptions("fp32", check="none", speculator=speculator))
    assert [path.name for path in out.parent.iterdir()] in ([], ["speculator"])
    return str(error.value)


def _never(_: object) -> None:
    raise AssertionError("the target was read")


assert LAYER["hidden_size"] != 64  # so that no matrix of the target fits
