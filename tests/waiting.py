"""The one way in which tests wait for something that they have no event for: they look again until a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")

SECONDS = 60.0
"""How long a test waits by default: far longer than anything takes, so that a busy machine fails no test."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.002, 0.2


def eventually(look: Callable[[], Value | None], what: str = "", seconds: float = SECONDS) -> Value:
    """Return the first truthy answer of `look`. AssertionError, which says `what` did not happen, after `seconds`."""
    deadline = time.monotonic() + seconds
    pause = SHORTEST_PAUSE
    while not (value := look()):
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what or 'what the test waits for'}"
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_PAUSE)
    return value


def never(look: Callable[[], object], what: str, seconds: float) -> None:
    """Look for `seconds` whether something happens that must not. AssertionError as soon as it has happened."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert not look(), f"it happened: {what}"
        time.sleep(SHORTEST_PAUSE * 5)
    assert not look(), f"it happened: {what}"
