"""A collector's part in a checkpoint: it stops answering, waits until simulators are idle, and sends its snapshot.

Before that it remembers the snapshots of a former attempt, for those simulators that have not come back yet; see
`snapshots.state` for their content.
"""

from collections.abc import Callable, Iterable

import numpy as np
import structlog

from ludus.collector.runners import LearningRunner
from ludus.collector.snapshots.agents import restore_order, slots_in_order
from ludus.collector.snapshots.sessions import SessionCheckpoints
from ludus.collector.snapshots.state import MAX_BYTES, SessionSnapshot, State, pack

log = structlog.get_logger()


class CheckpointBarrier:
    """Quiesces one collector for a checkpoint and snapshots its sessions."""

    def __init__(
        self,
        restored: State | None,
        snapshots: dict[str, SessionSnapshot],
        send: Callable[[bytes], None],
    ) -> None:
        """`restored` is the result of `snapshots.state.merged` for this collector; None without a checkpoint.

        `snapshots` gets those of the simulators that have not come back yet, by session id.
        """
        self._send = send
        self._snapshots = snapshots
        self._runners: dict[str, State] = {} if restored is None else dict(restored["lanes"])
        """Of behaviors that are not admitted yet."""
        for state in [] if restored is None else restored["sessions"]:
            snapshots[state["session_id"]] = SessionSnapshot.from_state(state)
        self._number = 0
        self._until: float | None = None
        """When simulators will have been waited for long enough; None while no checkpoint is taken."""
        self.done = False
        """Whether the snapshot is sent, so that nothing may change before the learner says so."""

    def restore(self, runner: LearningRunner) -> None:
        """Restore the state of a new runner."""
        saved = self._runners.pop(runner.behavior, None)
        if saved is None:
            return
        runner.rng.bit_generator.state = saved["rng"]
        runner.ticks = saved["ticks"]
        restore_order(runner.recorder.agents, saved["places"].tolist())
        runner.quota.overdraft.update(dict(saved["advance"]))
        if runner.noise is not None and saved["noise"] is not None:
            runner.noise.states = saved["noise"].copy()

    def begin(self, until: float) -> None:
        """Hold; simulators are waited for until then (the loop's time)."""
        self._number += 1
        self._until, self.done = until, False

    def is_complete(self, resumable: Iterable[SessionCheckpoints], now: float) -> bool:
        """Whether a checkpoint is taken, and all simulators that can go back have sent their positions or are late.

        Asks the simulators that rest.
        """
        if self._until is None or self.done:
            return False
        # Every simulator is asked, also behind one that has not answered.
        answered = [checkpoints.has_position(self._number) for checkpoints in resumable]
        return all(answered) or now >= self._until

    def send_snapshot(self, runners: Iterable[LearningRunner], resumable: Iterable[SessionCheckpoints]) -> None:
        """Send everything to the learner."""
        snapshots = [checkpoints.snapshot() for checkpoints in resumable]
        newest = {snapshot.session_id: snapshot for snapshot in snapshots if snapshot is not None}
        state: State = {
            "lanes": self._runners | {runner.behavior: _runner_state(runner) for runner in runners},
            "sessions": [snapshot.to_state() for snapshot in (self._snapshots | newest).values()],
        }
        payload = pack(state)
        if len(payload) > MAX_BYTES:
            log.warning("sessions_not_kept", bytes=len(payload), limit=MAX_BYTES)
            payload = pack({**state, "sessions": []})
        self.done = True
        self._send(payload)

    def end(self) -> None:
        """Go on after the checkpoint has been taken."""
        self._until, self.done = None, False


def _runner_state(runner: LearningRunner) -> State:
    """Return the state of a runner, beside that of its sessions."""
    agents = runner.recorder.agents
    advance = dict(runner.quota.overdraft)
    opened = agents.length > 0
    for number, length in zip(agents.round[opened].tolist(), agents.length[opened].tolist(), strict=True):
        if number in advance:
            advance[number] -= length  # comes back with its session, or never
    return {
        "rng": dict(runner.rng.bit_generator.state),
        "ticks": runner.ticks,
        "places": np.array(slots_in_order(agents), np.int64),
        "noise": None if runner.noise is None else runner.noise.states,
        "advance": [[number, steps] for number, steps in sorted(advance.items()) if steps > 0],
    }
