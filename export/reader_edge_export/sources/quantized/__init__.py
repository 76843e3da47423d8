"""Folders whose weights another tool quantised: recognised by format, and widened to fp32 one matrix at a time."""
