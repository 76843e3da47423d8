"""The graph of images on the CPU: features as it gives them, and graphs that its manifest does not describe."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from reader_edge_runtime.errors import ProviderError
from reader_edge_runtime.execution.onnxruntime.host.host_vision import HostVision
from reader_edge_runtime.execution.onnxruntime.session import open_session


def vision(name: str = "image_features", width: int = 4, spelled: bytes = b"patches") -> HostVision:
    """Of a graph that adds up a token's two patches. spelled: the name of its input, of seven bytes."""
    patches = helper.make_tensor_value_info("patches", TensorProto.FLOAT, ["L", 2, width])
    features = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["L", width])
    node = helper.make_node("ReduceSum", ["patches", "axis"], [name], keepdims=0)
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    graph = helper.make_graph([node], "vision", [patches], [features], [axis])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    return HostVision(open_session(model.SerializeToString().replace(b"patches", spelled), 1), 4)


def test_features_are_the_graphs_own() -> None:
    patches = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
    features = vision().features({"patches": patches}, lambda: True)
    np.testing.assert_array_equal(features, patches.sum(1))


def endless() -> HostVision:
    """Of a graph that adds a patch to itself, for years."""
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["" : 18]>
        vision (float[L, 4] patches) => (float[L, 4] image_features)
        <int64 times = {4611686018427387904}, bool is_on = {1}>
        {
            image_features = Loop (times, is_on, patches) <
                body = step (int64 n, bool on, float[L, 4] sum) => (bool next, float[L, 4] more)
                { next = Identity (on) more = Add (sum, sum) }
            >
        }
    """)
    return HostVision(open_session(model.SerializeToString(), 1), 4)


def test_a_pass_ends_once_nobody_waits_for_it() -> None:
    tower, patches = endless(), {"patches": np.ones((1, 4), np.float32)}
    assert tower.features(patches, lambda: False) is None

    def interrupted() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tower.features(patches, interrupted)


def test_a_graph_that_its_manifest_does_not_describe_is_refused() -> None:
    with pytest.raises(ProviderError, match="not 4 features"):
        vision(name="hidden")
    with pytest.raises(ProviderError, match="not 4 features"):
        vision(width=5)
    with pytest.raises(ProviderError, match=r"other inputs than its rules \(patches, pixels\)"):
        vision().features({"pixels": np.zeros((1, 2, 4), np.float32)}, lambda: True)
    with pytest.raises(ProviderError, match="are not UTF-8"):
        vision(spelled=b"patch\xff\xfe")
