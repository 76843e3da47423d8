"""The folder of a trained speculator: as the speculators package reads it, replaced whole or not at all."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from reader_edge.cli import main
from reader_edge_export.speculators.training import speculator_folder
from reader_edge_export.speculators.training.speculator_folder import write_folder
from reader_edge_export.speculators.training.train_speculator import TRAINED_FORMATS
from reader_edge_runtime.errors import ExportError
from reader_edge_runtime.package.model_package import ModelPackage
from tests.export.speculators.record_speculators import TRAINED
from tests.export.speculators.speculator_folders import HIDDEN_SIZE

pytestmark = pytest.mark.usefixtures("few")


def test_a_folder_is_the_one_that_the_speculators_package_was_given(package: Path, tmp_path: Path) -> None:
    form, manifest = TRAINED_FORMATS["mtp"], ModelPackage.open(package).manifest
    module, state_ids = form.untrained(manifest), form.state_ids(manifest)
    write_folder(tmp_path / "out", form, module, torch.ones(HIDDEN_SIZE), state_ids, manifest)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == TRAINED["mtp"]
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert names == {name for name, _ in module.named_parameters() if name.startswith("mtp_layers.0.")}


def test_a_folder_is_replaced_whole_or_not_at_all(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form, manifest, out = TRAINED_FORMATS["mtp"], ModelPackage.open(package).manifest, tmp_path / "out"
    module, state_ids = form.untrained(manifest), form.state_ids(manifest)

    def write(is_forced: bool) -> None:
        write_folder(out, form, module, torch.ones(HIDDEN_SIZE), state_ids, manifest, is_forced)

    out.mkdir()
    (out / "config.json").write_text("old")
    with pytest.raises(ExportError, match="exists already"):
        write(is_forced=False)
    out.rename(tmp_path / f".out.old-{2**31 - 1}-1")  # as a kill left it
    (tmp_path / f".out.partial-{2**31 - 1}-1").mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(speculator_folder, "save", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        with pytest.raises(ExportError, match="is full: free some space, then give the same command"):
            write(is_forced=True)
    assert os.listdir(tmp_path) == ["out"]
    assert (out / "config.json").read_text() == "old"
    write(is_forced=True)
    assert os.listdir(tmp_path) == ["out"]
    with monkeypatch.context() as patch:
        patch.setattr(speculator_folder, "save", lambda *_, **__: bytes((out / "precious.txt").write_text("mine")))
        with pytest.raises(ExportError, match=r"holds more than a speculator \('precious.txt'\)"):
            write(is_forced=True)  # what came while it was made
    assert (out / "precious.txt").read_text() == "mine"
    assert json.loads((out / "config.json").read_text()) == TRAINED["mtp"]


@pytest.mark.parametrize(
    ("form", "make", "words"),
    [
        ("mtp", lambda out: out.write_text(""), "is a file: choose another name"),
        ("mlp", lambda out: out.mkdir(), "is a folder: choose another name"),
        ("mtp", lambda out: (out / "letters").mkdir(parents=True), "holds more than a speculator ('letters'): choose"),
    ],
    ids=["a file", "a folder", "a folder of other things"],
)
def test_what_is_no_speculator_is_never_replaced_by_one(
    form: str, make: Callable[[Path], None], words: str, package: Path, tmp_path: Path
) -> None:
    make(tmp_path / "out")
    command = ["train-drafter", str(package), "-o", str(tmp_path / "out"), "--format", form, "--force"]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 2
    assert words in told.stderr
    assert len(told.stderr.splitlines()) == 1
