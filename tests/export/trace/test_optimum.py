"""What Optimum does for the export, and when it could do more."""

import pytest
from optimum.exporters.tasks import TasksManager

from reader_edge_export.sources.architectures import SUPPORTED
from reader_edge_export.trace.tree_config import EXPORTER, TASK, TreeConfig


@pytest.mark.parametrize("model_type", SUPPORTED)
def test_every_architecture_is_registered_with_optimum(model_type: str) -> None:
    constructor = TasksManager.get_exporter_config_constructor(
        EXPORTER, model_type=model_type, task=TASK, library_name="transformers"
    )
    assert constructor.func is TreeConfig


def test_optimum_has_no_onnx_configs_for_the_pinned_transformers() -> None:
    """If this fails, Optimum's own ONNX configs are there: consider them as the base of TreeConfig."""
    with pytest.raises(ImportError):
        import optimum.exporters.onnx.model_configs  # noqa: F401
