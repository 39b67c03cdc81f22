"""Chooses a collector for each simulator: the least loaded, the same one for the same session id."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from server.simulators.repository import Assigned

MEMORY_SECONDS = 10.0
"""Time for which an assignment counts before the database must list the simulator as connected."""


@dataclass(frozen=True)
class _Choice:
    index: int
    at: float


class Balancer:
    """Remembers its last choices, because a hundred simulators may join before the first of them is seen connected."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._choices: dict[tuple[str, int], dict[str, _Choice]] = {}
        """(run, attempt number) -> session id -> choice."""

    def choose(self, assigned: Assigned, session_id: str) -> Mapping[str, Any]:
        """Return the endpoint of a collector of the attempt."""
        now = self._clock()
        recent = self._recent((assigned.run_id, assigned.attempt), now)
        endpoints = {int(endpoint["index"]): endpoint for endpoint in assigned.endpoints}
        before = recent.get(session_id)
        if before is not None and before.index in endpoints:
            return endpoints[before.index]
        promised = [choice.index for choice in recent.values()]
        index = min(sorted(endpoints), key=lambda each: assigned.load.get(each, 0) + promised.count(each))
        recent[session_id] = _Choice(index, now)
        return endpoints[index]

    def _recent(self, attempt: tuple[str, int], now: float) -> dict[str, _Choice]:
        """Return the attempt's choices that still count; forget all others, also those of attempts that are over."""
        for key, choices in list(self._choices.items()):
            for session_id in _outdated(choices, now):
                del choices[session_id]
            if not choices:
                del self._choices[key]
        return self._choices.setdefault(attempt, {})


def _outdated(choices: dict[str, _Choice], now: float) -> Sequence[str]:
    """Choices are in the order of their times, so this reads only what it returns, and one more."""
    outdated = []
    for session_id, choice in choices.items():
        if now - choice.at < MEMORY_SECONDS:
            break
        outdated.append(session_id)
    return outdated
