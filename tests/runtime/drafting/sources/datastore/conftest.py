"""What the tests of datastores share."""

from pathlib import Path

import pytest

from reader_edge_runtime.drafting.sources.datastore.datastore import Datastore
from tests.runtime.drafting.sources.datastore.datastore_reference import DOCUMENTS, NARROW, WIDE, build


@pytest.fixture(params=[NARROW, WIDE])
def datastore(request: pytest.FixtureRequest, tmp_path: Path) -> Datastore:
    return build(tmp_path / "corpus.ds", DOCUMENTS, request.param)
