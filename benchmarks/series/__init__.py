"""Forecasts measured: skill beside others, what drafting does to time, and that it does nothing to the law."""
