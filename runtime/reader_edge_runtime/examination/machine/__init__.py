"""Checks of the surroundings that load nothing."""
