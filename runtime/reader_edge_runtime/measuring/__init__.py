"""Measures any target: how long passes take, and whether their bits depend on their width."""
