"""Holding: a collector's part in a checkpoint. Nobody is answered, simulators come to rest, and all is handed over.

Before that it is the memory of what was handed over in a former attempt, for those who have not come back yet; see
`handover` for what that is.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import structlog

from ludus.collector.batcher import BaseLane, Lane
from ludus.collector.handover import MAX_BYTES, KeptSession, State, pack
from ludus.collector.session import Session

log = structlog.get_logger()


class Holding:
    """Of one collector process."""

    def __init__(self, kept: Mapping[str, Any] | None, hand_over: Callable[[bytes], None]) -> None:
        """`kept` is what `handover.merged` returned for this collector, if it goes on from a checkpoint."""
        self._hand_over = hand_over
        self._lanes: dict[str, State] = {} if kept is None else dict(kept["lanes"])
        """Of behaviors that are not admitted yet."""
        sessions = [] if kept is None else [KeptSession.from_state(state) for state in kept["sessions"]]
        self._sessions = {session.incarnation: session for session in sessions}
        """Of simulators that have not come back yet, by incarnation."""
        self._number = 0
        self._until: float | None = None
        """When simulators will have been waited for long enough; None while no checkpoint is taken."""
        self.done = False
        """Whether all is handed over, so that nothing may change before the learner says so."""

    # Coming back ------------------------------------------------------------------------------------------------

    def session(self, incarnation: str) -> KeptSession | None:
        """Return where a simulator was."""
        return self._sessions.get(incarnation)

    def forget(self, incarnation: str) -> None:
        """Forget where a simulator was."""
        self._sessions.pop(incarnation, None)

    def restore(self, lane: Lane) -> None:
        """Let a new lane go on where it was."""
        kept = self._lanes.pop(lane.behavior, None)
        if kept is None:
            return
        lane.rng.bit_generator.state = kept["rng"]
        lane.ticks = kept["ticks"]
        lane.tracker.agents.restore_places(kept["places"].tolist())
        lane.rounds.debt.update(dict(kept["advance"]))
        if lane.noise is not None and kept["noise"] is not None:
            lane.noise.restore(kept["noise"])

    # Taking a checkpoint ----------------------------------------------------------------------------------------

    def begin(self, until: float) -> None:
        """Hold; simulators are waited for until then (the loop's time)."""
        self._number += 1
        self._until, self.done = until, False

    @property
    def pending(self) -> bool:
        """Whether simulators are waited for."""
        return self._until is not None and not self.done

    def is_complete(self, sessions: Iterable[Session], now: float) -> bool:
        """Whether all simulators that can go back have told where they are, or time is up. Asks those that rest."""
        assert self._until is not None
        told = [session.told_position(self._number) for session in sessions if session.resumes and session.started]
        return all(told) or now >= self._until

    def hand_over(self, lanes: Iterable[Lane], sessions: Iterable[Session]) -> None:
        """Send everything to the learner."""
        kept = [session.keep() for session in sessions if session.resumes and session.started]
        known = {one.incarnation: one for one in kept if one is not None}
        state: State = {
            "lanes": self._lanes | {lane.behavior: _lane_state(lane) for lane in lanes},
            "sessions": [one.to_state() for one in (self._sessions | known).values()],
        }
        payload = pack(state)
        if len(payload) > MAX_BYTES:
            log.warning("sessions_not_kept", bytes=len(payload), limit=MAX_BYTES)
            payload = pack({**state, "sessions": []})
        self.done = True
        self._hand_over(payload)

    def end(self) -> None:
        """Note that the checkpoint has been taken."""
        self._until, self.done = None, False


def _lane_state(lane: Lane) -> State:
    """Return what a lane needs to go on, beside its sessions."""
    agents = lane.tracker.agents
    advance = dict(lane.rounds.debt)
    opened = agents.length > 0
    for number, length in zip(agents.round[opened].tolist(), agents.length[opened].tolist(), strict=True):
        if number in advance:
            advance[number] -= length  # comes back with its session, or never
    return {
        "rng": dict(lane.rng.bit_generator.state),
        "ticks": lane.ticks,
        "places": np.array(agents.places, np.int64),
        "noise": None if lane.noise is None else lane.noise.states,
        "advance": [[number, steps] for number, steps in sorted(advance.items()) if steps > 0],
    }


def hold(lanes: Iterable[BaseLane], *, held: bool) -> None:
    """Stop answering, or begin again."""
    for lane in lanes:
        lane.held = held
        lane.schedule()
