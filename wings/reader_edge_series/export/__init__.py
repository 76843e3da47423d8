"""Forecasting models: a patch transformer, its training, and its package."""
