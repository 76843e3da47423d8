"""Fixtures that commands of the wings share with those of the command line."""

from tests.reader_edge.conftest import _measured_briefly, _no_settings, package, runner  # noqa: F401
