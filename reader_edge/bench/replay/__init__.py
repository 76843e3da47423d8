"""Acceptance of recorded answers, replayed through the drafter, without a model and with one: `bench replay`."""
