"""Permits: how those of a round pass between a collector and the others, by way of the learner (`sharing`).

Also the places of steps that do not come back: others take them, in a round that would otherwise be complete.
"""

from collections.abc import Iterable

from ludus.collector import messages
from ludus.collector.batcher import Lane
from ludus.collector.link import Link
from ludus.collector.session import Session


class Permits:
    """The permits of one collector process."""

    def __init__(self, link: Link, grace: float) -> None:
        """`grace` is the patience with simulators that are waited for, in seconds."""
        self._link = link
        self._grace = grace

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
            lane.rounds.recalled = True
            lane.schedule()  # other behaviors may have to answer the sessions that this one waits for
        self._link.tell(messages.Returned(message.lane, message.round, spare))

    def return_idle(self, lane: Lane) -> None:
        """Give permits back that other collectors lack and nobody here is about to use."""
        number = lane.rounds.number
        if (
            number is not None
            and lane.rounds.left > 0
            and lane.rounds.lacked_elsewhere
            and not lane.waiting
            and not lane.rounds.outstanding[number]
        ):
            spare, lane.rounds.left = lane.rounds.left, 0
            lane.rounds.closed = lane.wanted = False  # whoever comes later asks anew
            self._link.tell(messages.Returned(lane.number, number, spare, idle=True))

    def release_stragglers(self, lane: Lane, sessions: Iterable[Session], now: float) -> None:
        """Let others take the places of steps that do not come back, in a round that would otherwise be complete.

        Such are simulators that are silent while others are held, and agents whose simulator goes on without them. The
        patience with a session doubles with each time that it was released in the round: simulators that all need
        longer than the patience would otherwise pass the permits around for ever.
        """
        number = lane.rounds.number
        if number is None or not lane.rounds.outstanding[number]:
            return
        elsewhere = lane.rounds.lacked_elsewhere
        if lane.rounds.left > 0 and not elsewhere:
            return
        owing = lane.tracker.agents.owing(number)
        late = []
        for session in sessions:
            for roster in [roster for other, roster in session.rosters.values() if other is lane]:
                if roster.number not in owing:
                    continue
                roster.enter(number)
                if roster.borrows and roster.borrows_since is None:
                    roster.borrows_since = now
                patience = self._grace * 2**roster.releases
                silent = now - session.last_activity > patience and (lane.waiting or elsewhere)
                goes_on = roster.borrows_since is not None and now - roster.borrows_since > patience
                if silent or goes_on:
                    late.append(roster)
        if late:
            lane.release_stragglers(late)
