"""A collector's part in a checkpoint: it stops answering, waits until simulators are idle, and sends its state.

Before that it is the memory of what was handed over in a former attempt, for those who have not come back yet; see
`handover` for what that is.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import structlog

from ludus.collector.runners import LearningRunner, PolicyRunner
from ludus.collector.session import Session
from ludus.collector.session_snapshots import MAX_BYTES, SessionSnapshot, State, pack

log = structlog.get_logger()


class CheckpointBarrier:
    """Quiesces one collector for a checkpoint and snapshots its sessions."""

    def __init__(self, kept: Mapping[str, Any] | None, hand_over: Callable[[bytes], None]) -> None:
        """`kept` is what `handover.merged` returned for this collector, if it goes on from a checkpoint."""
        self._hand_over = hand_over
        self._runners: dict[str, State] = {} if kept is None else dict(kept["lanes"])
        """Of behaviors that are not admitted yet."""
        sessions = [] if kept is None else [SessionSnapshot.from_state(state) for state in kept["sessions"]]
        self._sessions = {session.session_id: session for session in sessions}
        """Of simulators that have not come back yet, by session id."""
        self._number = 0
        self._until: float | None = None
        """When simulators will have been waited for long enough; None while no checkpoint is taken."""
        self.done = False
        """Whether all is handed over, so that nothing may change before the learner says so."""

    # Coming back ------------------------------------------------------------------------------------------------

    def session(self, session_id: str) -> SessionSnapshot | None:
        """Return where a simulator was."""
        return self._sessions.get(session_id)

    def forget(self, session_id: str) -> None:
        """Forget where a simulator was."""
        self._sessions.pop(session_id, None)

    def restore(self, runner: LearningRunner) -> None:
        """Restore the state of a new runner."""
        kept = self._runners.pop(runner.behavior, None)
        if kept is None:
            return
        runner.rng.bit_generator.state = kept["rng"]
        runner.ticks = kept["ticks"]
        runner.recorder.agents.restore_places(kept["places"].tolist())
        runner.quota.overdraft.update(dict(kept["advance"]))
        if runner.noise is not None and kept["noise"] is not None:
            runner.noise.restore(kept["noise"])

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

    def hand_over(self, runners: Iterable[LearningRunner], sessions: Iterable[Session]) -> None:
        """Send everything to the learner."""
        kept = [session.keep() for session in sessions if session.resumes and session.started]
        known = {one.session_id: one for one in kept if one is not None}
        state: State = {
            "lanes": self._runners | {runner.behavior: _runner_state(runner) for runner in runners},
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


def _runner_state(runner: LearningRunner) -> State:
    """Return what a runner needs to go on, beside its sessions."""
    agents = runner.recorder.agents
    advance = dict(runner.quota.overdraft)
    opened = agents.length > 0
    for number, length in zip(agents.round[opened].tolist(), agents.length[opened].tolist(), strict=True):
        if number in advance:
            advance[number] -= length  # comes back with its session, or never
    return {
        "rng": dict(runner.rng.bit_generator.state),
        "ticks": runner.ticks,
        "places": np.array(agents.places, np.int64),
        "noise": None if runner.noise is None else runner.noise.states,
        "advance": [[number, steps] for number, steps in sorted(advance.items()) if steps > 0],
    }


def hold(runners: Iterable[PolicyRunner], *, held: bool) -> None:
    """Stop answering, or begin again."""
    for runner in runners:
        runner.held = held
        runner.schedule()
