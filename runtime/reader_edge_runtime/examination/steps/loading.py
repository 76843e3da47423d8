"""Load every module that reader-edge cannot do without: `python -m reader_edge_runtime.examination.steps.loading`."""

from importlib import import_module

from reader_edge_runtime.examination.finding import Finding, Severity
from reader_edge_runtime.examination.loading import MODULES, failed_loading
from reader_edge_runtime.examination.step_process import tell_finding, tell_step
from reader_edge_runtime.examination.surroundings import Surroundings


def main() -> None:
    """Tell of the first module that cannot be loaded: others may need it."""
    surroundings = Surroundings.here()
    for module in MODULES:
        tell_step(module)
        try:
            loaded = import_module(module)
            if module == "onnxruntime":
                loaded.InferenceSession  # noqa: B018 (a remnant has none)
        except Exception as error:  # whatever a module raises as it loads
            tell_finding(failed_loading(module, f"{type(error).__name__}: {error}", surroundings))
            return
    named = ", ".join(module.partition(".")[0] for module in MODULES)
    tell_finding(Finding("loading", Severity.WELL, f"{named} load."))


if __name__ == "__main__":
    main()
