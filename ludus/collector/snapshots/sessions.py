"""A session's part in checkpoints: it goes on from the snapshot of a former attempt, and makes snapshots.

Only native simulators can go back to where they were, those that say so in Hello (proto/README.md, section 10).
"""

from collections.abc import Callable, Sequence

from ludus.collector import messages
from ludus.collector.host import Host
from ludus.collector.session import Session
from ludus.collector.snapshots.agents import AgentsSnapshot, snapshot, waiting_of
from ludus.collector.snapshots.returning import Returning
from ludus.collector.snapshots.state import SessionSnapshot
from ludus.protocol import simulation_pb2 as pb
from ludus.protocol.batches import BehaviorBatch
from ludus.protocol.contract import check_saved
from ludus.sdk.environment_parameters import ParameterDraws


class SessionCheckpoints:
    """What one simulator has said about going back, and what it was asked."""

    def __init__(self, host: Host, send: Callable[[pb.ConnectResponse], None]) -> None:
        """`send` sends the simulator a message."""
        self._host = host
        self._send = send
        self.resumes = False
        """Whether the simulator can go back to where it was."""
        self._former: SessionSnapshot | None = None
        """Its snapshot of a former attempt, until its first step shows whether it is there again."""
        self._unadmitted: dict[str, tuple[int, BehaviorBatch | None, AgentsSnapshot]] = {}
        """By behavior that is not admitted yet: the first step, the agents that ask in it, and their snapshot."""
        self._save_id = 0
        """The newest number of Save; counts up from 1."""
        self._position: bytes | None = None
        """The answer to it, as long as the simulator stays there."""
        self._checkpoint = 0
        """The newest checkpoint for which it was asked."""

    # Going on ---------------------------------------------------------------------------------------------------

    def begin(self, former: SessionSnapshot | None) -> None:
        """Expect a simulator that can go back; `former` is where it was in a former attempt."""
        self.resumes, self._former = True, former

    def leave_position(self, session_id: str, *, resumed: bool) -> None:
        """Record a step: the simulator has left its last position, and (unless `resumed`) its former one."""
        self._position = None
        if self._former is not None:
            self._host.snapshots.pop(session_id, None)
            self._former = self._former if resumed else None

    def resume(self, session: Session, step_id: int, batches: Sequence[BehaviorBatch]) -> bool:
        """Restore the agents with the first step; return False if that asks for others: they begin new episodes."""
        former, self._former = self._former, None
        decided: dict[str, BehaviorBatch | None] = {batch.behavior: batch for batch in batches}
        if former is None or not _is_there_again(session, former, batches):
            self._host.tell(
                messages.SimulatorProblem(
                    session.session_id,
                    session.number,
                    "not_resumed",
                    "it went back to where it was in the checkpoint, but asks for other agents than those that waited "
                    "there; their episodes begin again. `resume` must ask again for exactly these agents, and end none",
                )
            )
            return False
        for name, agents in former.agents.items():
            self._unadmitted[name] = (step_id, decided.get(name), agents)
            if name in session.agent_indexes:
                self.admitted(session, name)
        if self._unadmitted:
            reason = f"the run is preparing the behavior {next(iter(self._unadmitted))}"
            self._send(pb.ConnectResponse(wait=pb.Wait(reason=reason)))
        return True

    def admitted(self, session: Session, name: str) -> None:
        """Restore the agents of an admitted behavior in its runner's next turn. Raises ProtocolError."""
        if name in self._unadmitted:
            step_id, batch, agents = self._unadmitted.pop(name)
            runner, agent_index = session.agent_indexes[name]
            decisions = None if batch is None else batch.decisions
            self._host.returning.add(Returning(runner, session, agent_index, step_id, decisions, agents))
            if name in session.unadmitted:
                self._host.returning.check(agent_index)

    def forget(self, session: Session) -> None:
        """Forget the agents that wait to be restored."""
        self._unadmitted.clear()
        self._host.returning.drop(session)

    # Taking a snapshot ------------------------------------------------------------------------------------------

    def saved(self, session: Session, saved: pb.Saved) -> bool:
        """Take the answer to Save; return whether it is a position of the present. Raises ProtocolError."""
        check_saved(saved, asked=self._save_id)
        if saved.save_id != self._save_id or not self._is_at_rest(session):
            return False
        self._position = saved.position
        return True

    def has_position(self, session: Session, checkpoint: int) -> bool:
        """Whether the simulator is at rest and has sent its position for this checkpoint. Asks for it at rest."""
        if not self._is_at_rest(session):
            self._checkpoint = 0  # a position that it may have sent is out of date
            return False
        if self._checkpoint != checkpoint:
            self._checkpoint, self._position = checkpoint, None
            self._save_id += 1
            self._send(pb.ConnectResponse(save=pb.Save(save_id=self._save_id)))
        return self._position is not None

    def snapshot(self, session: Session, draws: ParameterDraws) -> SessionSnapshot | None:
        """Return the session for a checkpoint; None where it has not sent its position."""
        if self._position is None or not self._is_at_rest(session):
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

    def _is_at_rest(self, session: Session) -> bool:
        """Whether every agent of the simulator waits or is between episodes, and all that it sent is taken in."""
        pairs, returning = session.agent_indexes.values(), self._host.returning
        if not session.started or session.unadmitted or self._unadmitted or not pairs:
            return False
        if any(agent_index.staged or returning.has(agent_index) for _, agent_index in pairs):
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
