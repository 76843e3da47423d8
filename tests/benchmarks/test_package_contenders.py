"""Packages by name: passes of each are timed by the checkout that is named with it."""

import os
import sys
from pathlib import Path

import pytest

from benchmarks.package_contenders import package_contender
from benchmarks.pass_replay import curves_of, timed
from benchmarks.pass_times import WIDTHS
from benchmarks.runtimes import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """One whose worker answers with numbers of its own."""
    folder = tmp_path / "then"
    (folder / "benchmarks" / "workers").mkdir(parents=True)
    library = next((ROOT / "runtime").rglob("native.py")).with_name("reader_edge_native.so").relative_to(ROOT)
    (folder / library).parent.mkdir(parents=True)
    (folder / library).touch()
    protocol = ROOT / "benchmarks" / "workers" / "protocol.py"
    (folder / "benchmarks" / "workers" / "protocol.py").write_text(protocol.read_text())
    (folder / "benchmarks" / "workers" / "reader_edge_worker.py").write_text(
        "import os\n"
        "from protocol import serve\n"
        "class OldWorker:\n"
        "    def load(self, model, threads, is_drafted):\n"
        "        return {'versions': {'path': os.environ['PYTHONPATH']}}\n"
        "    def generate(self, prompt, num_tokens, end_token_ids):\n"
        "        return {'token_ids': prompt[:1], 'first_s': 1, 'rest_s': 1}\n"
        "    def passes(self, prompt, widths, rounds):\n"
        "        return {'seconds': {width: [len(prompt) + width] for width in widths}}\n"
        "serve(OldWorker())\n"
    )
    return folder


def test_a_package_is_run_by_its_checkout_and_others_by_this_one(
    tmp_path: Path, checkout: Path, demo_folder: Path
) -> None:
    texts = f"then={demo_folder}@{checkout}", f"now={demo_folder}"
    figures = timed([package_contender(text, tmp_path) for text in texts], past=24, rounds=2)
    assert not any("error" in record for record in figures.values())
    assert figures["then"]["versions"]["path"].split(os.pathsep)[:2] == [str(checkout / "kernels"), f"{checkout}"]
    curves = curves_of({"": {"figures": figures}}, "", 24)
    assert curves["then"] == {width: 24 + width for width in WIDTHS}
    assert all(0 < second < 24 for second in curves["now"].values())
    assert all(len(seconds) == 2 for seconds in figures["now"]["pasts"]["24"]["pass_s"].values())


@pytest.mark.parametrize("text", ["{demo}", "={demo}", "name=nowhere", "name={demo}@nowhere", "name={demo}@{demo}"])
def test_what_names_no_package_or_no_checkout_is_refused(text: str, tmp_path: Path, demo_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"NAME=PACKAGE|no checkout with native kernels"):
        package_contender(text.format(demo=demo_folder), tmp_path)


def test_a_checkout_needs_kernels_of_its_own(tmp_path: Path, checkout: Path, demo_folder: Path) -> None:
    next(checkout.rglob("reader_edge_native.so")).unlink()
    with pytest.raises(ValueError, match="no checkout with native kernels: build them"):
        package_contender(f"name={demo_folder}@{checkout}", tmp_path)


def test_a_gguf_file_is_run_by_the_python_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    contender = package_contender(f"llama={file}@{sys.executable}", tmp_path)
    assert contender.name == "llama"
    assert contender.model("") == str(file)
    assert contender.python == Path(sys.executable)
    assert contender.runtime.worker == "llama_cpp_worker.py"
    for text in (f"llama={file}", f"llama={file}@nowhere", f"llama={file.with_stem('other')}@{sys.executable}"):
        with pytest.raises(ValueError, match=r"is not NAME=FILE\.gguf@PYTHON"):
            package_contender(text, tmp_path)
