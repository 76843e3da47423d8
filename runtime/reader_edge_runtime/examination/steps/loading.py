"""Load every module that reader-edge cannot do without: `python -m reader_edge_runtime.examination.steps.loading`."""

from importlib import import_module

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.loading import MODULES, failed_loading
from reader_edge_runtime.examination.step_process import tell_finding, tell_step
from reader_edge_runtime.examination.surroundings import Surroundings


def main() -> None:
    """Tell of each module that cannot be loaded."""
    surroundings = Surroundings.here()
    has_failed = False
    for module in MODULES:
        tell_step(module)
        try:
            loaded = import_module(module)
            if module == "onnxruntime":
                loaded.InferenceSession  # noqa: B018 (a remnant has none)
        except Exception as error:  # whatever a module raises as it loads
            has_failed = True
            tell_finding(failed_loading(module, f"{type(error).__name__}: {error}", surroundings))
    if not has_failed:
        tell_finding(Finding("loading", Severity.WELL, "Everything that is loaded from other packages loads."))


if __name__ == "__main__":
    main()
