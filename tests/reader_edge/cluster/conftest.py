"""A Ray cluster of two nodes on this machine."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    sizes = {"object_store_memory": 100 << 20, "memory": 1 << 30}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, **sizes})
    cluster.add_node(num_cpus=1, **sizes)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
