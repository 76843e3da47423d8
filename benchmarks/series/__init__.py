"""Benchmarks of time-series forecasts: the series that the bundled model learned from, and how good and fast it is."""
