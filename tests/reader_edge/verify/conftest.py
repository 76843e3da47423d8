"""Fixtures of the tests of proofs."""

import pytest

from reader_edge.verify import variants

FEW_DRAFTERS = ("stress", variants.DEFAULT, "none")


@pytest.fixture
def few_drafters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough where a fault is to be caught: test_proof.py's report and `test_the_demo_package_passes` have them all."""
    monkeypatch.setattr(variants, "DRAFTERS", FEW_DRAFTERS)
