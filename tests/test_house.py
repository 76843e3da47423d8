"""The house: ceilings of rooms, and CONTRIBUTING names what is there."""

import re
import tomllib

import pytest

from tests.conftest import ROOT

CEILINGS = {  # lines of a room, raised only in the commit that says why
    "runtime": (
        "*.py",
        34_443,
    ),  # adapters, for what files call a family, or their base; calls of GLM-4, MiniCPM5, Hunyuan; manifests read once
    "export": ("*.py", 26_650),  # adapters; bitsandbytes, MLX; Nemotron-H; Falcon-H1; Phi-MoE
    "reader_edge": ("*.py", 21_690),  # proposals in replays; calls of GLM-4, MiniCPM5; names of two families
    "wings": ("*.py", 3_646),
    "native": ("*", 9_462),  # rows of low rank; tiles of two panels
    "tests": ("*.py", 83_000),  # Gemma 3n; StarCoder2, Mixtral; adapters; bitsandbytes, MLX; Nemotron-H; Falcon-H1
    "reader_edge/server": ("*.py", 8_680),  # images; kept responses; budgets; infill; models go; embeddings; first use
    "reader_edge/bench": ("*.py", 1_350),
    "benchmarks": ("*.py", 6_716),  # adapters; images; first tokens; long contexts; sessions of agents; split files
    "scripts": ("*", 3_312),  # trees of blocks; AdaPLD and Graft; speculators proven; a fuzzer's help; a block timed
    "docs": ("*.md", 7_371),  # copies, held out; bitsandbytes, MLX; Nemotron-H; Falcon-H1; bases of adapters
}
CODE = ("benchmarks", "export", "models", "native", "reader_edge", "runtime", "scripts", "tests", "wings")


@pytest.mark.parametrize("room", CEILINGS)
def test_no_room_grows_beyond_its_ceiling(room: str) -> None:
    pattern, most = CEILINGS[room]
    files = [path for path in (ROOT / room).rglob(pattern) if path.is_file() and "__pycache__" not in path.parts]
    assert 0 < sum(len(path.read_text("utf-8").splitlines()) for path in files) <= most


def test_the_licences_of_bundled_models_come_along() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    licences = "".join((ROOT / name).read_text("utf-8") for name in settings["project"]["license-files"])
    bundled = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    models = [place for source, place in bundled.items() if source.startswith("models/")]
    assert models
    assert [place for place in models if f"`{place}`" not in licences] == []


def test_the_house_page_names_all_that_a_package_has_on_top() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    tops = [ROOT / name for name in ("reader_edge", "export/reader_edge_export", "runtime/reader_edge_runtime")]
    files = [path.stem for top in tops for path in top.glob("*.py") if not path.stem.startswith("__")]
    folders = [path.parent.name for top in tops for path in top.glob("*/__init__.py")]
    assert [name for name in files + folders if not re.search(rf"\b{name}\b", page)] == []


def test_files_that_contributing_names_are_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    files = {path.name for folder in (*CODE, "docs") for path in (ROOT / folder).rglob("*.py")}
    assert [name for name in re.findall(r"\b\w+\.py\b", page) if name not in files | {"hatch_build.py"}] == []
