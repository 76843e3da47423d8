"""One server in a process of its own for all clients that this process tries."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reader_edge.package_copy import CHAT_TEMPLATE, PackageCopy


@pytest.fixture(scope="session")
def server(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A ServerProcess of the demo model with a chat template, which wants KEY."""
    from tests.reader_edge.server.http.test_sockets import KEY, ServerProcess  # which is skipped without its client

    folder = tmp_path_factory.mktemp("served")
    package = PackageCopy(demo_folder, folder / "package")
    package.write_file("chat_template.jinja", CHAT_TEMPLATE.encode())
    (folder / "keys").touch(0o600)
    (folder / "keys").write_text(KEY)
    server = ServerProcess(package.folder, folder / "keys")
    yield server
    server.process.kill()
    server.process.communicate()
