"""Measures where the time of an attempt goes: in the trainer's loop itself, and from the reports of its collectors."""

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ludus.collector.messages import TimesMeasured
from server.runs.bottleneck.diagnosis import TimeSpent

WINDOW_SECONDS: Final = 30.0
"""What is reported covers so much of the newest time."""
PERIOD_SECONDS: Final = 2.0
"""Reports change so often."""


class TimeMeter:
    """Measures one attempt. Only the trainer's main thread uses it."""

    def __init__(self) -> None:
        self._learning = 0.0
        self._checkpointing = 0.0
        self._marks: deque[tuple[float, float, float, int]] = deque()
        """Time, seconds of learning and of checkpoints until then, and the run's step."""
        self._reports: deque[tuple[float, TimesMeasured]] = deque()
        self._spent: TimeSpent | None = None

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Count the time of the block as learning."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._learning += time.monotonic() - begun

    @contextmanager
    def checkpointing(self) -> Iterator[None]:
        """Count the time of the block as work on checkpoints."""
        begun = time.monotonic()
        try:
            yield
        finally:
            self._checkpointing += time.monotonic() - begun

    def collected(self, report: TimesMeasured) -> None:
        """Take a report of a collector."""
        self._reports.append((time.monotonic(), report))

    def spent(self, step: int) -> TimeSpent | None:
        """Return where the time of the last half minute went, up to date within two seconds; None before that."""
        now = time.monotonic()
        if self._marks and now < self._marks[-1][0] + PERIOD_SECONDS:
            return self._spent
        self._marks.append((now, self._learning, self._checkpointing, step))
        for kept in (self._marks, self._reports):
            while len(kept) > 1 and kept[1][0] < now - WINDOW_SECONDS:
                kept.popleft()
        if len(self._marks) > 1 and self._reports:
            self._spent = self._sum_up()
        return self._spent

    def _sum_up(self) -> TimeSpent:
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
            for one in report.simulators:
                agents["away"] += one.away
                agents["steps"] += one.steps
                if one.game:
                    agents["told"] += one.away
                    agents["game"] += one.game
                if one.quickest_way:
                    quickest_ways[one.number] = min(one.quickest_way, quickest_ways.get(one.number, math.inf))
                delays[one.number] += one.delayed
            busy[report.collector][0] += report.busy
            busy[report.collector][1] += report.seconds
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
            busy=max(used / max(length, 1e-9) for used, length in busy.values()),
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
