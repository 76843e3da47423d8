"""What the tests of serving share."""

import asyncio
from collections.abc import Iterator

import pytest

from reader_edge import AsyncEngine
from reader_edge_runtime import Engine


@pytest.fixture
def served(engine: Engine) -> Iterator[AsyncEngine]:
    served = AsyncEngine(engine)
    yield served
    asyncio.run(served.close(cancels=True))
    assert engine.decoder.prefill_budget.limit is None
