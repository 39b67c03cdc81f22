"""Permits: how those of a round pass between a collector and the others, by way of the learner (`sharing`).

Also the places of steps that do not come back: others take them, in a round that would otherwise be complete.
"""

from collections.abc import Iterable

from worker.collector import messages
from worker.collector.agents import Roster
from worker.collector.batcher import Lane
from worker.collector.link import Link
from worker.collector.session import Session


class Permits:
    """The permits of one collector process."""

    def __init__(self, link: Link, count: int, grace: float) -> None:
        """There are `count` collectors; `grace` is the patience with simulators that are waited for, in seconds."""
        self._link = link
        self._count = count
        self._grace = grace
        self._recalled: dict[int, int] = {}
        """Lane -> round in which other collectors lack permits."""

    def take(self, lane: Lane, message: messages.GrantSteps) -> None:
        """Accept permits."""
        lane.rounds.grant(message.round, message.steps, size=message.size, closed=message.closed)
        lane.required_version = max(lane.required_version, message.version)
        lane.wanted = False
        lane.schedule()

    def give_back(self, lane: Lane, message: messages.RecallSteps) -> None:
        """Give back what is not needed here."""
        spare = 0
        if message.round == lane.rounds.number:
            busy = bool(lane.rounds.outstanding[message.round])
            # Not what its own agents wait for: collectors with too little each would pass it back and forth.
            needed = sum(batch.rows for batch in lane.waiting)
            spare = max(lane.rounds.left - needed, 0) // (2 if busy else 1)
            lane.rounds.left -= spare
            self._recalled[message.lane] = message.round
        self._link.tell(messages.Returned(message.lane, message.round, spare))

    def return_idle(self, lane: Lane) -> None:
        """Give permits back that other collectors lack and nobody here is about to use."""
        number = lane.rounds.number
        if (
            number is not None
            and lane.rounds.left > 0
            and self._is_lacked_elsewhere(lane, number)
            and not lane.waiting
            and not lane.rounds.outstanding[number]
        ):
            spare, lane.rounds.left = lane.rounds.left, 0
            lane.rounds.closed = lane.wanted = False  # whoever comes later asks anew
            self._link.tell(messages.Returned(lane.number, number, spare, idle=True))

    def release_stragglers(self, lane: Lane, sessions: Iterable[Session], now: float) -> None:
        """Let others take the places of steps that do not come back, in a round that would otherwise be complete.

        Such are simulators that are silent while others are held, and agents whose simulator goes on without them.
        """
        number = lane.rounds.number
        if number is None or not lane.rounds.outstanding[number]:
            return
        elsewhere = self._is_lacked_elsewhere(lane, number)
        if lane.rounds.left > 0 and not elsewhere:
            return
        late = [
            roster
            for session in sessions
            for other, roster in session.rosters.values()
            if other is lane
            and (
                (now - session.last_activity > self._grace and (lane.waiting or elsewhere))
                or _borrows_too_long(roster, number, now, self._grace)
            )
        ]
        if late:
            lane.release_stragglers(late)

    def _is_lacked_elsewhere(self, lane: Lane, number: int) -> bool:
        """Whether other collectors may wait for permits of this round.

        They do if ours were recalled. If we wanted some ourselves, and heard that none are left, ours were not asked
        for, but may have become too many since: simulators leave, and what they had is refunded.
        """
        return self._recalled.get(lane.number) == number or (lane.rounds.closed and self._count > 1)


def _borrows_too_long(roster: Roster, number: int, now: float, grace: float) -> bool:
    """Whether a session has been answered in advance for a while, because of steps that it still owes."""
    if roster.borrowing != number:
        return False
    if roster.borrowing_since[0] != number:
        roster.borrowing_since = (number, now)
    return now - roster.borrowing_since[1] > grace
