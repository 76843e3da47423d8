"""Fixtures of all tests: the demo package, and held-out documents it was not trained on."""

import atexit
import gc
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import chain, count
from pathlib import Path

import hypothesis
import pytest

from reader_edge.models.store import StoredModel
from reader_edge_runtime import Engine, EngineConfig
from reader_edge_runtime.decoding.planning.planner import Planner
from reader_edge_runtime.drafting.machine_code.library import machine_code
from reader_edge_runtime.drafting.retrieval_drafter import RetrievalDrafter
from reader_edge_runtime.machine import processor
from tests.tiny_models import LEFT_TO_CI

ROOT = Path(__file__).parent.parent

hypothesis.settings.register_profile("no deadline", deadline=None)  # a busy machine takes its time
hypothesis.settings.load_profile("no deadline")

# A shell's background job starts with Ctrl-C ignored, and the processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What `reader-edge pull smollm2:135m` fetched, looked for once, in the user's own cache: processes that are started
# from here, pytest's workers among them, see the cache of the tests, and know it by the environment.
_REAL_MODEL = os.environ.setdefault("READER_EDGE_TESTS_MODEL", str(StoredModel("smollm2:135m").source() or ""))

# The user's own cache stays out of the tests, in this process and in those that tests start. Compiled kernels alone are
# kept for the next run: compiling them takes half a minute, and their name tells their version.
os.environ["NUMBA_CACHE_DIR"] = str(ROOT / ".cache" / "kernels")
_CACHE = tempfile.mkdtemp(prefix="reader-edge-tests-")
os.environ["XDG_CACHE_HOME"] = _CACHE
for _variable in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):  # the cache of huggingface_hub lies in ours then
    os.environ.pop(_variable, None)
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)

_IS_SAMPLED = "READER_EDGE_TESTS_ARE_SAMPLED"  # for workers: a run that names no tests tries some combinations
_STEP = 5  # of the combinations of a test's parameters every fifth is tried, the first at least

# readline, which pytest loads, gives the processes that are started a width, to which their tables would keep.
os.environ["COLUMNS"] = ""

# Some hundred processes are started: without bytecode on disk, each would compile our modules and the tests again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What is not fast: a file that imports one of these, itself or by a helper of the tests (it exports models, or waits
# for processes it starts), and what lies in these places (it decodes many whole answers, or waits for ours).
_SLOW_IMPORT = re.compile(
    r"^(?:from|import) (?:multiprocessing|onnx|reader_edge_export|reader_edge_series\.export|subprocess|torch)\b", re.M
)
_HELPER_IMPORT = re.compile(r"^from (tests\.[\w.]+) import", re.M)
_SLOW_PLACES = [
    ROOT / "tests" / place
    for place in (
        *("benchmarks", "durability", "export", "fuzz", "reader_edge/batch", "reader_edge/bench", "reader_edge/server"),
        *(
            "reader_edge/commands/test_doctor.py",
            "reader_edge/commands/test_run.py",
            "reader_edge/models/test_wheel.py",
        ),
        *("reader_edge/test_drafting_off.py", "reader_edge/test_gguf.py", "reader_edge/verify", "runtime/serving"),
        *(
            "runtime/decoding/sampling/test_grammar_process.py",
            "runtime/doctor/test_examine.py",
            "runtime/test_engine.py",
        ),
        *("runtime/execution/pipeline", "runtime/test_streams.py", "runtime/text/template/test_chat_template.py"),
    )
]


def pytest_configure(config: pytest.Config) -> None:
    """Give each of pytest's workers a core of its own: threads of ONNX Runtime spin while they wait for one.

    What starts the workers has the kernels of drafting compiled meanwhile, where they are not yet.
    """
    gc.disable()  # until all is collected
    worker = os.environ.get("PYTEST_XDIST_WORKER")
    if worker is None:
        names_none = config.args_source is not pytest.Config.ArgsSource.ARGS
        os.environ[_IS_SAMPLED] = str(names_none and not config.getoption("--every-combination"))
        if config.option.numprocesses:
            threading.Thread(target=machine_code, daemon=True).start()
    if worker is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker.removeprefix("gw")) % len(cores)]})


def pytest_addoption(parser: pytest.Parser) -> None:
    every = "Try what a run of all tests samples: every combination of parameters, instruction sets, and long tests."
    parser.addoption("--every-combination", action="store_true", help=every)
    parser.addoption("--fuzz-seconds", type=float, default=0.3, help="How long tests/fuzz tries each kind of input.")
    parser.addoption(
        "--fuzz-inputs", type=int, default=10, help="How many inputs of each kind tests/fuzz tries at least."
    )


@pytest.fixture
def fuzz_numbers(pytestconfig: pytest.Config) -> Iterator[int]:
    """Numbers of the inputs that a test tries: as many as are wanted, and more until its time is over."""
    return _numbers(pytestconfig.getoption("--fuzz-inputs"), pytestconfig.getoption("--fuzz-seconds"))


def _numbers(at_least: int, seconds: float) -> Iterator[int]:
    end = time.monotonic() + seconds
    for number in count():
        if number >= at_least and time.monotonic() > end:
            return
        yield number


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not sampled, and mark what `pytest -m fast` and `pytest -m real_model` run."""
    if os.environ[_IS_SAMPLED] == "True":
        sample = _sample(items)
        config.hook.pytest_deselected(items=[item for item in items if item not in sample])
        items[:] = [item for item in items if item in sample]
    for item in items:
        if "real_model" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.real_model)
        elif not _is_slow(item.path):
            item.add_marker(pytest.mark.fast)
    # What takes long begins first (--no-loadscope-reorder), so that no worker is left with it at the end.
    items.sort(key=_rank)


def pytest_collection_finish() -> None:
    """Cycles are looked for among what tests make: imports and thousands of tests stay to the end."""
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what holds no fast test before it imports torch."""
    return True if config.option.markexpr == "fast" and _is_slow(collection_path) else None


def _rank(item: pytest.Item) -> int:
    """The real model's tests come first, then those that are not fast."""
    return 0 if item.get_closest_marker("real_model") else 2 if item.get_closest_marker("fast") else 1


def _sample(items: list[pytest.Item]) -> set[pytest.Item]:
    """All but those that are long or of families LEFT_TO_CI, and of a test's combinations every fifth."""
    by_test: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("long") is None and not _is_left_to_ci(item):
            by_test[item.nodeid.partition("[")[0]].append(item)
    return set(chain.from_iterable(map(_diagonal, by_test.values())))


def _is_left_to_ci(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return any(isinstance(value, str) and value in LEFT_TO_CI for value in values)


def _diagonal(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Every fifth combination of a test's parameters, on a diagonal: of two that have five values, each is met."""
    ranks: defaultdict[int, dict[str, int]] = defaultdict(dict)  # parameter -> value -> its rank
    for item in items:
        assert isinstance(item, pytest.Function)
        places = enumerate(item.callspec._idlist if hasattr(item, "callspec") else ())
        if sum(ranks[place].setdefault(value, len(ranks[place])) for place, value in places) % _STEP == 0:
            yield item


@cache
def _is_slow(path: Path) -> bool:
    if any(path.is_relative_to(place) for place in _SLOW_PLACES):
        return True
    if path.suffix != ".py" or not path.is_file():
        return False
    source = path.read_text(encoding="utf-8")
    helpers = (ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in _HELPER_IMPORT.findall(source))
    return bool(_SLOW_IMPORT.search(source)) or any(map(_is_slow, helpers))


@pytest.fixture(autouse=True, scope="session")
def small_caches() -> Iterator[None]:
    """What is read to empty the processor's caches before a pass is timed is small: no test counts on such times.

    Of `split`, where its tests are collected: its module is slow to import.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("reader_edge_runtime.drafting.speculators.speculator_cost._OTHER_BYTES", 1 << 20)
        if (graphs := sys.modules.get("reader_edge_export.split.stage_graphs")) is not None:
            patch.setattr(graphs, "_CACHE_BYTES", 1 << 20)
        yield


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads compute, also where pytest's worker has one core, for which they would be cut."""
    monkeypatch.setattr(processor, "num_usable_cores", lambda: 2)


@pytest.fixture(scope="session")
def real_model() -> Path:
    """SmolLM2-135M-Instruct, as a GGUF file or a folder in Hugging Face format."""
    if not _REAL_MODEL:
        pytest.skip("`reader-edge pull smollm2:135m` fetches it")
    return Path(_REAL_MODEL)


@pytest.fixture(scope="session")
def real_package(real_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model's package, its weights as they are; exporting it takes seconds, once for all tests.

    The sample leaves its checks out, which are half of these.
    """
    from reader_edge_export import ExportOptions, export_model

    out = tmp_path_factory.mktemp("real") / "package"
    with pytest.MonkeyPatch.context() as patch:  # smaller parts of the texts are enough here
        patch.setattr("reader_edge_export.package_export.max_calibration_tokens", lambda _: 1000)
        patch.setattr("reader_edge_export.checks.package_check.max_quality_tokens", lambda _: 300)
        patch.setattr("reader_edge_export.checks.package_check.num_table_tokens", lambda *_: 1000)
        export_model(real_model, out, ExportOptions(check="none" if os.environ[_IS_SAMPLED] == "True" else "full"))
    return out


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The bundled demo package."""
    return ROOT / "models" / "demo" / "package"


@pytest.fixture(scope="session")
def shared_engine(demo_folder: Path) -> Engine:
    engine = Engine.load(demo_folder, EngineConfig(is_calibrated=False))  # else this machine's speed decides on drafts
    assert isinstance(engine.decoder.drafter, RetrievalDrafter)
    engine.decoder.drafter.wait()  # else the first tests would draft nothing
    return engine


def make_as_new(engine: Engine) -> None:
    """Drop what an engine learned of texts, and of what drafting takes and brings: else it may not draft."""
    engine.forget()
    engine.decoder.planner = Planner()


@pytest.fixture
def engine(shared_engine: Engine) -> Iterator[Engine]:
    """The demo engine, with nothing left over from other tests."""
    make_as_new(shared_engine)
    yield shared_engine
    assert not shared_engine.decoder.running, "a test left a sequence running"
    assert not shared_engine.decoder.waiting, "a test left a sequence waiting"


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Has a file, or a link, belong to another user. Only root can; other users are themselves another from then on."""

    def give(path: Path) -> None:
        user = os.geteuid()
        if user == 0:
            os.chown(path, 1, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: user + 1)

    return give


@pytest.fixture(scope="session")
def held_out_texts() -> list[str]:
    """Documents the demo model was not trained on."""
    lines = (ROOT / "tests" / "data" / "held_out.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]
