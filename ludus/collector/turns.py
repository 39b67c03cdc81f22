"""Turns: when the lanes of a collector answer, and what is told the learner of it, in which order."""

import asyncio
from collections.abc import Callable
from dataclasses import astuple

import structlog

from ludus.collector import messages
from ludus.collector.assessment import AssessmentLane
from ludus.collector.batcher import BaseLane, Lane
from ludus.collector.holding import Holding
from ludus.collector.link import Link
from ludus.collector.matches import Referee
from ludus.collector.messages import Kind, pack_lane
from ludus.collector.opponents import OppositionLane
from ludus.collector.stats import StatSums

log = structlog.get_logger()

PROMPT_SEGMENTS = 64
"""So many closed segments are delivered at once."""


class Turns:
    """The turns of one collector process."""

    def __init__(
        self, link: Link, holding: Holding, rested: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        """`rested` is called after all turns that were due, `failed` with a mistake of ours."""
        self.stats = StatSums()
        self._link = link
        self._holding = holding
        self._rested = rested
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._due: list[BaseLane] = []
        self._opposed: dict[int, tuple[OppositionLane, Referee]] = {}
        """Who plays against a lane that learns, and who judges, by its number."""

    def oppose(self, lane: Lane, opposition: OppositionLane, referee: Referee) -> None:
        """Tell the learner of the opponents of a lane, too."""
        self._opposed[lane.number] = opposition, referee

    def schedule(self, lane: BaseLane) -> None:
        """Run a lane after the messages that are ready now."""
        if not self._due:
            self._loop.call_soon(self._run_due)
        if lane not in self._due:
            self._due.append(lane)

    def _run_due(self) -> None:
        due, self._due = self._due, []
        due.sort(key=lambda lane: isinstance(lane, Lane))  # opponents first: their steps count before a round ends
        try:
            for lane in due:
                self._run(lane)
            self._rested()
        except Exception as error:  # the edge of the process: a lane in an unknown state must not go on
            log.exception("lane_failed")
            self._failed(error)

    def _run(self, lane: BaseLane) -> None:
        report = lane.run()
        if isinstance(lane, AssessmentLane):
            self._tell_of_sittings(lane)
        if not isinstance(lane, Lane):
            return
        if report.want and lane.rounds.number is not None:
            self._link.tell(messages.Want(lane.number, lane.rounds.number))
        if report.want_blocks:
            self._link.tell(messages.WantBlocks(lane.number))
        if report.deliver or lane.tracker.segments.waiting >= PROMPT_SEGMENTS:
            self.deliver(lane)

    # What is told -----------------------------------------------------------------------------------------------

    def deliver(self, lane: Lane) -> None:
        """Send the learner what a lane has made."""
        if self._holding.done:
            return  # what was handed over goes with what was delivered before
        borrowed = lane.rounds.take_borrowed()
        if borrowed:
            self._link.tell(messages.Borrowed(lane.number, borrowed))
        if lane.number in self._opposed:
            self._tell_of_opponents(lane.number, *self._opposed[lane.number])
        episodes = lane.tracker.take_episodes()
        if episodes is not None:
            self.report_stats()  # so that a summary has the numbers of the episodes that it has
            self._link.send(Kind.EPISODES, pack_lane(lane.number, episodes))
        segments = lane.tracker.segments.take()
        if segments is not None:
            self._link.send(Kind.SEGMENTS, pack_lane(lane.number, segments))

    def report_stats(self) -> None:
        """Send the learner what simulators have reported."""
        rows = self.stats.take()
        if rows:
            self._link.tell(messages.Stats(rows))

    def _tell_of_opponents(self, number: int, opposition: OppositionLane, referee: Referee) -> None:
        steps, matches = opposition.take_steps(), referee.take()
        if steps or matches:
            self._link.tell(messages.Opposed(number, steps, [astuple(match) for match in matches]))

    def _tell_of_sittings(self, lane: AssessmentLane) -> None:
        lane.tracker.take_episodes()
        for incarnation, sitting, games in lane.sittings.take():
            self._link.tell(messages.Sat(lane.number, incarnation, sitting, [astuple(game) for game in games]))
