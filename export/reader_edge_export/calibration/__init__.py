"""Calibration of rounding: the source model runs over texts, and second moments of what its products read are kept."""
