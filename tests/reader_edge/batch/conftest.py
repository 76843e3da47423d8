"""A batch's files to work in, and some that are answered."""

from pathlib import Path

import pytest

from tests.reader_edge.batch.batch_files import REQUESTS, Files


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.fixture(scope="session")
def answered(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """REQUESTS and their answers; not to be changed."""
    files = Files(tmp_path_factory.mktemp("answered"))
    files.write(*REQUESTS)
    result = files.run(str(demo_folder))
    assert (result.exit_code, result.output) == (0, ""), result.output
    return files
