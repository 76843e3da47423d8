"""Texts that a model is calibrated and measured on, and how they become token ids."""
