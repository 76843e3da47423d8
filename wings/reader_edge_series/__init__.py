"""Forecasts of time series by patches: sampled from a package's model, drafted and verified without a change of law."""
