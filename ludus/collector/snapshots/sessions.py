"""A session's part in checkpoints: it goes on from the snapshot of a former attempt, and makes snapshots.

Only native simulators can go back to where they were, those that say so in Hello (proto/README.md, section 10).
"""

from collections.abc import Callable, Sequence

from ludus.collector.agent_queue import Returning
from ludus.collector.session import Host, Session
from ludus.collector.snapshots.agents import snapshot, waiting_of
from ludus.collector.snapshots.state import SessionSnapshot, State
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import BehaviorBatch
from ludus.protocol.contract import check_saved
from ludus.sdk.environment_parameters import ParameterDraws


class SessionCheckpoints:
    """Saves and restores the positions of one session, whose simulator can go back to a saved position."""

    def __init__(
        self,
        session: Session,
        host: Host,
        former: SessionSnapshot | None,
        draws: ParameterDraws,
        send: Callable[[pb.ConnectResponse], None],
    ) -> None:
        """`former` is where it was in a former attempt; `send` sends it a message."""
        self.session = session
        self._host = host
        self._draws = draws
        self._send = send
        self._former = former
        """Its snapshot of a former attempt, until its first step shows whether it is there again."""
        self._unadmitted: dict[str, tuple[int, BehaviorBatch | None, State]] = {}
        """By behavior that is not admitted yet: the first step, the agents that ask in it, and their snapshot."""
        self._save_id = 0
        """The newest number of Save; counts up from 1."""
        self._position: bytes | None = None
        """The answer to it, as long as the simulator stays there."""
        self._checkpoint = 0
        """The newest checkpoint for which it was asked."""

    # Going on ---------------------------------------------------------------------------------------------------

    def leave_position(self, *, resumed: bool) -> None:
        """Record a step: the simulator has left its last position, and (unless `resumed`) its former one."""
        self._position = None
        if self._former is not None:
            self._host.snapshots.pop(self.session.session_id, None)
            self._former = self._former if resumed else None

    def resume(self, step_id: int, batches: Sequence[BehaviorBatch]) -> bool:
        """Restore the agents with the first step; return False if that asks for others."""
        session, former, self._former = self.session, self._former, None
        decided: dict[str, BehaviorBatch | None] = {batch.behavior: batch for batch in batches}
        if former is None or not _is_there_again(session, former, batches):
            return False
        for name, agents in former.agents.items():
            self._unadmitted[name] = (step_id, decided.get(name), agents)
            if name in session.agent_indexes:
                self.admitted(name)
        if self._unadmitted:
            session.say_wait(f"the run is preparing the behavior {next(iter(self._unadmitted))}")
        return True

    def admitted(self, name: str) -> None:
        """Restore the agents of an admitted behavior in its runner's next turn."""
        if name in self._unadmitted:
            session = self.session
            step_id, batch, agents = self._unadmitted.pop(name)
            runner, agent_index = session.agent_indexes[name]
            decisions = None if batch is None else batch.decisions
            runner.restore_later(Returning(session, agent_index, step_id, decisions, agents))

    def forget(self) -> None:
        """Forget the agents that wait to be restored."""
        self._unadmitted.clear()

    # Taking a snapshot ------------------------------------------------------------------------------------------

    def saved(self, saved: pb.Saved) -> bool:
        """Take the answer to Save; return whether it is a position of the present. Raises ProtocolError."""
        check_saved(saved, asked=self._save_id)
        if saved.save_id != self._save_id or not self._is_at_rest:
            return False
        self._position = saved.position
        return True

    def has_position(self, checkpoint: int) -> bool:
        """Whether the simulator is at rest and has sent its position for this checkpoint. Asks for it at rest."""
        if not self._is_at_rest:
            self._checkpoint = 0  # a position that it may have sent is out of date
            return False
        if self._checkpoint != checkpoint:
            self._checkpoint, self._position = checkpoint, None
            self._save_id += 1
            self._send(pb.ConnectResponse(save=pb.Save(save_id=self._save_id)))
        return self._position is not None

    def snapshot(self) -> SessionSnapshot | None:
        """Return the session for a checkpoint; None where it has not sent its position."""
        session, draws = self.session, self._draws
        if self._position is None or not self._is_at_rest:
            return None
        return SessionSnapshot(
            session_id=session.session_id,
            number=session.number,
            position=self._position,
            parameter_set=session.parameter_set,
            parameters=draws.newest,
            draws=draws.state,
            agents={
                name: snapshot(runner.recorder, agent_index)
                for name, (runner, agent_index) in session.agent_indexes.items()
            },
        )

    @property
    def _is_at_rest(self) -> bool:
        """Whether every agent of the simulator waits or is between episodes, and all that it sent is taken in."""
        session = self.session
        pairs = session.agent_indexes.values()
        if not session.started or session.unadmitted or self._unadmitted or not pairs:
            return False
        if any(agent_index.staged or runner.returns(agent_index) for runner, agent_index in pairs):
            return False
        acts = any(len(runner.recorder.agents.acting([agent_index])) for runner, agent_index in pairs)
        return not acts and any(runner.recorder.agents.is_at_rest(agent_index) for runner, agent_index in pairs)


def _is_there_again(session: Session, former: SessionSnapshot, batches: Sequence[BehaviorBatch]) -> bool:
    """Whether a first step asks for exactly those agents that waited when the snapshot was taken."""
    decided = {batch.behavior: batch.decisions for batch in batches}
    if not decided.keys() <= former.agents.keys() or any(batch.terminals is not None for batch in batches):
        return False
    for name, agents in former.agents.items():
        decisions = decided.get(name)
        ids = set() if decisions is None else set(decisions.agent_ids.tolist())
        if name not in session.specs or ids != waiting_of(agents):
            return False
    return True
