"""`ludus.backoff`: how long to wait after which failure."""

import pytest

from ludus.backoff import STEADY_SECONDS, Backoff


def test_pauses_double_up_to_the_limit_and_begin_anew_after_a_success() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.pause() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert backoff.failures == 5
    backoff.reset()
    assert backoff.pause() == 0.5


def test_failures_before_a_long_time_of_work_are_forgotten() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.pause(lived) for lived in (0.0, STEADY_SECONDS - 1, STEADY_SECONDS + 1, 0.0)] == [
        0.5,
        1.0,
        0.5,
        1.0,
    ]


def test_the_first_failures_may_be_followed_by_no_pause() -> None:
    backoff = Backoff(0.5, 10.0, immediate=2)
    assert [backoff.pause() for _ in range(4)] == [0.0, 0.0, 0.5, 1.0]


def test_a_million_failures_in_a_row_are_no_overflow() -> None:
    backoff = Backoff(0.5, 3.0)
    backoff.failures = 1_000_000
    assert backoff.pause() == 3.0


def test_jitter_only_shortens_a_pause_and_differs_from_pause_to_pause() -> None:
    backoff = Backoff(1.0, 1.0, jitter=0.5)
    pauses = [backoff.pause() for _ in range(100)]
    assert all(0.5 <= pause <= 1.0 for pause in pauses)
    assert len(set(pauses)) > 50


def test_a_row_of_failures_is_as_old_as_its_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("ludus.backoff.time.monotonic", lambda: now)
    backoff = Backoff(1.0, 1.0)
    assert backoff.failing_seconds == 0.0
    backoff.pause()
    now = 110.0
    backoff.pause()
    assert backoff.failing_seconds == 10.0
    backoff.reset()
    assert backoff.failing_seconds == 0.0
