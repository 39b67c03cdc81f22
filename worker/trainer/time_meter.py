"""Measures where the time of an attempt goes: in the trainer's loop itself, and from the reports of its collectors."""

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal

from ludus.collector.messages import TimesMeasured
from server.runs.diagnosis import TimeSpent

WINDOW_SECONDS: Final = 30.0
"""What is reported covers so much of the newest time."""
PERIOD_SECONDS: Final = 2.0
"""Reports change so often."""
Work = Literal["learning", "checkpoints"]


class TimeMeter:
    """Measures one attempt. Only the trainer's main thread uses it."""

    def __init__(self) -> None:
        self._seconds: dict[Work, float] = {"learning": 0.0, "checkpoints": 0.0}
        self._marks: deque[tuple[float, float, float, int]] = deque()
        """Time, seconds of learning and of checkpoints until then, and the run's step."""
        self._reports: deque[tuple[float, TimesMeasured]] = deque()
        self._spent: TimeSpent | None = None

    @contextmanager
    def counting(self, work: Work) -> Iterator[None]:
        """Count the time of the block."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._seconds[work] += time.monotonic() - begun

    def collected(self, report: TimesMeasured) -> None:
        """Take a report of a collector."""
        self._reports.append((time.monotonic(), report))

    def spent(self, step: int) -> TimeSpent | None:
        """Return where the time of the last half minute went, up to date within two seconds; None before that."""
        now = time.monotonic()
        if self._marks and now < self._marks[-1][0] + PERIOD_SECONDS:
            return self._spent
        self._marks.append((now, self._seconds["learning"], self._seconds["checkpoints"], step))
        for window in (self._marks, self._reports):
            while len(window) > 1 and window[1][0] < now - WINDOW_SECONDS:
                window.popleft()
        if len(self._marks) > 1 and self._reports:
            self._spent = self._summed()
        return self._spent

    def _summed(self) -> TimeSpent:
        (begin, learning, checkpointing, first), (end, *until, newest) = self._marks[0], self._marks[-1]
        seconds = end - begin
        agents: defaultdict[str, float] = defaultdict(float)
        """Seconds of all simulators, by what they spent it on."""
        busy: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        delays: defaultdict[int, float] = defaultdict(float)
        quickest_ways: dict[int, float] = {}
        for _, report in self._reports:
            count = len(report.simulators)
            agents["all"] += count * report.seconds
            for reason in ("learner", "stragglers", "checkpoint", "network"):
                agents[reason] += count * getattr(report, reason)
            for simulator in report.simulators:
                agents["away"] += simulator.away
                agents["steps"] += simulator.steps
                if simulator.game:
                    agents["told"] += simulator.away
                    agents["game"] += simulator.game
                if simulator.quickest_way:
                    quickest_ways[simulator.number] = min(
                        simulator.quickest_way, quickest_ways.get(simulator.number, math.inf)
                    )
                delays[simulator.number] += simulator.delayed
            busy[report.collector][0] += report.busy
            busy[report.collector][1] += report.seconds
        shares = [used / max(length, 1e-9) for used, length in busy.values()]
        newest_reports = {report.collector: report for _, report in self._reports}
        total = max(agents["all"], 1e-9)
        game = min(agents["game"] / agents["told"], 1.0) if agents["told"] else 1.0
        latest_simulator = max(delays, key=lambda number: delays[number], default=None)
        delayed = 0.0 if latest_simulator is None else delays[latest_simulator] / max(sum(delays.values()), 1e-9)
        return TimeSpent(
            at=time.time(),
            seconds=seconds,
            steps=newest - first,
            learning=min((until[0] - learning) / seconds, 1.0),
            checkpointing=min((until[1] - checkpointing) / seconds, 1.0),
            collectors=len(busy),
            busy=max(shares),
            collecting=sum(shares) / len(shares),
            simulators=sum(len(report.simulators) for report in newest_reports.values()),
            waiting_for_learner=min(agents["learner"] / total, 1.0),
            waiting_for_stragglers=min(agents["stragglers"] / total, 1.0),
            waiting_for_checkpoint=min(agents["checkpoint"] / total, 1.0),
            waiting_for_network=min(agents["network"] / total, 1.0),
            away=min(agents["away"] / total, 1.0),
            game=min(agents["away"] / total, 1.0) * game,
            game_seconds=agents["away"] * game / max(agents["steps"], 1.0),
            way_seconds=sum(quickest_ways.values()) / max(len(quickest_ways), 1),
            latest_simulator=latest_simulator if delayed else None,
            latest_simulator_share=delayed,
        )
