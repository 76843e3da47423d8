"""Forecasts of time series: a patch transformer's sampled paths, with speculative decoding that keeps their law."""
