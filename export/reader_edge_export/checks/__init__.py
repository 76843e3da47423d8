"""Checks of a package against its source, and figures of its quality."""
