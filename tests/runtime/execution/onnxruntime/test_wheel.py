"""The wheel of ONNX Runtime: one that cannot be imported is told in a sentence, wherever it is imported first."""

import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest

from reader_edge_runtime.errors import InstallationError
from reader_edge_runtime.execution.onnxruntime import wheel


def imported_anew() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wheel_anew", wheel.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_wheel_that_loads_is_the_one_that_is_installed() -> None:
    found = imported_anew()
    assert (found.ort, found.INSTALLED_WHEEL) == (wheel.ort, wheel.installed_wheel())


@pytest.mark.parametrize(
    ("module", "reason"),
    [(SimpleNamespace(), "no attribute 'InferenceSession'"), (None, "import of onnxruntime halted")],
)
def test_a_wheel_that_does_not_load_is_one_sentence(
    module: object, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", module)
    with pytest.raises(InstallationError, match=rf"^onnxruntime\S* \S+ cannot be loaded \(.*{reason}.*\): run"):
        imported_anew()
