"""Which types of events a webhook's patterns stand for."""

import time

import pytest

from server.webhooks.models import matches


@pytest.mark.parametrize(
    ("pattern", "event_type", "expected"),
    [
        ("*", "run_failed", True),
        ("run_*", "run_failed", True),
        ("run_*", "checkpoint_saved", False),
        ("*_saved", "checkpoint_saved", True),
        ("*_saved", "checkpoint_saved_", False),
        ("c*p*_s*d", "checkpoint_saved", True),
        ("run_failed", "run_failed", True),
        ("run_failed", "run_failed_", False),
        ("**", "", True),
    ],
)
def test_a_star_stands_for_anything(pattern: str, event_type: str, expected: bool) -> None:
    assert matches(pattern, event_type) is expected


@pytest.mark.parametrize("pattern", ["*" * 12 + "!", "*e" * 12 + "!", "*" * 63 + "x", "*_" * 32])
def test_no_pattern_takes_long(pattern: str) -> None:
    """The controller compares them between two beats of its own, and with Python's only lock held."""
    began = time.monotonic()

    assert not matches(pattern, "checkpoint_request_declined_e")

    assert time.monotonic() - began < 0.5
