"""Folders whose weights another tool quantised: told apart by format, and widened to fp32 one matrix at a time."""
