"""Acceptance of recorded answers, replayed through the drafter without a model: `bench replay`."""
